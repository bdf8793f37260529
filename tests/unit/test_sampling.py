"""Running chains: reproducible, interruptible, distinct, and in ArviZ's layout."""

import itertools
import re
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import coarea as co
from coarea.dynamics import Rattle, Straight
from coarea.dynamics.projection import Tolerance
from coarea.errors import ResultError, SamplingWarning
from coarea.execution import blocks, run, session
from coarea.initialisation import search
from coarea.initialisation.approach import _approach
from coarea.results import datatree
from coarea.sampling.methods import vmap_width

# What is kept is part of what is compiled, and so decides about last bits.
OPTIONS = {"draws": 60, "warmup": 40, "chains": 3, "keep": "inputs"}


@pytest.fixture(scope="module")
def posterior():
    model = co.Generator(
        lambda u: {"z": u["z"], "w": 2 * u["z"], "y": u["z"] ** 3 + 0.5 * u["n"]}, {"z": 2, "n": 2}
    )
    return co.condition(model, {"y": np.array([1.0, -0.5])})


@pytest.fixture(scope="module")
def draws(posterior):
    return co.sample(posterior, **OPTIONS)


def test_the_result_is_arviz_data(draws):
    assert set(draws.posterior) == {"z", "w"}
    assert draws.posterior["z"].dims[:2] == ("chain", "draw")
    assert draws.posterior["z"].shape == (3, 60, 2)
    assert set(draws["inputs"]) == {"z", "n"}
    assert set(draws.sample_stats) >= {
        "acceptance_rate", "diverging", "energy", "lp", "n_steps", "step_size",
        "convergence_error", "non_reversible_step", "constraint_error",
    }  # fmt: skip
    np.testing.assert_array_equal(draws.observed_data["y"], [1.0, -0.5])
    assert draws.attrs["inference_library"] == "coarea"


def test_draws_survive_a_file(draws, tmp_path):
    import xarray as xr

    draws.to_netcdf(tmp_path / "draws.nc", engine="h5netcdf")
    again = xr.open_datatree(tmp_path / "draws.nc", engine="h5netcdf")
    np.testing.assert_array_equal(again.posterior["z"], draws.posterior["z"])


def test_every_draw_reproduces_the_data(draws):
    z, n = draws["inputs"]["z"].values, draws["inputs"]["n"].values
    assert np.max(np.abs(z**3 + 0.5 * n - [1.0, -0.5])) <= 1e-8 * 2


def test_the_same_seed_gives_the_same_draws(posterior, draws):
    again = co.sample(posterior, **OPTIONS)
    np.testing.assert_array_equal(again.posterior["z"], draws.posterior["z"])
    other = co.sample(posterior, **OPTIONS, seed=1)
    assert np.all(other.posterior["z"].values != draws.posterior["z"].values)


@pytest.mark.parametrize("seconds", [0.0, 1e-4])
def test_block_length_does_not_change_the_draws(posterior, draws, monkeypatch, seconds):
    monkeypatch.setattr(run, "_SECONDS_PER_BLOCK", seconds)
    again = co.sample(posterior, **OPTIONS)
    np.testing.assert_array_equal(again.posterior["z"], draws.posterior["z"])


@pytest.mark.parametrize("cores", [1, 3])
def test_the_number_of_threads_does_not_change_the_draws(posterior, draws, monkeypatch, cores):
    monkeypatch.setattr(run, "num_cores", lambda: cores)
    again = co.sample(posterior, **OPTIONS)
    np.testing.assert_array_equal(again.posterior["z"], draws.posterior["z"])


def test_a_chain_with_a_warm_up_of_its_own_does_not_depend_on_those_beside_it(posterior):
    options = OPTIONS | {"kernel": co.NUTS()}
    draws, fewer = (co.sample(posterior, **(options | {"chains": n})) for n in (3, 2))
    np.testing.assert_array_equal(fewer.posterior["z"], draws.posterior["z"][:2])


def test_chains_start_at_distinct_points(posterior):
    u = co.find_start(posterior, jax.random.key(0), 5)
    distances = np.max(np.abs(u[:, None] - u[None]), axis=-1)
    assert np.min(distances[~np.eye(5, dtype=bool)]) > 0.01


def test_found_starts_given_back_change_nothing(posterior, draws):
    start = co.find_start(posterior, jax.random.key(0), 3)
    again = co.sample(posterior, **OPTIONS, start=start)
    np.testing.assert_array_equal(again.posterior["z"], draws.posterior["z"])


def test_a_given_start_near_the_manifold_is_moved_onto_it(posterior):
    start = co.find_start(posterior, jax.random.key(0), 1) + 0.01
    result = co.sample(posterior, draws=5, warmup=20, chains=1, start=start)
    assert result.sample_stats["constraint_error"].max() < 1e-8


def test_the_device_can_be_chosen(posterior, draws):
    for devices in ("cpu", jax.devices("cpu")):
        again = co.sample(posterior, **OPTIONS, devices=devices)
        np.testing.assert_array_equal(again.posterior["z"], draws.posterior["z"])


def test_a_given_step_size_is_used_as_it_is(posterior):
    kernel = co.CHMC(num_steps=2, step_size=0.17)
    result = co.sample(posterior, draws=10, warmup=5, chains=1, kernel=kernel)
    assert np.all(result.sample_stats["step_size"] == 0.17)


def test_warm_up_reaches_the_wanted_acceptance():
    """Where energy, not projection, limits the step: a linear generator with the straight flow."""
    model = co.Generator(lambda u: {"z": u["u"][0], "y": jnp.sum(u["u"])}, {"u": 50})
    kernel = co.Langevin(target_acceptance=0.7, integrator=Rattle(flow=Straight()))
    posterior = co.condition(model, {"y": 1.0})
    result = co.sample(posterior, draws=1000, warmup=500, chains=2, kernel=kernel)
    assert abs(float(result.sample_stats["acceptance_rate"].mean()) - 0.7) < 0.08


@pytest.mark.parametrize("structure", ["dense", "auto"])
def test_no_batches_of_matrices_are_factored_on_a_cpu(structure, x64):
    """Two calls of LAPACK for batches, in one program, can wait for each other for ever."""
    A = np.random.default_rng(0).normal(size=(40, 20))
    model = co.Generator(lambda u: {"y": jnp.tanh(A @ u["v"]) + 0.1 * u["n"]}, {"v": 20, "n": 40})
    target = co.condition(model, {"y": np.zeros(40)}, structure=structure)
    u = jnp.zeros((16, 60))
    lowered = jax.jit(lambda u: _approach(target, u, Tolerance.following(1e-9))).lower(u)
    calls = [line for line in lowered.as_text().splitlines() if "lapack" in line]
    assert calls
    assert not [line for line in calls if re.search(r"tensor<\d+x\d+x\d+xf64>", line)]


@pytest.mark.parametrize(("root", "together"), [(jnp.linalg.cholesky, 1), (jnp.sqrt, 4)])
def test_a_model_that_factors_matrices_is_not_vectorised(root, together, x64):
    model = co.Markov(
        shared={"z": ()},
        noise=2,
        steps=5,
        initial=lambda s, n: jnp.zeros(2),
        step=lambda s, x, n, t: 0.5 * x + root(jnp.eye(2) + 0.1 * s["z"] ** 2) @ n,
    )
    assert vmap_width(co.condition(model, {"y": np.full((5, 2), 0.3)}), 8) == together


@pytest.mark.parametrize(("root", "together"), [(jnp.linalg.cholesky, 1), (jnp.sqrt, 4)])
def test_a_likelihood_that_factors_matrices_is_not_vectorised(root, together, x64):
    def log_factor(z):
        return -jnp.sum(root(jnp.eye(2) * jnp.exp(z["z"])))

    model = co.Generator(lambda u: {"z": u["z"]}, {"z": ()}, log_factor=log_factor)
    assert vmap_width(co.condition(model), 8) == together


def test_other_data_of_the_same_shape_compile_nothing_new(posterior, compilations):
    # Conditioned here: what the fixture compiled may have been dropped since.
    co.sample(co.condition(posterior.generator, {"y": np.array([0.1, 0.4])}), **OPTIONS)
    assert compilations
    compilations.clear()
    other = co.condition(posterior.generator, {"y": np.array([0.3, 0.2])})
    co.sample(other, **(OPTIONS | {"warmup": 50}), seed=3)
    assert not compilations
    co.sample(other, **(OPTIONS | {"keep": None}))
    assert compilations


@pytest.fixture
def interrupt():
    """Ctrl-C, heeded even in a process that a shell started in the background, where it is not."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    main = threading.main_thread().ident
    assert main is not None
    yield lambda: signal.pthread_kill(main, signal.SIGINT)
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_returns_the_draws_so_far(posterior, monkeypatch, interrupt):
    plain, calls = blocks.advance, itertools.count()

    def slow(*args):
        time.sleep(0.01)
        if next(calls) == 150:
            interrupt()
        return plain(*args)

    monkeypatch.setattr(run, "advance", slow)
    monkeypatch.setattr(run, "_SECONDS_PER_BLOCK", 0.0)
    with pytest.warns(SamplingWarning, match=r"interrupted: \d+ of 100000 draws from 3 of 3"):
        result = co.sample(posterior, draws=100_000, warmup=20, chains=3)
    assert 0 < result.posterior.sizes["draw"] < 100_000
    assert np.all(np.isfinite(result.posterior["z"]))


def test_an_interrupt_keeps_the_chains_that_have_draws(posterior, monkeypatch, interrupt):
    """One chain is still warming up: the others' draws are not thrown away with it."""
    plain = run.Group.advance
    ahead = set()

    def uneven(group, *args):
        if group is slow and group._done > 1:
            time.sleep(0.2)
        elif group._done > 150 and group not in ahead:
            ahead.add(group)
            if len(ahead) == 2:
                interrupt()
        return plain(group, *args)

    slow = None
    draw = run.draw

    def keep_one_behind(program, groups, *args):
        nonlocal slow
        slow = groups[-1]
        return draw(program, groups, *args)

    monkeypatch.setattr(run.Group, "advance", uneven)
    monkeypatch.setattr(session, "draw", keep_one_behind)
    monkeypatch.setattr(run, "_SECONDS_PER_BLOCK", 0.0)
    with pytest.warns(SamplingWarning, match=r"from 2 of 3 chains"):
        result = co.sample(posterior, draws=100_000, warmup=100, chains=3, kernel=co.NUTS())
    assert result.posterior.sizes["chain"] == 2


def test_draws_do_not_depend_on_what_runs_beside_large_factors():
    """Large enough for LAPACK to use threads of its own, if it is let."""
    A = np.random.default_rng(0).normal(size=(150, 160)) / 10
    model = co.Generator(lambda u: {"z": u["u"][0], "y": A @ u["u"]}, {"u": 160})
    posterior = co.condition(model, {"y": np.zeros(150)})
    options = {"draws": 3, "warmup": 20, "kernel": co.NUTS()}
    one, two = (co.sample(posterior, chains=n, **options).posterior["z"] for n in (1, 2))
    np.testing.assert_array_equal(one[0], two[0])


def test_the_callers_precision_is_left_alone(draws):
    assert jnp.zeros(()).dtype == jnp.float32


def test_an_error_after_sampling_takes_the_draws_along(posterior, monkeypatch):
    def fails(*args, **kwargs):
        raise OSError("No space left on device")

    for name in ("as_datatree", "with_ends", "diagnose"):
        with monkeypatch.context() as patched:
            patched.setattr(datatree, name, fails)
            with pytest.raises(ResultError, match="No space left") as raised:
                co.sample(posterior, **OPTIONS)
        assert raised.value.draws["posterior"]["z"].shape == (3, 60, 2)


def test_an_error_while_sampling_takes_the_draws_along(posterior, monkeypatch):
    advance = run.Group.advance

    def fails_later(self, program):
        if self.num_draws == 20:
            raise MemoryError("no memory left")
        return advance(self, program)

    monkeypatch.setattr(run, "_SECONDS_PER_BLOCK", 0.0)
    monkeypatch.setattr(run.Group, "advance", fails_later)
    with pytest.raises(ResultError, match="no memory left") as raised:
        co.sample(posterior, **OPTIONS)
    draws = raised.value.draws
    assert 0 < draws.posterior.sizes["draw"] <= 20
    assert np.all(np.isfinite(draws.posterior["z"]))


def test_names_with_slashes_are_stored_with_dots_and_known_again():
    def model():
        with numpyro.handlers.scope(prefix="a"):
            x = numpyro.sample("x", dist.Normal().expand([2]).to_event(1))
        numpyro.deterministic("total", x.sum())
        numpyro.deterministic("first", x[0])

    draws = co.sample(co.condition(model, {"total": 1.0}), draws=50, progress=False)
    np.testing.assert_array_equal(draws.posterior["a.x"][..., 0], draws.posterior["first"])
    again = co.predictive(model, draws, 0).posterior_predictive
    np.testing.assert_allclose(again["first"], draws.posterior["first"], rtol=1e-6)


def test_threads_may_sample_numpyro_models_at_once():
    def model(center):
        x = numpyro.sample("x", dist.Normal(center, 1.0).expand([2]).to_event(1))
        numpyro.deterministic("total", x.sum())

    def job(center):
        posterior = co.condition(model, {"total": 1.0}, args=(center,))
        draws = co.sample(posterior, draws=20, warmup=20, chains=2, progress=False)
        return co.predictive(model, draws, 0, args=(center,)).posterior["x"].values

    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(job, np.arange(4.0)))
    for center, draws in enumerate(together):
        np.testing.assert_array_equal(draws, job(float(center)))


def test_chains_start_in_all_pieces():
    """A fifth of the prior leads to the piece that has a quarter of the mass."""
    model = co.Generator(
        lambda u: {"z": u["z"], "y": (u["z"] - 0.3) ** 2 + 0.1 * u["n"]}, {"z": (), "n": ()}
    )
    starts = co.find_start(co.condition(model, {"y": 4.0}), 0, 40)
    assert 0.2 < np.mean(starts[:, 0] > 0) < 0.8


def test_a_chain_without_a_start_of_its_own_borrows_one(posterior, monkeypatch):
    improve, calls = search.improve, itertools.count()

    def loses_the_first_chain(target, u, tolerance):
        found = improve(target, u, tolerance)
        lost = next(calls) < search.ROUNDS
        return found._replace(error=jnp.full_like(found.error, jnp.inf)) if lost else found

    monkeypatch.setattr(search, "improve", loses_the_first_chain)
    with pytest.warns(SamplingWarning, match="found for 1 of 3 chains"):
        starts = co.find_start(posterior, 0, 3)
    np.testing.assert_array_equal(starts[0], starts[1])
    assert np.all(starts[1] != starts[2])


@pytest.mark.parametrize("seed", [np.int32(3), np.uint8(3), jnp.asarray(3)])
def test_whole_numbers_of_all_kinds_are_the_same_seed(posterior, seed):
    three = co.sample(posterior, **OPTIONS, seed=3)
    again = co.sample(posterior, **OPTIONS, seed=seed)
    np.testing.assert_array_equal(three.posterior["z"], again.posterior["z"])


def test_large_seeds_differ(posterior):
    entropy = 0x1234567890ABCDEF1234567890ABCDEF
    draws = [co.sample(posterior, **OPTIONS, seed=s).posterior["z"] for s in (entropy, entropy + 1)]
    assert np.all(draws[0] != draws[1])
