"""What the tables of bad and unusual inputs share: models, and short calls."""

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist

import coarea as co

KEY = jax.random.key(0)
N = {"z": (), "n": ()}


def plain(u):
    return {"z": u["z"], "y": u["z"] + u["n"]}


MODEL = co.Generator(plain, N)
VECTOR = co.Generator(plain, {"z": (), "n": 3})
DIRECTED = co.Generator(plain, N, parameters=["z"])
POSTERIOR = co.condition(MODEL, {"y": 1.0})


def gen(function, inputs=N, **options):
    return co.Generator(function, inputs, **options)


def y_is(function, inputs=N, y=1.0):
    """A posterior given an output y that the function computes."""
    return co.condition(gen(lambda u: {"z": u["z"], "y": function(u)}, inputs), {"y": y})


def sample(target=POSTERIOR, **options):
    """As few draws as can be."""
    return co.sample(
        target, **{"draws": 5, "warmup": 20, "chains": 1, "progress": False, **options}
    )


def latent(function, **options):
    """Draws of outputs that the function computes."""
    model = gen(lambda u: {**function(u), "y": u["z"] + u["n"]})
    return sample(co.condition(model, {"y": 1.0}), **options)


def scoped():
    with numpyro.handlers.scope(prefix="a"):
        x = numpyro.sample("x", dist.Normal().expand([2]).to_event(1))
    numpyro.deterministic("total", x.sum())


def in_double(function):
    with jax.enable_x64(True):
        return function()


def markov(**options):
    given = {
        "shared": {"a": ()},
        "noise": (),
        "steps": 6,
        "initial": lambda s, n: jnp.zeros(()),
        "step": lambda s, x, n, t: jnp.tanh(s["a"]) * x + n,
    }
    return co.Markov(**given | options)


def manifold(constraint=lambda x: x @ x - 1.0, log_density=lambda x: 0.0, point=(1.0, 0.0)):
    return co.Manifold(constraint, log_density, point=point)
