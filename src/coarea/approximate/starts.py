"""Where chains start: close to the data."""

from collections.abc import Mapping
from typing import Any, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from coarea.approximate.method import Options
from coarea.approximate.softened import Softened
from coarea.errors import CoareaError, StartError
from coarea.generators import AbstractGenerator
from coarea.initialisation import find_start
from coarea.keys import key_from_seed
from coarea.manifolds import condition
from coarea.xla import jit_bounded

# Prior draws of which each chain takes the best.
_CANDIDATES = 512


def near_the_data(target: Softened, options: Options) -> np.ndarray:
    """A start for each chain: given, drawn from the prior if that comes near, or solved for.

    What solves for it is `find_start`: simulations that reproduce the data are near them for every
    tolerance, but only models that can be differentiated have them.
    """
    u = options.given_starts(target.num_inputs)
    if u is None:
        u, merit = best_of_prior(Nearness(target), options)
        if not np.all(-merit <= float(target.typical_distance)):
            found = on_the_data(target.model, target.observed, options)
            u = u if found is None else found
    distance, log_likelihood = _seen(target, u)
    if not np.all(np.isfinite(log_likelihood)):
        far = ~np.isfinite(log_likelihood)
        raise StartError(
            f"{np.sum(far)} of {options.chains} chains have no start that is close to the data "
            f"and possible: the smallest distance seen is {np.min(distance):.3g}, with "
            f"epsilon={float(target.epsilon):.3g}. Use a larger epsilon, or give start=, a row of "
            "inputs for each chain."
        )
    return u


class Nearness(eqx.Module):
    """The nearer a simulation is, the better a start; those that cannot be are the worst."""

    target: Softened

    @property
    def model(self) -> AbstractGenerator:
        """What to draw from."""
        return self.target.model

    def merit(self, u: Float[Array, " M"]) -> Float[Array, ""]:
        """Less the distance, −∞ where the model's own factor forbids it."""
        everywhere = self.target.at(jnp.asarray(jnp.inf)).simulate(u)
        return jnp.where(everywhere.log_likelihood > -jnp.inf, -everywhere.distance, -jnp.inf)


@jit_bounded
def _seen(target: Softened, u):
    def one(u):
        at = target.simulate(u)
        return at.distance, at.log_likelihood

    return jax.lax.map(one, u)


def on_the_data(
    model: AbstractGenerator, observed: Mapping[str, Any], options: Options
) -> np.ndarray | None:
    """For each chain inputs that reproduce the data; None if the model has none to be found."""
    try:
        posterior = condition(model, observed, structure="dense")
        return find_start(posterior, key_from_seed(options.seed), options.chains)
    except CoareaError:
        return None


class Candidates(Protocol):
    """Draws from a model's prior, better and worse. A module, so that it is compiled once."""

    @property
    def model(self) -> AbstractGenerator:
        """What to draw from."""
        ...

    def merit(self, u: Float[Array, " M"]) -> Float[Array, ""]:
        """How good a start it is."""
        ...


def best_of_prior(candidates: Candidates, options: Options) -> tuple[np.ndarray, np.ndarray]:
    """For each chain, of many prior draws the one of greatest merit; and that merit."""
    # A stream of its own, apart from those of the chains.
    key = jax.random.fold_in(key_from_seed(options.seed), 2**31)
    found = _best_of_prior(candidates, jax.random.split(key, options.chains))
    return jax.tree.map(np.asarray, found)


@jit_bounded
def _best_of_prior(candidates: Candidates, keys):
    def one(key):
        u = jax.vmap(candidates.model.draw)(jax.random.split(key, _CANDIDATES))
        merit = jax.vmap(candidates.merit)(u)
        merit = jnp.where(jnp.isnan(merit), -jnp.inf, merit)
        best = jnp.argmax(merit)
        return u[best], merit[best]

    return jax.lax.map(one, keys)
