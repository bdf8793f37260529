"""What `sample` does when no option is set: exact, reproducible, and told in the result."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import coarea as co
from coarea.errors import SettingError
from exact import assert_mean


def on_grid(log_density, *axes):
    """A function that integrates over a density on a grid: the mean of another function."""
    points = np.meshgrid(*axes, indexing="ij")
    log_weight = log_density(*points)
    weight = np.exp(log_weight - log_weight.max())
    return lambda function: float(np.sum(function(*points) * weight) / np.sum(weight))


X = np.random.default_rng(0).normal(size=30)
CLICKS = (np.random.default_rng(1).uniform(size=30) < 1 / (1 + np.exp(-0.5 - X))).astype(int)


def logistic():
    a = numpyro.sample("a", dist.Normal(0.0, 2.0))
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Bernoulli(logits=a + b * X), obs=CLICKS)


def logistic_as_a_factor():
    def outputs(u):
        return {"a": 2 * u["a"], "b": u["b"]}

    def log_factor(z):
        eta = z["a"] + z["b"] * X
        return jnp.sum(CLICKS * eta - jnp.logaddexp(0.0, eta))

    return co.Generator(outputs, {"a": (), "b": ()}, log_factor=log_factor)


@pytest.mark.parametrize("model", [logistic, logistic_as_a_factor()], ids=["NumPyro", "factor"])
def test_a_model_of_likelihoods_alone(model):
    """No constraint, no manifold: an ordinary density."""

    def log_density(a, b):
        eta = a[..., None] + b[..., None] * X
        likelihood = np.sum(CLICKS * eta - np.logaddexp(0.0, eta), axis=-1)
        return likelihood - 0.5 * (a / 2) ** 2 - 0.5 * b**2

    mean = on_grid(log_density, np.linspace(-4, 6, 400), np.linspace(-4, 5, 400))
    posterior = co.condition(model)
    assert posterior.structure.startswith("density: 2 inputs, no exact constraint")
    draws = co.sample(posterior, draws=10_000, chains=2)
    a, b = (draws.posterior[name].values for name in "ab")
    assert_mean(a, mean(lambda a, b: a))
    assert_mean(b, mean(lambda a, b: b))
    assert_mean(a**2, mean(lambda a, b: a**2))
    assert_mean(a * b, mean(lambda a, b: a * b))
    assert float(draws.sample_stats["constraint_error"].max()) == 0.0


WAITS = np.array([0.7, 2.1, 0.3, 1.4, 0.9])


def waiting():
    """The noise of these sites enters by maps that are not linear."""
    rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
    s = numpyro.sample("s", dist.HalfNormal(1.0))
    numpyro.sample("wait", dist.Exponential(rate).expand([5]).to_event(1), obs=WAITS)
    numpyro.sample("size", dist.LogNormal(jnp.log(rate), 0.5 + s), obs=1.7)


@pytest.mark.parametrize("parametrisation", ["manifold", "chart", "auto"])
def test_noise_that_enters_by_a_map_with_an_inverse(parametrisation):
    """Any parametrisation, and the noise that is reported reproduces the data."""

    def log_density(log_rate, s):
        rate, width = np.exp(log_rate), 0.5 + s
        prior = 2 * log_rate - rate - 0.5 * s**2
        waits = 5 * log_rate - rate * WAITS.sum()
        return prior + waits - np.log(width) - 0.5 * ((np.log(1.7) - log_rate) / width) ** 2

    mean = on_grid(log_density, np.linspace(-4, 3, 600), np.linspace(0, 6, 600))
    posterior = co.condition(waiting)
    draws = co.sample(
        posterior, draws=10_000, chains=2, parametrisation=parametrisation, keep="inputs"
    )
    rate, s = (draws.posterior[name].values for name in ("rate", "s"))
    assert_mean(rate, mean(lambda r, s: np.exp(r)))
    assert_mean(rate**2, mean(lambda r, s: np.exp(2 * r)))
    assert_mean(s, mean(lambda r, s: s))
    assert_mean(s**2, mean(lambda r, s: s**2))
    from scipy.stats import norm

    wait = -norm.logsf(draws["inputs"]["wait"].values) / rate[..., None]
    np.testing.assert_allclose(wait, np.broadcast_to(WAITS, wait.shape), rtol=1e-6)


def levels():
    a = numpyro.sample("a", dist.Normal(0.0, 1.0))
    with numpyro.plate("groups", 4):
        e = numpyro.sample("e", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(a + e, 0.1), obs=np.array([0.9, 1.4, 0.2, 1.1]))
    numpyro.deterministic("total", e.sum())


@pytest.mark.parametrize("parametrisation", ["manifold", "chart"])
def test_exact_and_likelihood_data_together(parametrisation):
    """On the chart a total stays a constraint, and the readings have a density: all normal."""
    y, seen = np.array([0.9, 1.4, 0.2, 1.1]), 0.3
    design = np.concatenate([np.ones((4, 1)), np.eye(4)], axis=1)
    precision = np.eye(5) + design.T @ design / 0.01
    covariance = np.linalg.inv(precision)
    mean = covariance @ design.T @ y / 0.01
    total = np.array([0.0, 1.0, 1.0, 1.0, 1.0])
    gain = covariance @ total / (total @ covariance @ total)
    mean = mean + gain * (seen - total @ mean)
    covariance = covariance - np.outer(gain, total @ covariance)
    posterior = co.condition(levels, {"total": seen})
    draws = co.sample(posterior, draws=10_000, chains=2, parametrisation=parametrisation)
    a, e = draws.posterior["a"].values, draws.posterior["e"].values
    for i, x in enumerate([a, *np.moveaxis(e, -1, 0)]):
        assert_mean(x, mean[i])
        assert_mean((x - mean[i]) ** 2, covariance[i, i])
    np.testing.assert_allclose(e.sum(-1), seen, atol=1e-8)


def test_inputs_of_very_different_size_need_no_option():
    """Coefficients from 1 to 1e5 with flat priors: normal, with covariance σ² (XᵀX)⁻¹."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(50, 3)) * [1.0, 1e-3, 1e-5]
    y = X @ [1.0, 2e3, -1e5] + 0.5 * rng.normal(size=50)

    def model():
        b = numpyro.sample("b", dist.ImproperUniform(dist.constraints.real, (), (3,)))
        numpyro.sample("y", dist.Normal(X @ b, 0.5), obs=y)

    mean = np.linalg.lstsq(X, y)[0]
    variance = 0.25 * np.diag(np.linalg.inv(X.T @ X))
    draws = co.sample(co.condition(model), draws=4000, chains=2)
    b = draws.posterior["b"].values
    for i in range(3):
        assert_mean(b[..., i], mean[i])
        assert_mean((b[..., i] - mean[i]) ** 2, variance[i])
    assert float(draws.sample_stats["n_steps"].mean()) < 20


def test_a_thin_cylinder_needs_no_option():
    """The radius is 1e-4 of the length; cos φ has a von Mises density, z a normal one."""
    radius = 1e-4
    target = co.Manifold(
        lambda x: (x[0] ** 2 + x[1] ** 2) / radius**2 - 1.0,
        lambda x: -0.5 * x[2] ** 2 + x[0] / radius,
        point=np.array([radius, 0.0, 0.0]),
    )
    draws = co.sample(target, draws=10_000, chains=2)
    x = draws.posterior["point"].values
    from scipy.special import iv

    assert_mean(x[..., 0] / radius, iv(1, 1) / iv(0, 1))
    assert_mean(x[..., 2], 0.0)
    assert_mean(x[..., 2] ** 2, 1.0)


def test_the_same_seed_makes_the_same_choice():
    posterior = co.condition(waiting)
    options = {"draws": 20, "chains": 2, "seed": 3}
    one, two = co.sample(posterior, **options), co.sample(co.condition(waiting), **options)
    for name in ("parametrisation", "kernel", "tuning_steps"):
        assert one.attrs[name] == two.attrs[name]
    np.testing.assert_array_equal(one.posterior["rate"], two.posterior["rate"])


def test_warm_up_ends_when_it_is_done_and_says_so():
    A = np.random.default_rng(0).normal(size=(3, 8))
    model = co.Generator(lambda u: {"z": u["u"], "y": A @ u["u"]}, {"u": 8})
    posterior = co.condition(model, {"y": np.ones(3)})
    draws = co.sample(posterior, draws=4000, warmup=2000, chains=2)
    assert draws.attrs["tuning_steps"] < 1500
    assert draws.attrs["kernel"].startswith("constrained HMC, 1 step of size 1.5")
    gain = A.T @ np.linalg.inv(A @ A.T)
    z = draws.posterior["z"].values[..., 0]
    mean = (gain @ np.ones(3))[0]
    assert_mean(z, mean)
    assert_mean((z - mean) ** 2, 1 - (gain @ A)[0, 0])


def test_an_unknown_parametrisation_is_refused():
    model = co.Generator(lambda u: {"z": u["z"], "y": u["z"] + u["n"]}, {"z": (), "n": ()})
    with pytest.raises(SettingError, match="'auto', 'manifold' or 'chart'"):
        co.sample(co.condition(model, {"y": 1.0}), parametrisation="coordinates")
