"""Posteriors in coordinates: noise is solved for, and what is left is a density like any other."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import coarea as co
from coarea.adaptation.warmup import AdaptedParameters
from coarea.errors import ModelError, SettingError
from coarea.execution.transitions import begin, transition
from coarea.jacobians.linalg import small
from coarea.kernels.kernel import Tuning
from coarea.manifolds.rescaling import Rescaling
from coarea.manifolds.target import constraint_error
from coarea.sampling.sample import plan_for
from exact import assert_mean

Y = np.array([0.3, 1.9, -0.4, 1.1, 0.8])


def location_and_scale(u):
    scale = jnp.exp(u["s"])
    return {"m": u["m"], "s": u["s"], "y": u["m"] + scale * u["n"]}


LOCATION_AND_SCALE = co.Generator(location_and_scale, {"m": (), "s": (), "n": Y.size})


def on_grid(function):
    """The mean of a function of (m, s) given Y, by a sum over a fine grid."""
    m, s = np.meshgrid(np.linspace(-5, 5, 801), np.linspace(-3, 4, 801), indexing="ij")
    error = (Y[:, None, None] - m) / np.exp(s)
    weight = np.exp(-0.5 * (m**2 + s**2 + np.sum(error**2, axis=0)) - Y.size * s)
    return np.sum(function(m, s) * weight) / np.sum(weight)


@pytest.mark.parametrize(
    "kernel",
    [co.CHMC(), co.CHMC(num_steps=2, step_size=1.3), co.NUTS(mass="diagonal")],
    ids=["CHMC", "a coarse step", "diagonal mass"],
)
def test_a_location_and_a_scale(kernel):
    """Without |det B| the scale is biased; without the accept step the coarse one is."""
    posterior = co.condition(LOCATION_AND_SCALE, {"y": Y}, structure="chart")
    # With a coarse step few go into the tails, and stay there long: fewer say too little of them.
    draws = co.sample(posterior, draws=60_000, warmup=300, chains=2, kernel=kernel, keep="inputs")
    m, s = (draws.posterior[name].values for name in "ms")
    assert_mean(m, on_grid(lambda m, s: m))
    assert_mean(s, on_grid(lambda m, s: s))
    assert_mean(m**2, on_grid(lambda m, s: m**2))
    assert_mean(s**2, on_grid(lambda m, s: s**2))
    assert draws.sample_stats["constraint_error"].max() < 1e-12
    n = draws["inputs"]["n"].values
    np.testing.assert_allclose(m[..., None] + np.exp(s)[..., None] * n, np.broadcast_to(Y, n.shape))


def curve(u):
    return jnp.sin(u["a"]) + jnp.exp(0.3 * u["b"][0])


MIXED = np.array([[1.0, 0.5], [-0.3, 2.0]])
MODELS = {
    "noise for each": (
        lambda u: {"a": u["a"], "y": curve(u) * jnp.arange(1.0, 5.0) + (1 + u["a"] ** 2) * u["n"]},
        {"a": (), "b": 2, "n": 4},
    ),
    "noise that mixes in pairs": (
        lambda u: {"a": u["a"], "y": curve(u) + jnp.exp(u["a"]) * u["n"] @ MIXED},
        {"a": (), "b": 2, "n": (3, 2)},
    ),
    "all noise mixes": (
        lambda u: {"a": u["a"], "y": curve(u) + u["n"] @ MIXED},
        {"a": (), "b": 2, "n": 2},
    ),
    "one observed value": (
        lambda u: {"a": u["a"], "y": curve(u) + 0.1 * u["n"]},
        {"a": (), "b": 2, "n": ()},
    ),
    "latents beside the noise": (
        lambda u: {"a": u["a"], "y": u["x"] ** 2 + u["a"] + 0.5 * u["n"]},
        {"a": (), "x": 3, "n": 3, "unused": 2},
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_its_density_is_that_of_the_manifold_without_its_volume(name, x64):
    """And the metric is that of the graph; both in any units."""
    function, inputs = MODELS[name]
    model = co.Generator(function, inputs)
    y = model.simulate(jax.random.key(1), 1)["y"][0]
    chart = co.condition(model, {"y": y}, structure="chart")
    dense = co.condition(model, {"y": y}, structure="dense")
    assert chart.structure.startswith(f"chart: {chart.num_inputs} coordinates")
    assert chart.num_inputs == dense.num_inputs - dense.num_constraints
    lower = np.tril(np.random.default_rng(0).normal(size=2 * (chart.num_inputs,)))
    lower[np.diag_indices_from(lower)] = 1.5
    rescaled = chart.rescale(Rescaling(jnp.asarray(lower)))

    @jax.jit
    def facts(v):
        u = chart.to_manifold(v)
        return {
            "residual": dense.residual(u),
            "back": chart.from_manifold(u),
            "metric": chart.metric(v),
            "tangents": jax.jacfwd(chart.to_manifold)(v),
            "here": jax.value_and_grad(chart.log_density)(v),
            "on the manifold": dense.evaluate(u).log_density,
            "in units": jax.value_and_grad(rescaled.log_density)(jnp.linalg.solve(lower, v)),
            "metric in units": rescaled.metric(jnp.linalg.solve(lower, v)),
        }

    for v in np.random.default_rng(1).normal(size=(3, chart.num_inputs)):
        found = jax.tree.map(np.asarray, facts(v))
        assert np.max(np.abs(found["residual"])) < 1e-12
        np.testing.assert_array_equal(found["back"], v)
        gram = found["tangents"].T @ found["tangents"]
        np.testing.assert_allclose(found["metric"], gram, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(found["metric in units"], lower.T @ gram @ lower, rtol=1e-8)
        log_density, gradient = found["here"]
        volume = 0.5 * np.linalg.slogdet(gram)[1]
        np.testing.assert_allclose(log_density, found["on the manifold"] + volume)
        np.testing.assert_allclose(found["in units"][0], log_density)
        np.testing.assert_allclose(found["in units"][1], lower.T @ gradient, rtol=1e-8)


def test_a_root_of_the_inverse(x64):
    A = np.random.default_rng(0).normal(size=(3, 12, 12))
    A = A @ np.swapaxes(A, 1, 2) + np.eye(12)
    R = np.asarray(small.root_of_inverse(jnp.asarray(A)))
    np.testing.assert_allclose(R @ np.swapaxes(R, 1, 2), np.linalg.inv(A), atol=1e-10)
    np.testing.assert_array_equal(R, np.tril(R))


def test_a_simulator_that_steps_through_time(x64):
    """All states are seen: the steps decouple. Some are hidden: the noise of readings is solved."""
    facts = {
        "shared": {"rate": ()},
        "noise": 1,
        "steps": 12,
        "initial": lambda s, n: jnp.zeros(1),
        "step": lambda s, x, n, t: x - 0.1 * jnp.exp(s["rate"]) * jnp.sin(x) + 0.3 * n,
    }
    seen = co.Markov(**facts)
    y = seen.simulate(jax.random.key(0), 1)["y"][0]
    assert co.condition(seen, {"y": y}, structure="chart").num_inputs == 1
    hidden = co.Markov(**facts, observe=lambda s, x, n, t: x + n, observe_noise=1, observe_every=3)
    y = hidden.simulate(jax.random.key(0), 1)["y"][0]
    chart = co.condition(hidden, {"y": y}, structure="chart")
    assert chart.num_inputs == 13
    v = chart.from_manifold(chart.posterior.guess(jax.random.key(1)))
    assert chart.reporter.latents(v)["x"].shape == (4, 1)
    assert constraint_error(chart, v) < 1e-12


def test_a_run_starts_where_it_is_told_and_goes_on_where_it_ended():
    posterior = co.condition(LOCATION_AND_SCALE, {"y": Y}, structure="chart")
    start = co.find_start(posterior, jax.random.key(0), chains=2)
    assert start.shape == (2, 2)
    whole = co.sample(posterior, draws=60, warmup=100, chains=2, start=start)
    half = co.sample(posterior, draws=30, warmup=100, chains=2, start=start)
    np.testing.assert_array_equal(whole.posterior["m"][:, :30], half.posterior["m"])
    assert whole["adapted"]["scale"].shape == (2, 2, 2)
    more = co.sample(posterior, draws=20, warmup=0, chains=2, start=half, seed=1)
    np.testing.assert_array_equal(more["adapted"]["scale"], half["adapted"]["scale"])
    assert float(more.sample_stats["acceptance_rate"].mean()) > 0.5
    with pytest.raises(SettingError, match="2 chains on 2 inputs need"):
        co.sample(posterior, chains=2, start=np.zeros((2, 7)))


def test_a_numpyro_model():
    """Its observed sites have noise of their own; NumPyro's driver runs NUTS on the chart."""

    def model(y=None):
        m = numpyro.sample("m", dist.Normal(0.0, 1.0))
        s = numpyro.sample("s", dist.Normal(0.0, 1.0))
        with numpyro.plate("data", Y.size):
            numpyro.sample("y", dist.Normal(m, jnp.exp(s)), obs=y)

    kernel = co.interop.numpyro.ConstrainedNUTS(model, structure="chart")
    with jax.enable_x64(True):
        run = numpyro.infer.MCMC(kernel, num_warmup=200, num_samples=2000, progress_bar=False)
        run.run(jax.random.key(0), Y)
        draws = run.get_samples(group_by_chain=True)
    assert_mean(draws["m"], on_grid(lambda m, s: m))
    assert_mean(draws["s"], on_grid(lambda m, s: s))


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda a, n: a + jnp.exp(n), "as a summand"),
        (lambda a, n: jnp.abs(a + n), "as a summand"),
        (lambda a, n: jnp.mod(a + 0.3 * n, 6.0), "as a summand"),
        (lambda a, n: a + jnp.where(n > 0, 2 * n, 0.5 * n), "as a summand"),
        (lambda a, n: a + jnp.clip(n, -3.0, 3.0), "as a summand"),
        (lambda a, n: a + jnp.maximum(a, 0.0) * n, "vanishes"),
        (lambda a, n: a * jnp.ones(3), "as many noises"),
    ],
)
def test_noise_that_cannot_be_solved_for_is_an_error(function, reason):
    """What enters in pieces has no derivative that tells, and more solutions than are found."""
    model = co.Generator(lambda u: {"y": function(u["a"], u["n"])}, {"a": (), "n": 3})
    with pytest.raises(ModelError, match=reason):
        co.condition(model, {"y": np.ones(3)}, structure="chart")


def test_noise_is_found_among_inputs_as_narrow():
    model = co.Generator(
        lambda u: {"y": u["x"] ** 3 + u["s"] + 0.5 * u["n"], "z": u["s"] + 0.7 * u["m"]},
        {"s": (), "x": 4, "n": 4, "m": 3},
    )
    chart = co.condition(model, {"y": np.ones(4), "z": np.ones(3)}, structure="chart")
    assert chart.num_inputs == 5


@pytest.mark.parametrize("structure", ["auto", "chart"])
@pytest.mark.parametrize("mass", ["identity", "diagonal"])
@pytest.mark.parametrize("found", [None, [2.0, 3.0], [[2.0, 0.0], [1.0, 3.0]]])
def test_a_run_goes_on_with_another_mass(structure, mass, found, x64):
    """What the earlier run measured in becomes what this one does; nothing is computed."""
    posterior = co.condition(LOCATION_AND_SCALE, {"y": Y}, structure=structure)
    M = posterior.num_inputs
    if structure == "auto" and found is not None:
        found = np.full(M, 2.0)
    plan = plan_for(posterior, co.CHMC(mass=mass), 30)
    adapted = AdaptedParameters(
        jnp.array([0.1]), jnp.array([1.0]), None if found is None else np.array([found])
    )
    chains = begin(plan, posterior, jax.random.key(0)[None], jnp.ones((1, M)), adapted)
    matrix = chains.adaptation.rescaling.matrix
    expected = {
        ("auto", "identity"): None if found is None else np.full(M, 2.0),
        ("auto", "diagonal"): np.ones(M) if found is None else np.full(M, 2.0),
        ("chart", "identity"): np.eye(2) if found is None else np.diag([2.0, 3.0]),
        ("chart", "diagonal"): np.ones(2) if found is None else np.array([2.0, 3.0]),
    }[structure, mass]
    if structure == "chart" and np.ndim(found) == 2:
        expected = np.array(found) if mass == "identity" else np.array([2.0, np.sqrt(10.0)])
    if expected is None:
        assert matrix is None
    else:
        np.testing.assert_allclose(matrix[0], expected)
    chain = jax.tree.map(lambda x: x[0], chains)
    jax.eval_shape(lambda n: transition(plan, posterior, chain, n), jnp.asarray(0))


def test_one_coordinate_and_hardly_any_warm_up():
    model = co.Generator(lambda u: {"a": u["a"], "y": u["a"] + u["n"]}, {"a": (), "n": 3})
    chart = co.condition(model, {"y": np.ones(3)}, structure="chart")
    kernel = co.NUTS(step_size=0.5)
    draws = co.sample(chart, draws=5, warmup=10, chains=1, kernel=kernel)
    assert np.all(np.isfinite(draws.posterior["a"]))


def test_a_trajectory_that_is_lost_is_not_followed_and_tells_nothing(x64):
    """Of thousands of chains that run in step all would wait for one that has learnt from it."""
    posterior = co.condition(LOCATION_AND_SCALE, {"y": Y}, structure="chart")
    kernel = co.CHMC()
    state = kernel.init(posterior, jnp.asarray([0.5, 0.0]))
    known = Tuning(jnp.asarray(100.0), jnp.asarray(1.5), jnp.asarray(True), jnp.asarray(0.5))
    step = jax.vmap(lambda key: kernel.step(posterior, key, state, known)[1])
    info = step(jax.random.split(jax.random.key(0), 100))
    lost = np.asarray(info.is_divergent)
    assert lost.sum() > 50
    assert np.all(info.num_integration_steps[lost] == 1)
    np.testing.assert_array_equal(info.u_turn_time[lost], 1.5)
