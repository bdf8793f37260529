"""The main job against the posterior that its closed-form likelihood gives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import coarea as co
from coarea.experiments import lotka_volterra
from exact import assert_mean


def exact_moments(y):
    """Mean and sd of log z, by importance sampling with an error far below that of the draws.

    Increments are Gaussian given the state before, so the likelihood of the rates is known; the
    posterior is near a normal, which a heavy-tailed proposal around its mode covers.
    """
    before = np.concatenate([[lotka_volterra.START], y[:-1]])

    def log_posterior(log_z):
        z = jnp.exp(log_z)
        prey, predators = before.T
        drift = jnp.stack(
            [
                z[0] * prey - z[1] * prey * predators,
                -z[2] * predators + z[3] * prey * predators,
            ],
            axis=1,
        )
        noise = y - before - drift
        return -0.5 * jnp.sum(noise**2) - 0.5 * jnp.sum((log_z + 2.0) ** 2)

    mode = jnp.log(lotka_volterra.TRUTH)
    for _ in range(50):
        H = jax.hessian(log_posterior)(mode)
        mode = mode - jnp.linalg.solve(H, jax.grad(log_posterior)(mode))
    L = np.linalg.cholesky(np.linalg.inv(-H))
    rng = np.random.default_rng(0)
    dof = 10
    t = rng.normal(size=(200_000, 4)) * np.sqrt(dof / rng.chisquare(dof, size=(200_000, 1)))
    log_proposal = -0.5 * (dof + 4) * np.log1p(np.sum(t**2, axis=1) / dof)
    x = np.asarray(mode) + t @ L.T
    log_weight = np.asarray(jax.vmap(log_posterior)(x)) - log_proposal
    weight = np.exp(log_weight - log_weight.max())
    weight /= weight.sum()
    assert 1 / np.sum(weight**2) > 100_000
    mean = weight @ x
    return mean, np.sqrt(weight @ (x - mean) ** 2)


@pytest.fixture(scope="module")
def data():
    return lotka_volterra.dataset(seed=0)


def test_rates_agree_with_the_tractable_posterior(data):
    with jax.enable_x64(True), jax.numpy_rank_promotion("allow"):
        mean, sd = exact_moments(data)
    posterior = co.condition(lotka_volterra.generator(), {"y": data})
    draws = co.sample(
        posterior, draws=1500, warmup=300, chains=4, kernel=co.CHMC(num_steps=(1, 3)), keep="inputs"
    )
    log_z = np.log(draws.posterior["z"].values)
    for i in range(4):
        assert_mean(log_z[..., i], mean[i])
        assert_mean((log_z[..., i] - mean[i]) ** 2, sd[i] ** 2)

    # Every draw, simulated again from its inputs, gives the data.
    with jax.enable_x64(True):
        inputs = {k: v.values.reshape(-1, *v.shape[2:]) for k, v in draws["inputs"].items()}
        again = np.asarray(jax.vmap(lotka_volterra.simulate)(inputs)["y"])
    assert np.max(np.abs(again - data)) <= 1e-8 * (1 + np.max(np.abs(data)))
    assert draws.sample_stats["convergence_error"].mean() < 0.01


def test_starts_are_found_though_every_prior_draw_overflows(data):
    posterior = co.condition(lotka_volterra.generator(), {"y": data})
    prior = lotka_volterra.generator().simulate(jax.random.key(0), 200)["y"]
    assert not np.any(np.all(np.abs(prior - data) < 1e3, axis=(1, 2)))
    u = co.find_start(posterior, jax.random.key(1), 4)
    with jax.enable_x64(True):
        residual = jax.vmap(posterior.residual)(u)
    assert np.max(np.abs(residual)) <= 1e-9 * (1 + np.max(np.abs(data)))
