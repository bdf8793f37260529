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
    "half-normal": (dist.HalfNormal(2.0), stats.halfnorm(scale=2.0)),
    "logistic": (dist.Logistic(0.5, 2.0), stats.logistic(0.5, 2.0)),
    "gumbel": (dist.Gumbel(0.5, 2.0), stats.gumbel_r(0.5, 2.0)),
    "cauchy": (dist.Cauchy(0.5, 2.0), stats.cauchy(0.5, 2.0)),
    "half-Cauchy": (dist.HalfCauchy(2.0), stats.halfcauchy(scale=2.0)),
    "laplace": (dist.Laplace(0.5, 2.0), stats.laplace(0.5, 2.0)),
    "weibull": (dist.Weibull(2.0, 1.5), stats.weibull_min(1.5, scale=2.0)),
    "left-truncated": (
        dist.TruncatedNormal(0.5, 2.0, low=1.0),
        stats.truncnorm(0.25, np.inf, 0.5, 2.0),
    ),
    "right-truncated": (
        dist.TruncatedNormal(0.5, 2.0, high=1.0),
        stats.truncnorm(-np.inf, 0.25, 0.5, 2.0),
    ),
    "truncated": (
        dist.TruncatedNormal(0.5, 2.0, low=-1.0, high=1.0),
        stats.truncnorm(-0.75, 0.25, 0.5, 2.0),
    ),
    "transformed": (
        dist.TransformedDistribution(
            dist.Gumbel(0.0, 1.0), dist.transforms.AffineTransform(1.0, 2.0)
        ),
        stats.gumbel_r(1.0, 2.0),
    ),
}
# Edges other than zero, near which doubles are too coarse for a tail: nothing to be accurate in.
EDGES = {
    "uniform": (-9.0, 9.0),
    "left-truncated": (-9.0,),
    "right-truncated": (9.0,),
    "truncated": (-9.0, 9.0),
}
DENSITIES = {
    "gamma": dist.Gamma(3.0, 2.0),
    "beta": dist.Beta(2.0, 3.0),
    "Student's t": dist.StudentT(4.0, 0.5, 2.0),
    "truncated Cauchy": dist.TruncatedCauchy(0.0, 1.0, low=0.5),
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


@pytest.mark.parametrize("name", MAPPED)
def test_a_known_map_is_accurate_in_the_tails(name, x64):
    """Value by the probability beyond it; slope by what the density must become."""
    given, exact = MAPPED[name]
    inputs = co.Generator(lambda u: u, {"x": given}).inputs

    def value(u):
        return inputs.values(u[None])["x"].reshape(())

    for u in (-9.0, -4.0, -0.5, 0.0, 0.3, 2.0, 9.0):
        x, slope = jax.value_and_grad(value)(jnp.asarray(u))
        if u in EDGES.get(name, ()):
            assert given.support(x)
            continue
        beyond = (exact.logcdf, stats.norm.logcdf) if u < 0 else (exact.logsf, stats.norm.logsf)
        np.testing.assert_allclose(beyond[0](float(x)), beyond[1](u), rtol=1e-9)
        density = stats.norm.logpdf(u) - jnp.log(slope)
        np.testing.assert_allclose(density, exact.logpdf(float(x)), rtol=1e-8, atol=1e-8)


def test_a_normal_truncated_far_out_keeps_its_digits(x64):
    inputs = co.Generator(lambda u: u, {"x": dist.TruncatedNormal(0.0, 1.0, low=40.0)}).inputs
    x = inputs.values(jnp.array([0.0]))["x"]
    # Beyond 40 the tail falls by half within log 2 / 40, nearly.
    np.testing.assert_allclose(x, 40.0 + np.log(2) / 40, atol=2e-5)


def test_inputs_are_laid_end_to_end_in_the_order_given(x64):
    inputs = co.Generator(lambda u: u, {"b": (2, 2), "a": ()}).inputs
    values = inputs.values(jnp.arange(5.0))
    np.testing.assert_array_equal(values["b"], [[0.0, 1.0], [2.0, 3.0]])
    assert values["a"] == 4.0


def test_simulations_are_double_precision_though_the_flag_is_off():
    model = co.Generator(lambda u: {"x": u["x"] + 1e-12}, {"x": ()})
    assert model.simulate(jax.random.key(0), 2)["x"].dtype == np.float64
    assert jnp.zeros(()).dtype == jnp.float32
