"""Inputs: the map from the flat vector to values, and its density."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import stats

import coarea as co

MAPPED = {
    "normal": (dist.Normal(0.5, 2.0), stats.norm(0.5, 2.0)),
    "log-normal": (dist.LogNormal(0.1, 0.5), stats.lognorm(0.5, scale=np.exp(0.1))),
    "uniform": (dist.Uniform(-1.0, 3.0), stats.uniform(-1.0, 4.0)),
    "exponential": (dist.Exponential(2.0), stats.expon(scale=0.5)),
    "expanded": (dist.Normal(0.5, 2.0).expand([1]).to_event(1), stats.norm(0.5, 2.0)),
}
DENSITIES = {
    "logistic": dist.Logistic(0.5, 2.0),
    "gamma": dist.Gamma(3.0, 2.0),
    "half-Cauchy": dist.HalfCauchy(2.0).expand([2]),
    "dirichlet": dist.Dirichlet(np.array([1.0, 2.0, 3.0])),
    "correlation": dist.LKJCholesky(3, 2.0),
}


@pytest.mark.parametrize("name", MAPPED)
def test_a_known_map_from_normals_reaches_the_distribution(name):
    given, exact = MAPPED[name]
    model = co.Generator(lambda u: {"x": u["x"]}, {"x": given})
    assert model.inputs.is_standard_normal
    draws = model.simulate(jax.random.key(0), 20_000)["x"].ravel()
    assert stats.kstest(draws, exact.cdf).pvalue > 1e-3


def test_a_correlated_normal_has_its_covariance():
    covariance = np.array([[2.0, 0.6], [0.6, 1.0]])
    given = dist.MultivariateNormal(np.array([1.0, -1.0]), covariance)
    draws = co.Generator(lambda u: u, {"x": given}).simulate(jax.random.key(0), 40_000)["x"]
    np.testing.assert_allclose(np.cov(draws.T), covariance, atol=0.05)
    np.testing.assert_allclose(draws.mean(0), [1.0, -1.0], atol=0.03)


@pytest.mark.parametrize("name", DENSITIES)
def test_other_distributions_enter_by_their_density(name, x64):
    """ρ(u) must be the distribution's density times the volume of its map from the reals."""
    given = DENSITIES[name]
    inputs = co.Generator(lambda u: u, {"x": given}).inputs
    assert not inputs.is_standard_normal
    u = inputs.draw(jax.random.key(1))
    # Coordinates of the value that determine it: the simplex and the factor have redundant ones.
    free = {
        "dirichlet": lambda x: x[:-1],
        "correlation": lambda x: x[jnp.tril_indices(3, -1)],
    }.get(name, jnp.ravel)
    J = jax.jacfwd(lambda u: free(inputs.values(u)["x"]))(u)
    expected = jnp.sum(given.log_prob(inputs.values(u)["x"])) + jnp.linalg.slogdet(J)[1]
    np.testing.assert_allclose(inputs.log_density(u), expected, rtol=1e-9)


def test_the_exponential_map_is_accurate_in_the_far_tail(x64):
    inputs = co.Generator(lambda u: u, {"x": dist.Exponential(1.0)}).inputs
    value = inputs.values(jnp.array([12.0]))["x"]
    np.testing.assert_allclose(value, -stats.norm.logsf(12.0), rtol=1e-12)


def test_inputs_are_laid_end_to_end_in_the_order_given(x64):
    inputs = co.Generator(lambda u: u, {"b": (2, 2), "a": ()}).inputs
    values = inputs.values(jnp.arange(5.0))
    np.testing.assert_array_equal(values["b"], [[0.0, 1.0], [2.0, 3.0]])
    assert values["a"] == 4.0


def test_simulations_are_double_precision_though_the_flag_is_off():
    model = co.Generator(lambda u: {"x": u["x"] + 1e-12}, {"x": ()})
    assert model.simulate(jax.random.key(0), 2)["x"].dtype == np.float64
    assert jnp.zeros(()).dtype == jnp.float32
