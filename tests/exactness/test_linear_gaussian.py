"""Linear-Gaussian generators have a Gaussian posterior in closed form."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import coarea as co
from exact import assert_mean


def problem(num_constraints, num_inputs=10, seed=0):
    rng = np.random.default_rng(seed)
    A = rng.normal(size=(num_constraints, num_inputs))
    C = rng.normal(size=(2, num_inputs))
    y = rng.normal(size=num_constraints)
    model = co.Generator(
        lambda u: {"z": C @ u["u"] + 1.0, "y": A @ u["u"]}, inputs={"u": num_inputs}
    )
    gain = A.T @ np.linalg.inv(A @ A.T)
    mean = C @ gain @ y + 1.0
    covariance = C @ (np.eye(num_inputs) - gain @ A) @ C.T
    return co.condition(model, {"y": y}), mean, covariance


KERNELS = {
    "NUTS": co.NUTS(),
    "rotation": co.CHMC(num_steps=(1, 4)),
    "straight": co.CHMC(
        num_steps=(1, 4), integrator=co.dynamics.Rattle(flow=co.dynamics.Straight())
    ),
}


@pytest.mark.parametrize(
    ("num_constraints", "kernel"), [(1, "NUTS"), (5, "rotation"), (5, "straight"), (9, "NUTS")]
)
def test_mean_and_covariance_are_those_of_the_conditional(num_constraints, kernel):
    posterior, mean, covariance = problem(num_constraints)
    draws = co.sample(posterior, draws=4000, warmup=400, chains=2, kernel=KERNELS[kernel])
    z = draws.posterior["z"].values
    for i in range(2):
        assert_mean(z[..., i], mean[i])
        for j in range(i + 1):
            product = (z[..., i] - mean[i]) * (z[..., j] - mean[j])
            assert_mean(product, covariance[i, j])


def test_the_rotation_conserves_energy_exactly(x64):
    posterior, *_ = problem(5)
    integrator = co.dynamics.Rattle(flow=co.dynamics.Rotation())
    u = jnp.asarray(co.find_start(posterior, jax.random.key(0), 1)[0])
    state = integrator.refresh(jax.random.key(1), integrator.init(posterior, u))
    for h in (0.1, 0.7, 1.5):
        end = integrator.step(posterior, state, jnp.asarray(h))
        assert not end.failed
        assert jnp.max(jnp.abs(end.position - u)) > 0.05
        assert jnp.abs(end.energy - state.energy) < 1e-10
