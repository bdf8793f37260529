"""Units and small noise change nothing: every chain moves, and to the right posterior."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import coarea as co
from coarea.dynamics import Rattle
from exact import assert_mean


@pytest.mark.parametrize(
    ("unit", "noise", "tolerance"),
    [(1e-10, 1.0, None), (1.0, 1e-6, None), (1e6, 1e-3, 1e-12)],
)
def test_a_linear_posterior_in_any_unit(unit, noise, tolerance):
    rng = np.random.default_rng(0)
    A = rng.normal(size=(4, 6))
    z_true = rng.normal(size=6)
    y = unit * (A @ z_true)
    model = co.Generator(
        lambda u: {"z": u["z"], "y": unit * (A @ u["z"] + noise * u["n"])}, {"z": 6, "n": 4}
    )
    kernel = co.NUTS(integrator=Rattle(tolerance=tolerance))
    draws = co.sample(co.condition(model, {"y": y}), draws=2000, chains=2, kernel=kernel)
    assert np.all(draws.sample_stats["acceptance_rate"].mean("draw") > 0.7)
    gain = A.T @ np.linalg.inv(A @ A.T + noise**2 * np.eye(4))
    mean, covariance = gain @ (A @ z_true), np.eye(6) - gain @ A
    z = draws.posterior["z"].values
    for i in range(3):
        assert_mean(z[..., i], mean[i])
        assert_mean((z[..., i] - mean[i]) ** 2, covariance[i, i])


@pytest.mark.parametrize("radius", [1e-5, 1e4])
def test_a_sphere_of_any_radius(radius):
    sphere = co.Manifold(
        lambda x: x @ x - radius**2,
        lambda x: 3.0 * x[2] / radius,
        point=radius * np.array([0.6, 0.0, 0.8]),
    )
    start = co.find_start(sphere, jax.random.key(0), 2)
    np.testing.assert_allclose(np.linalg.norm(start, axis=1), radius, rtol=1e-8)
    draws = co.sample(sphere, draws=3000, chains=2, start=start)
    x = draws.posterior["point"].values / radius
    np.testing.assert_allclose(np.linalg.norm(x, axis=-1), 1.0, rtol=1e-8)
    assert_mean(x[..., 2], 1 / np.tanh(3.0) - 1 / 3.0)


def test_a_density_with_an_edge_is_started_inside_it():
    """A Dirichlet distribution on the simplex, whose log density is NaN outside.

    Steps over the edge are divergences, as they should be, and are warned of.
    """
    simplex = co.Manifold(
        lambda x: jnp.sum(x) - 1.0, lambda x: jnp.sum(jnp.log(x)), point=np.full(4, 0.25)
    )
    draws = co.sample(simplex, draws=4000, chains=2)
    x = draws.posterior["point"].values
    assert np.all(x > 0)
    assert_mean(x[..., 0], 0.25)
    assert_mean(x[..., 0] ** 2, 0.25**2 + 0.25 * 0.75 / 9)


def test_an_output_that_is_wholly_masked_is_a_latent():
    model = co.Generator(
        lambda u: {"w": u["a"][:2], "x": u["a"][2] + u["b"], "y": u["a"] + 2 * u["b"]},
        {"a": 3, "b": ()},
    )
    observed = {"y": np.ones(3), "w": np.ma.masked_all(2), "x": 0.5}
    with pytest.raises(co.errors.DataError, match="4 values are observed"):
        co.condition(model, observed)
    observed["y"] = np.ma.masked_array(np.ones(3), mask=[False, True, False])
    posterior = co.condition(model, observed)
    assert [posterior.reporter.describe(i) for i in range(3)] == ["y[0]", "y[2]", "x"]
    draws = co.sample(posterior, draws=20, warmup=30, chains=1).posterior
    assert set(draws) == {"w", "y"}
    np.testing.assert_allclose(draws["y"].values[..., [0, 2]], 1.0, atol=1e-8)
