"""What warm-up finds: lengths, units and steps that suit the target, without changing it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

import coarea as co
from coarea.dynamics import Rattle, Straight
from coarea.manifolds.rescaling import Rescaling
from exact import assert_mean


def concentrated_sphere(kappa=20.0):
    """Von Mises–Fisher, E x₃ = coth κ − 1/κ: the elements' standard deviations differ five-fold."""
    sphere = co.Manifold(
        lambda x: x @ x - 1.0, lambda x: kappa * x[2], point=np.array([0.0, 0.0, 1.0])
    )
    return sphere, 1 / np.tanh(kappa) - 1 / kappa


def test_units_that_differ_leave_a_density_on_a_manifold_alone():
    """Without the ratio of determinants the mean would be off by 20 standard errors."""
    sphere, mean = concentrated_sphere()
    draws = co.sample(sphere, draws=20_000, chains=2, kernel=co.NUTS(mass="diagonal"))
    units = draws.adapted["scale"].values
    assert np.all(units[:, :2] / units[:, 2:] > 2)
    x = draws.posterior["point"].values
    assert_mean(x[..., 2], mean)
    assert_mean(x[..., 0], 0.0)


def test_units_are_found_where_inputs_differ_in_size():
    """Inputs of sd 1 and 1000 would need steps of the one and trajectories of the other."""
    import numpyro.distributions as dist

    model = co.Generator(
        lambda u: {"small": u["small"][0], "large": u["large"][0], "y": u["small"][1] + u["n"]},
        {
            "small": dist.StudentT(30.0, 0.0, jnp.ones(2)),
            "large": dist.StudentT(30.0, 0.0, 1e3 * jnp.ones(2)),
            "n": (),
        },
    )
    posterior = co.condition(model, {"y": 1.0})
    plain, scaled = (
        co.sample(posterior, draws=500, chains=2, kernel=co.NUTS(mass=mass))
        for mass in ("identity", "diagonal")
    )
    assert scaled.sample_stats["n_steps"].mean() < 0.1 * plain.sample_stats["n_steps"].mean()
    assert_mean(scaled.posterior["large"].values, 0.0)
    assert_mean(scaled.posterior["small"].values ** 2, 30 / 28)


def test_rescaling_changes_neither_the_points_nor_the_tangents(x64):
    sphere, _ = concentrated_sphere()
    units = jnp.array([0.5, 2.0, 3.0])
    u = jnp.array([0.6, 0.0, 0.8])
    scaled = sphere.rescale(Rescaling(units))
    np.testing.assert_allclose(scaled.residual(u / units), sphere.residual(u), atol=1e-15)
    numerical = jax.grad(lambda w: scaled.evaluate(w).log_density)(u / units)
    np.testing.assert_allclose(scaled.evaluate(u / units).gradient, numerical, rtol=1e-12)


def test_a_length_that_is_not_given_is_found():
    """Straight flow on a Gaussian: trajectories turn at about π, so the mean length is π/2."""
    model = co.Generator(lambda u: {"z": u["u"][0], "y": jnp.sum(u["u"])}, {"u": 50})
    posterior = co.condition(model, {"y": 5.0})
    kernel = co.CHMC(step_size=0.1, target_acceptance=0.8, integrator=Rattle(flow=Straight()))
    draws = co.sample(posterior, draws=4000, warmup=300, chains=2, kernel=kernel)
    assert np.all(np.abs(draws.adapted["u_turn_time"] - np.pi) < 0.3)
    assert abs(0.1 * float(draws.sample_stats["n_steps"].mean()) - np.pi / 2) < 0.2
    assert_mean(draws.posterior["z"].values, 0.1)
    assert_mean((draws.posterior["z"].values - 0.1) ** 2, 1 - 1 / 50)


def test_constrained_hmc_needs_no_settings():
    sphere, mean = concentrated_sphere(3.0)
    draws = co.sample(sphere, draws=10_000, chains=2, kernel=co.CHMC())
    assert_mean(draws.posterior["point"].values[..., 2], mean)
    assert len(np.unique(draws.sample_stats["n_steps"])) > 1


@pytest.mark.parametrize("kernel", [co.NUTS(mass="diagonal"), co.CHMC()])
def test_a_run_goes_on_where_an_earlier_one_ended(kernel, tmp_path):
    sphere, _ = concentrated_sphere()
    first = co.sample(sphere, draws=20, warmup=100, chains=3, kernel=kernel)
    first.to_netcdf(tmp_path / "draws.nc")
    with xr.open_datatree(tmp_path / "draws.nc") as saved:
        more = co.sample(sphere, draws=10, warmup=0, chains=3, kernel=kernel, start=saved, seed=1)
    for name in first.adapted:
        if name != "position":
            np.testing.assert_allclose(more.adapted[name], first.adapted[name], rtol=1e-12)
    np.testing.assert_allclose(
        more.sample_stats["step_size"][:, 0], first.sample_stats["step_size"][:, -1]
    )
    last = first.posterior["point"].values[:, -1]
    np.testing.assert_allclose(first.adapted["position"], last, atol=1e-12)
    one_step = float(np.max(np.linalg.norm(more.posterior["point"].values[:, 0] - last, axis=-1)))
    assert one_step < 1.5


def test_a_first_step_a_hundred_times_too_long_is_found_out():
    """The search for a first step halves it while projections fail."""
    radius = 1e-3
    tube = co.Manifold(
        lambda x: (jnp.hypot(x[0], x[1]) - 1.0) ** 2 + x[2] ** 2 - radius**2,
        lambda x: jnp.zeros(()),
        point=np.array([1.0 + radius, 0.0, 0.0]),
    )
    draws = co.sample(tube, draws=50, warmup=200, chains=1)
    assert draws.sample_stats["acceptance_rate"].mean() > 0.5
    assert draws.sample_stats["convergence_error"].mean() < 0.2


def test_a_run_goes_on_with_another_kernel_and_another_warm_up():
    """The default warm-up is shared and finds numbers of steps; that of NUTS finds a step size."""
    model = co.Generator(lambda u: {"z": u["z"], "y": u["z"] ** 3 + u["n"]}, {"z": (), "n": ()})
    posterior = co.condition(model, {"y": 1.5})
    options = {"draws": 100, "chains": 2, "parametrisation": "manifold"}
    first = co.sample(posterior, warmup=100, **options)
    second = co.sample(posterior, warmup=0, start=first, kernel=co.NUTS(), **options)
    steps = second.sample_stats["step_size"].values
    np.testing.assert_allclose(steps, first.adapted["step_size"].values[:, None] * np.ones(100))
    third = co.sample(posterior, warmup=0, start=second, **options)
    assert third.sample_stats["acceptance_rate"].mean() > 0.3
