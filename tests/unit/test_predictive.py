"""`predictive`: what a model computes or draws given posterior draws."""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import coarea as co
from coarea.errors import DataError
from exact import assert_mean


def test_predictive_draws_sites_anew_given_the_draws():
    def model(y=None):
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        nu = numpyro.sample("nu", dist.Normal(0.0, 1.0))
        numpyro.deterministic("sum", mu + nu)
        numpyro.sample("y", dist.Normal(mu, 0.1).expand([4]), obs=y)

    y = np.array([0.3, 0.4, 0.5, 0.4])
    draws = co.sample(co.condition(model, {"sum": 1.0}, args=(y,)), draws=2000, chains=2)
    more = co.predictive(model, draws, jax.random.key(0))
    assert set(draws.children) < set(more.children)
    drawn = more.posterior_predictive["y"].values
    assert drawn.shape == (2, 2000, 4)
    mu = draws.posterior["mu"].values
    assert_mean(drawn[..., 0] - mu, 0.0)
    assert_mean((drawn[..., 0] - mu) ** 2, 0.01)


def test_predictive_of_a_generator_keeps_inputs_and_draws_new_ones():
    model = co.Generator(
        lambda u: {"y": u["z"].sum() + u["n"]}, {"z": dist.Exponential(1.0).expand([2]), "n": ()}
    )
    draws = co.sample(co.condition(model, {"y": 1.5}), draws=1000, chains=2, keep="inputs")
    later = co.Generator(
        lambda u: {"z": u["z"], "next": u["z"][0] + u["m"]},
        {"z": dist.Exponential(1.0).expand([2]), "m": ()},
    )
    found = co.predictive(later, draws, jax.random.key(0)).posterior_predictive
    np.testing.assert_array_equal(found["z"], draws.inputs["z"])
    assert_mean((found["next"] - found["z"][..., 0]).values ** 2, 1.0)
    again = co.predictive(model, draws, jax.random.key(1)).posterior_predictive["y"]
    np.testing.assert_allclose(again, 1.5, atol=1e-8)


def test_predictive_stores_names_with_slashes_as_sample_does():
    def model(later=False):
        with numpyro.handlers.scope(prefix="pre"):
            x = numpyro.sample("x", dist.Normal())
            numpyro.deterministic("t", x + numpyro.sample("e", dist.Normal()))
            if later:
                numpyro.sample("again", dist.Normal(x, 1e-6))

    posterior = co.condition(model, {"pre/t": 1.0})
    draws = co.sample(posterior, draws=30, warmup=30, chains=2)
    found = co.predictive(model, draws, 0, args=(True,)).posterior_predictive
    np.testing.assert_allclose(found["pre.t"], 1.0, atol=1e-8)
    np.testing.assert_allclose(found["pre.again"], draws.posterior["pre.x"], atol=1e-4)
    assert found["pre.again"].attrs["name_in_model"] == "pre/again"


def test_predictive_tells_what_it_lacks():
    model = co.Generator(lambda u: {"z": u["z"], "y": u["z"] + u["n"]}, {"z": (), "n": ()})
    draws = co.sample(co.condition(model, {"y": 1.5}), draws=20, chains=1)
    with pytest.raises(DataError, match="keep='inputs'"):
        co.predictive(model, draws, jax.random.key(0))
