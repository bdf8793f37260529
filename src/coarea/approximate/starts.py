"""Where chains start: close to the data."""

from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from coarea.approximate.method import Options
from coarea.approximate.softened import Softened
from coarea.errors import CoareaError, StartError
from coarea.generators import AbstractGenerator
from coarea.manifolds import condition
from coarea.sampling import find_start

# Prior draws of which each chain takes the best.
_CANDIDATES = 512


def near_the_data(target: Softened, options: Options) -> np.ndarray:
    """A start for each chain: given, drawn from the prior if that comes near, or solved for.

    What solves for it is `find_start`: simulations that reproduce the data are near them for every
    tolerance, but only models that can be differentiated have them.
    """
    given = options.given_starts(target.num_inputs)
    if given is None:
        key = jax.random.key(options.seed)
        u, log_closeness = best_of_prior(
            target.model, lambda u: -target.distance(u), key, options.chains
        )
        if np.all(-log_closeness <= float(target.typical_distance)):
            return u
        found = on_the_data(target.model, target.observed, options)
        if found is not None:
            return found
        given = u
    distance = np.asarray(jax.jit(jax.vmap(target.distance))(given))
    within = target.epsilon if target.kernel == "uniform" else np.finfo(float).max
    too_far = ~(distance <= float(within))
    if np.any(too_far):
        raise StartError(
            f"{np.sum(too_far)} of {options.chains} chains have no start that is close to the "
            f"data: the smallest distance seen is {np.min(distance):.3g}, with "
            f"epsilon={float(target.epsilon):.3g}. Use a larger epsilon, or give start=, a row of "
            "inputs for each chain."
        )
    return given


def on_the_data(
    model: AbstractGenerator, observed: Mapping[str, Any], options: Options
) -> np.ndarray | None:
    """For each chain inputs that reproduce the data; None if the model has none to be found."""
    try:
        posterior = condition(model, observed, structure="dense")
        return find_start(posterior, jax.random.key(options.seed), options.chains)
    except CoareaError:
        return None


def best_of_prior(
    model: AbstractGenerator,
    merit: Callable[[Float[Array, " M"]], Float[Array, ""]],
    key: Key[Array, ""],
    chains: int,
) -> tuple[np.ndarray, np.ndarray]:
    """For each chain, of many prior draws the one of greatest merit; and that merit."""

    @eqx.filter_jit
    def search(model, key):
        def one(key):
            u = jax.vmap(model.draw)(jax.random.split(key, _CANDIDATES))
            found = jax.vmap(merit)(u)
            found = jnp.where(jnp.isnan(found), -jnp.inf, found)
            best = jnp.argmax(found)
            return u[best], found[best]

        return jax.lax.map(one, jax.random.split(key, chains))

    return jax.tree.map(np.asarray, search(model, key))
