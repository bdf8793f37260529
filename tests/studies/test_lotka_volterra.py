"""The main job against the posterior that its closed-form likelihood gives."""

import jax
import numpy as np
import pytest

import coarea as co
from coarea.studies import lotka_volterra
from coarea.studies.lotka_volterra_methods import exact_moments
from exact import assert_mean


@pytest.fixture(scope="module")
def data():
    return lotka_volterra.dataset(seed=0)


def test_rates_agree_with_the_tractable_posterior(data):
    with jax.numpy_rank_promotion("allow"):
        mean, sd = exact_moments(data)
    posterior = co.condition(lotka_volterra.generator(), {"y": data})
    draws = co.sample(
        posterior, draws=1200, warmup=250, chains=2, kernel=co.CHMC(num_steps=(1, 3)), keep="inputs"
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
