"""Start points of chains, close to the data."""

from collections.abc import Mapping
from typing import Any, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from coarea.approximate.method import Options
from coarea.approximate.softened import Softened
from coarea.arguments import require_memory
from coarea.errors import CoareaError, StartError
from coarea.generators import AbstractGenerator
from coarea.initialisation import find_start
from coarea.keys import key_from_seed
from coarea.manifolds import condition
from coarea.xla import jit_bounded

# Number of prior draws from which each chain takes the best.
CANDIDATES = 512


def near_the_data(target: Softened, options: Options) -> np.ndarray:
    """A start for each chain: the given ones, the best prior draws, or solutions by `find_start`.

    `find_start` is used if the prior draws are not close enough. It returns simulations that
    reproduce the data, which are close enough for every tolerance. It needs a differentiable model.
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
    """Ranks start points by distance from the data; those with zero density rank last."""

    target: Softened

    @property
    def model(self) -> AbstractGenerator:
        """The model whose prior is drawn from."""
        return self.target.model

    def merit(self, u: Float[Array, " M"]) -> Float[Array, ""]:
        """Minus the distance; −∞ where the model's own factor is zero."""
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
    """For each chain, inputs that reproduce the data; None if none can be found."""
    try:
        posterior = condition(model, observed, structure="dense")
        return find_start(posterior, key_from_seed(options.seed), options.chains)
    except CoareaError:
        return None


class Candidates(Protocol):
    """Ranks prior draws as start points; implementations are modules, to be compiled only once."""

    @property
    def model(self) -> AbstractGenerator:
        """The model whose prior is drawn from."""
        ...

    def merit(self, u: Float[Array, " M"]) -> Float[Array, ""]:
        """A score of u as a start point; greater is better."""
        ...


def best_of_prior(candidates: Candidates, options: Options) -> tuple[np.ndarray, np.ndarray]:
    """For each chain, the prior draw of greatest merit among many, and its merit."""
    chains = options.chains
    size = candidates.model.inputs.size + 3  # with a key and a merit
    require_memory(8.0 * chains * size, f"Start points of {chains} chains", "Ask for fewer chains.")
    # This stream of random numbers must differ from those of the chains.
    key = jax.random.fold_in(key_from_seed(options.seed), 2**31)
    found = _best_of_prior(candidates, jax.random.split(key, chains))
    return jax.tree.map(np.asarray, found)


@jit_bounded
def _best_of_prior(candidates: Candidates, keys):
    def one(key):
        u = jax.vmap(candidates.model.draw)(jax.random.split(key, CANDIDATES))
        merit = jax.vmap(candidates.merit)(u)
        merit = jnp.where(jnp.isnan(merit), -jnp.inf, merit)
        best = jnp.argmax(merit)
        return u[best], merit[best]

    return jax.lax.map(one, keys)
