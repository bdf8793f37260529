"""NumPyro models and observations that cannot be used are refused, with the reason."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers

import coarea as co
from coarea.errors import DataError, JacobianError, ModelError


def discrete():
    k = numpyro.sample("k", dist.Poisson(2.0))
    x = numpyro.sample("x", dist.Normal(k, 1.0))
    numpyro.deterministic("y", x)


def subsampled():
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", 10, subsample_size=3):
        numpyro.sample("y", dist.Normal(x, 1.0), obs=np.zeros(3))


def looped():
    from numpyro.contrib.control_flow import scan

    def body(x, _):
        x = numpyro.sample("x", dist.Normal(x, 1.0))
        return x, x

    _, x = scan(body, 0.0, None, length=3)
    numpyro.deterministic("y", x)


def pair():
    a = numpyro.sample("a", dist.Normal(0.0, 1.0))
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    numpyro.deterministic("sum", a + b)
    numpyro.deterministic("again", 2 * a + 2 * b)
    numpyro.deterministic("constant", 3.0)
    numpyro.sample("positive", dist.Exponential(jnp.exp(a)))


def counted():
    a = numpyro.sample("a", dist.Normal(0.0, 1.0))
    numpyro.deterministic("sum", a + numpyro.sample("b", dist.Normal(0.0, 1.0)))
    numpyro.sample("count", dist.Poisson(jnp.exp(a)))


def computed():
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(x, 1.0), obs=2 * x)


def parameterised():
    x = numpyro.sample("x", dist.Normal(numpyro.param("loc", 0.0), 1.0))
    numpyro.deterministic("y", x)


def masked():
    with numpyro.plate("p", 2), handlers.mask(mask=False):
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    numpyro.deterministic("sum", x.sum())


def seen(y=None):
    numpyro.sample("y", dist.Normal(numpyro.sample("x", dist.Normal(0.0, 1.0)), 1.0), obs=y)


MISTAKES = {
    "a discrete latent": (discrete, {"y": 1.0}, {}, ModelError, "'k' is a discrete latent"),
    "a subsample": (subsampled, None, {}, ModelError, "'rows' has a subsample_size"),
    "a mask in a plate": (masked, {"sum": 1.0}, {}, ModelError, "latent and masked"),
    "a scan": (looped, {"y": np.zeros(3)}, {}, ModelError, "coarea.Markov"),
    "a parameter": (parameterised, {"y": 1.0}, {}, ModelError, "numpyro.param is for"),
    "no site": (pair, {"total": 1.0}, {}, DataError, "'total' is not a site"),
    "data computed from latents": (computed, None, {}, ModelError, "computed from latent sites"),
    "outside the support": (pair, {"positive": -1.0}, {}, DataError, "outside of the support"),
    "a shape": (pair, {"positive": np.ones(2)}, {}, DataError, "has shape"),
    "not a number": (pair, {"sum": np.nan}, {}, DataError, "not finite"),
    "noise inputs of no site": (
        pair,
        {"sum": 1.0},
        {"noise_inputs": ["z"]},
        ModelError,
        "noise_inputs names 'z'",
    ),
    "noise inputs without a map": (
        counted,
        {"sum": 1.0, "count": 3},
        {"noise_inputs": ["count"]},
        ModelError,
        "Poisson has no map",
    ),
    "arguments": (seen, {"y": 1.0}, {"args": (1, 2)}, ModelError, "cannot be called with"),
    "a function of inputs": (lambda u: {"y": u}, {"y": 1.0}, {}, ModelError, "coarea.Generator"),
    "no model": (3, {"y": 1.0}, {}, ModelError, "not a int"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_refused(name):
    model, observed, options, error, words = MISTAKES[name]
    with pytest.raises(error, match=words):
        co.condition(model, observed, **options)


@pytest.mark.parametrize(
    ("observed", "words"),
    [
        ({"constant": 3.0}, "constant: the derivative with respect to every input is zero"),
        ({"sum": 1.0, "again": 2.0}, "sum, again are not independent"),
    ],
)
def test_constraints_that_say_nothing_are_refused(observed, words):
    with pytest.raises(JacobianError, match=words):
        co.sample(co.condition(pair, observed), draws=10)
