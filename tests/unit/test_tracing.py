"""What a model computes is fixed when it is conditioned; programs serve all models like it."""

import functools
import gc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import coarea as co
from coarea.errors import ModelError
from coarea.tracing import NotInvertibleError, solve_for, trace
from coarea.xla import programs

GROUPS = np.array([0, 0, 1, 1, 2, 2])


def sampled(model, observed, **options):
    posterior = co.condition(model, observed)
    return co.sample(posterior, draws=50, warmup=30, chains=1, progress=False, **options)


def hierarchy(y):
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    effects = numpyro.sample("effects", dist.Normal(mean, 1.0).expand([3]).to_event(1))
    numpyro.sample("y", dist.Normal(effects[GROUPS], 0.5), obs=y)


class Simulator:
    """A model with a value of its own that may change."""

    def __init__(self, sigma):
        self.sigma = sigma

    def __call__(self, u):
        return {"z": u["z"], "y": u["z"] + self.sigma * u["n"]}


def test_a_changed_attribute_is_seen_when_conditioned_again():
    simulator = Simulator(1.0)
    model = co.Generator(simulator, {"z": (), "n": ()})
    before = co.condition(model, {"y": 0.0})
    simulator.sigma = 0.01
    after = co.condition(model, {"y": 0.0})
    wide = co.sample(before, draws=400, progress=False).posterior["z"].std()
    narrow = co.sample(after, draws=400, progress=False).posterior["z"].std()
    assert float(wide) > 0.5
    assert float(narrow) < 0.02


def test_an_array_changed_in_place_is_seen_when_conditioned_again_and_not_before():
    sigma = np.array(1.0)
    model = co.Generator(lambda u: {"y": u["z"] + sigma * u["n"]}, {"z": (), "n": ()})
    u = np.array([0.25, 0.5])
    before = co.condition(model, {"y": 0.0})
    sigma[...] = 3.0
    after = co.condition(model, {"y": 0.0})
    with jax.enable_x64(True):
        np.testing.assert_allclose(before.residual(jnp.asarray(u)), [0.75])
        np.testing.assert_allclose(after.residual(jnp.asarray(u)), [1.75])


def test_a_changed_attribute_is_seen_by_predictions_and_simulations():
    simulator = Simulator(1.0)
    model = co.Generator(simulator, {"z": (), "n": ()})
    draws = co.sample(co.condition(model, {"y": 0.0}), draws=20, chains=1, keep="inputs")
    before = co.predictive(model, draws, 0).posterior_predictive["y"], model.simulate(0, 5)["y"]
    simulator.sigma = 3.0
    after = co.predictive(model, draws, 0).posterior_predictive["y"], model.simulate(0, 5)["y"]
    assert all(np.all(a != b) for a, b in zip(before, after, strict=True))


def test_data_changed_after_conditioning_change_nothing():
    y, x = np.ones(6), np.ones(2)

    def model(x):
        a = numpyro.sample("a", dist.Normal(x, 1.0).to_event(1))
        numpyro.sample("t", dist.StudentT(4.0, a[0], 1.0), obs=y[0])
        numpyro.deterministic("sum", a.sum())

    posterior = co.condition(model, {"sum": 0.3}, args=(x,))
    with jax.enable_x64(True):
        u = jnp.array([0.1, 0.2])
        before = posterior.generator.log_density(u), posterior.residual(u)
        y[:], x[:] = 7.0, 9.0
        after = posterior.generator.log_density(u), posterior.residual(u)
    jax.tree.map(np.testing.assert_array_equal, before, after)


def test_single_precision_refuses_a_model_that_has_changed_since():
    simulator = Simulator(1.0)
    posterior = co.condition(co.Generator(simulator, {"z": (), "n": ()}), {"y": 0.0})
    simulator.sigma = 2.0
    with pytest.raises(ModelError, match=r"has changed\. Condition anew"):
        co.sample(posterior, precision="float32")


@pytest.mark.parametrize("nuts_comes_first", [True, False])
def test_arrays_are_not_remembered_in_another_precision(nuts_comes_first):
    groups, y = np.array([0, 0, 1, 1]), np.array([1 / 3, 2 / 3, 1 / 7, 1 / 9])

    def model():
        a = numpyro.sample("a", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        numpyro.sample("y", dist.Normal(a[groups], 1.0), obs=y)

    def nuts():
        mcmc = numpyro.infer.MCMC(
            numpyro.infer.NUTS(model), num_warmup=10, num_samples=10, progress_bar=False
        )
        mcmc.run(jax.random.key(0))
        return mcmc

    runs = [nuts] if nuts_comes_first else []
    kept = [run() for run in runs]
    posterior = co.condition(model)
    np.testing.assert_array_equal(posterior.reporter.observed["y"], y)
    kept.append(nuts())


def test_conditioning_in_threads():
    def job(i):
        return float(sampled(lambda: hierarchy(np.full(6, 1.0 * i)), {}).posterior["mean"].mean())

    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(job, range(6)))
    np.testing.assert_array_equal(together, [job(i) for i in range(6)])


def test_functions_that_compute_the_same_share_a_jaxpr(x64):
    def softened(scale, power=2):
        scale = np.array(scale)

        def function(u):
            inner = jax.jit(lambda z: jax.nn.softplus(z * scale))
            return {"z": u["z"], "y": inner(u["z"]) ** power}

        return function

    z = {"z": jax.ShapeDtypeStruct((2,), float)}
    one, other = (trace(softened([s, 2.0]), z, what="it") for s in (1.0, 5.0))
    assert one.shared is other.shared
    assert trace(softened([1.0, 2.0], power=3), z, what="it").shared is not one.shared
    for traced, scale in ((one, 1.0), (other, 5.0)):
        found = traced({"z": jnp.array([0.3, 0.4])})
        assert list(found) == ["z", "y"]
        expected = jnp.logaddexp(jnp.array([0.3, 0.4]) * jnp.array([scale, 2.0]), 0.0) ** 2
        np.testing.assert_allclose(found["y"], expected, rtol=1e-14)


def test_a_derivative_rule_counts_when_jaxprs_are_compared(x64):
    def with_slope(slope):
        @jax.custom_jvp
        def same(x):
            return x

        same.defjvp(lambda primals, tangents: (primals[0], slope * tangents[0]))
        return trace(same, jax.ShapeDtypeStruct((), float), what="it")

    assert with_slope(1.0).shared is with_slope(1.0).shared
    steep = with_slope(3.0)
    assert steep.shared is not with_slope(1.0).shared
    assert float(jax.grad(steep)(2.0)) == 3.0


def maps():
    file = Path("/proc/self/maps")
    return file.read_bytes().count(b"\n") if file.exists() else 0


def resident():
    file = Path("/proc/self/statm")
    return int(file.read_text().split()[1]) * 4096 if file.exists() else 0


def test_a_thousand_fits_leave_nothing_behind():
    """Other data of the same shapes, through models and lambdas made anew, compile nothing."""
    rng = np.random.default_rng(0)

    def fit(i):
        y = rng.normal(size=6)
        if i % 4:
            model = co.Generator(
                lambda u: {"z": u["z"], "y": jnp.sinh(u["z"]) + u["n"]}, {"z": (), "n": 6}
            )
            posterior = co.condition(model, {"y": y})
        else:
            posterior = co.condition(hierarchy, args=(y,))
        co.sample(posterior, draws=5, warmup=20, chains=1, progress=False, seed=i)

    for i in range(12):
        fit(i)
    gc.collect()
    before = maps(), resident()
    for i in range(12, 1000):
        fit(i)
    gc.collect()
    assert maps() - before[0] < 100
    assert resident() - before[1] < 30e6


def test_programs_are_bounded(monkeypatch):
    monkeypatch.setattr(programs, "_MOST_PROGRAMS", 20)
    scaled = programs.jit_bounded(lambda x, factor: x * factor)
    for factor in range(40):
        assert float(scaled(jnp.ones(()), float(factor))) == factor
    assert len(programs._programs) <= 20
    gc.collect()
    before = maps()
    for factor in range(40, 100):
        scaled(jnp.ones(()), float(factor))
    gc.collect()
    assert maps() - before < 60


def test_programs_are_dropped_when_the_process_has_many_memory_maps(monkeypatch):
    scaled = programs.jit_bounded(lambda x, factor: x * factor)
    monkeypatch.setattr(programs, "_num_maps", lambda: 10**6)
    for factor in range(40):
        scaled(jnp.ones(()), 1000.0 + factor)
    assert len(programs._programs) < 40


@pytest.mark.parametrize(
    "function",
    [
        lambda x: jnp.exp(0.3 * x - 1.0) + 2.0,
        lambda x: 5.0 / (1.0 + jnp.exp(-x)) - 2.0,
        lambda x: jnp.log1p(jnp.exp(jnp.tanh(x))),
        lambda x: 2.0 ** jnp.sinh(x),
        lambda x: jnp.sqrt(jnp.exp(x)) / 1.5,
        lambda x: jnp.roll(jnp.exp(x), 2),
        lambda x: functools.reduce(lambda z, k: jnp.roll(2 * z, k), range(40), x),
        lambda x: jax.nn.sigmoid(jnp.cbrt(x) - 3.0),
        lambda x: jnp.where(jnp.arange(6) % 2 == 0, jnp.expm1(x), -x),
        lambda x: jnp.concatenate([-x[4:], x.reshape(2, 3)[0, ::-1], 2.0 * x[3:4]]),
        jax.jit(lambda x: jax.scipy.special.erf(jnp.arcsinh(0.1 * x.reshape(3, 2).T).ravel())),
    ],
)
def test_equations_are_solved_by_undoing_operations(x64, function):
    x = jnp.asarray(np.random.default_rng(0).normal(size=6))
    (found,) = solve_for(lambda inputs: function(inputs[0]) - function(x), [jnp.zeros(6)])
    np.testing.assert_allclose(found, x, rtol=1e-10)
    np.testing.assert_allclose(function(found), function(x), rtol=1e-10)


def test_an_equation_without_solution_has_none(x64):
    y = jnp.array([2.0, -1.0, 0.0])
    (found,) = solve_for(lambda inputs: jnp.exp(inputs[0]) - y, [jnp.ones(3)])
    np.testing.assert_allclose(found, [np.log(2.0), np.nan, np.nan])


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: x + jnp.tanh(x), "add"),
        (lambda x: x**3, "integer_pow"),
        (lambda x: x**3.0, "pow"),
        (lambda x: jnp.cumsum(x), "cumsum"),
        (lambda x: jax.lax.scan(lambda c, a: (c, jnp.exp(a)), 0.0, x)[1], "scan"),
        (lambda x: jnp.where(x > 0, x, 2 * x), "gt"),
    ],
)
def test_what_cannot_be_undone_is_named(x64, function, reason):
    with pytest.raises(NotInvertibleError, match=reason):
        solve_for(lambda inputs: function(inputs[0]), [jnp.ones(4)])
