"""`predictive`: what a model computes or draws given posterior draws."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from coarea.arguments import check_draws
from coarea.errors import DataError, ModelError
from coarea.generators import AbstractSimulator
from coarea.keys import checked_key
from coarea.precision import top_level
from coarea.results.datatree import check_names, own_name, tree_of
from coarea.tracing import TRACING
from coarea.tracing.errors import explaining
from coarea.xla import jit_bounded, one_blas_thread

if TYPE_CHECKING:
    from xarray import DataTree

# Draws computed at once.
_BATCH = 256


@top_level
def predictive(
    model: AbstractSimulator | Callable,
    draws: "DataTree",
    key: Key[Array, ""],
    *,
    args: tuple = (),
    kwargs: Mapping[str, Any] | None = None,
) -> "DataTree":
    """The draws with a group `posterior_predictive`: a model's outputs given each draw.

    Of a NumPyro model (called with `args` and `kwargs`) the sites that were drawn keep their
    values, and those that depend on them are computed or drawn anew: leave out `obs=`. Of a coarea
    model the inputs keep their values (`sample(keep="inputs")`); inputs that the draws do not have
    are drawn from their prior, so that another model of the same inputs may be asked.

    >>> import coarea as co, jax
    >>> model = co.Generator(lambda u: {"z": u["z"], "y": u["z"] ** 3 + u["n"]}, {"z": (), "n": ()})
    >>> draws = co.sample(co.condition(model, {"y": 1.5}), draws=100, keep="inputs")
    >>> later = co.Generator(lambda u: {"next": u["z"] ** 3 + u["m"]}, {"z": (), "m": ()})
    >>> co.predictive(later, draws, jax.random.key(0)).posterior_predictive["next"].shape
    (4, 100)
    """
    key = checked_key(key)
    check_draws(draws, "predictive")
    if isinstance(model, AbstractSimulator):
        if args or kwargs:
            raise ModelError("args and kwargs are for NumPyro models.")
        found = _of_generator(model, draws, key)
    elif callable(model):
        found = _of_numpyro(model, draws, key, args, kwargs or {})
    else:
        raise ModelError(
            "predictive takes a coarea.Generator, a coarea.Markov or a NumPyro model, not a "
            f"{type(model).__name__}."
        )
    group = "posterior_predictive"
    check_names({group: found})
    result = draws.copy()
    result[group] = tree_of({group: found})[group]
    return result


def _of_generator(model: AbstractSimulator, draws: "DataTree", key) -> dict[str, np.ndarray]:
    if "inputs" not in draws.children:
        raise DataError(
            "the draws do not have the random inputs, from which a coarea model computes its "
            "outputs: sample with keep='inputs'."
        )
    kept = {own_name(x): x.values for x in draws["inputs"].data_vars.values()}
    kept = {name: x for name, x in kept.items() if name in model.inputs.names}
    if not kept:
        raise DataError(
            f"none of the model's inputs ({', '.join(model.inputs.names)}) is among those of the "
            f"draws ({', '.join(str(name) for name in draws['inputs'].data_vars)})."
        )
    expected = jax.eval_shape(model.inputs.values, model.inputs.example)
    for name, x in kept.items():
        if x.shape[2:] != expected[name].shape:
            raise DataError(
                f"input {name!r} has shape {expected[name].shape} in the model, but "
                f"{x.shape[2:]} in the draws."
            )
    chains, length = next(iter(kept.values())).shape[:2]
    flat = {name: x.reshape(chains * length, *x.shape[2:]) for name, x in kept.items()}
    with one_blas_thread():
        outputs = _computed(model.frozen(), flat, jax.random.split(key, chains * length))
    return {k: np.asarray(x).reshape(chains, length, *x.shape[1:]) for k, x in outputs.items()}


@jit_bounded
def _computed(model, kept, keys):
    def one(given):
        kept, key = given
        return model.outputs_of({**model.inputs.values(model.draw(key)), **kept})

    return jax.lax.map(one, (jax.tree.map(jnp.asarray, kept), keys), batch_size=_BATCH)


def _of_numpyro(model, draws: "DataTree", key, args, kwargs) -> dict[str, np.ndarray]:
    from numpyro.infer import Predictive

    known = {own_name(x): jnp.asarray(x.values) for x in draws["posterior"].data_vars.values()}
    with TRACING, explaining("the NumPyro model"):
        sites = _sites(model, key, args, kwargs)
        if not known.keys() & sites:
            raise DataError(
                f"none of the draws' variables ({', '.join(known)}) is a site of the model, which "
                f"are {', '.join(sorted(sites))}: nothing would be known of it."
            )
        drawn = Predictive(model, posterior_samples=known, batch_ndims=2)(key, *args, **kwargs)
    return {name: np.asarray(x) for name, x in drawn.items()}


def _sites(model, key, args, kwargs) -> set[str]:
    """The names of a NumPyro model's sites."""
    from numpyro import handlers

    names: set[str] = set()

    def run(key):
        names.update(handlers.trace(handlers.seed(model, key)).get_trace(*args, **kwargs))

    jax.eval_shape(run, key)
    return names
