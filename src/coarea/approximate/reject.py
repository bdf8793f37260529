"""ABC rejection: simulate from the prior and keep the simulations close to the data."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from coarea.approximate.batches import batch_size, map_batches
from coarea.approximate.method import stored_shapes
from coarea.approximate.results import (
    accepted,
    check_storable,
    nothing_accepted,
    warn_if_interrupted,
    warned,
)
from coarea.approximate.softened import Closeness, Softened, soften
from coarea.arguments import checked_count, checked_number, require_memory
from coarea.errors import SettingError
from coarea.execution.recording import Keep, check_keep
from coarea.keys import checked_seed, key_from_seed
from coarea.precision import top_level

if TYPE_CHECKING:
    from xarray import DataTree

# Simulations whose log weight is this far below the largest one are dropped.
_WORTHLESS = 50.0


@top_level
def reject(
    model: Any,
    observed: Mapping[str, Any],
    *,
    epsilon: float | None = None,
    quantile: float | None = None,
    simulations: int = 100_000,
    kernel: Closeness = "uniform",
    seed: int = 0,
    keep: Keep = None,
) -> "DataTree":
    """ABC rejection: keep the simulations from the prior close to the data (Pritchard et al.).

    The model is run `simulations` times. With the uniform kernel the accepted draws are independent
    draws from the posterior given softened data. The tolerance is `epsilon`, or else the largest
    distance among the nearest `quantile` of all simulations. With the Gaussian kernel every
    simulation has a weight, `sample_stats["weight"]`; `resample` turns these into equally weighted
    draws.

    The method only needs to run the model. It is the right tool for a first look, for a few summary
    statistics and for a broad posterior. The accepted fraction falls like ε to the power of the
    number of observed values.

    >>> import coarea as co
    >>> model = co.Generator(lambda u: {"z": u["z"], "y": u["z"] + u["n"]}, {"z": (), "n": ()})
    >>> draws = co.approximate.reject(model, {"y": 1.0}, quantile=0.01, simulations=50_000)
    >>> draws.posterior["z"].shape
    (1, 500)
    """
    simulations = checked_count("simulations", simulations)
    seed = checked_seed(seed)
    check_keep(keep)
    if (epsilon is None) == (quantile is None):
        raise SettingError("give epsilon, or else quantile: one of them says what is close.")
    if quantile is not None:
        quantile = checked_number("quantile", quantile, 0.0, math.nextafter(1.0, 2.0), 0.01)
        if kernel != "uniform":
            raise SettingError("quantile is for the uniform kernel: give the Gaussian an epsilon.")
    target = soften(model, observed, np.inf if epsilon is None else epsilon, kernel)
    stored_shapes(target, keep)  # refuses names that cannot be stored
    require_memory(
        8.0 * simulations, f"The numbers of {simulations} simulations", "Use fewer simulations."
    )
    simulate = Simulations(target, key_from_seed(seed))
    nearest = Nearest(target, None if quantile is None else max(1, round(quantile * simulations)))
    batch = batch_size(target.num_inputs)
    numbers = np.arange(simulations)
    _, done = map_batches(simulate.distance, numbers, batch, nearest.add, partial=True)
    warn_if_interrupted(done, simulations)
    if nearest.distance.size == 0:
        raise nothing_accepted(nearest.smallest, done, target)
    if epsilon is None:
        target = target.at(jnp.asarray(nearest.distance.max()))
    cure = "Use a smaller epsilon or quantile, or fewer simulations."
    check_storable(target, keep, nearest.numbers.size, "accepted simulations", cure)
    (u, latents), _ = map_batches(simulate.latents, nearest.numbers, batch)
    log_weight = nearest.log_weight if kernel == "gaussian" or model.has_factor else None
    about = {"method": "ABC rejection", "seed": seed, "simulations": done}
    return warned(accepted(target, u, latents, nearest.distance, log_weight, keep, about))


class Simulations(eqx.Module):
    """Numbered simulations: the same number always gives the same simulation."""

    target: Softened
    key: Key[Array, ""]

    def draw(self, number):
        """The random inputs."""
        return self.target.model.draw(jax.random.fold_in(self.key, number))

    def distance(self, number):
        """The distance from the data, and the log weight."""
        at = self.target.simulate(self.draw(number))
        return at.distance, at.log_likelihood

    def latents(self, number):
        """The inputs, and the outputs that were not observed."""
        at = self.target.simulate(self.draw(number))
        return at.u, at.latents


class Nearest:
    """The accepted simulations so far: their numbers, distances and log weights."""

    def __init__(self, target: Softened, most: int | None):
        self._kernel, self._most = target.kernel, most
        self.numbers = np.empty(0, dtype=int)
        self.distance = np.empty(0)
        self.log_weight = np.empty(0)
        self.smallest = np.inf

    def add(self, found, numbers: slice) -> None:
        """Add a batch of simulations."""
        distance, log_weight = found
        self.smallest = min(self.smallest, float(np.min(distance)))
        close = np.flatnonzero(log_weight > -np.inf)
        self.numbers = np.concatenate([self.numbers, numbers.start + close])
        self.distance = np.concatenate([self.distance, distance[close]])
        self.log_weight = np.concatenate([self.log_weight, log_weight[close]])
        if self._most is not None and self.distance.size > self._most:
            nearest = np.argpartition(self.distance, self._most - 1)[: self._most]
            self._keep(np.sort(nearest))
        elif self._kernel == "gaussian" and self.numbers.size:
            self._keep(self.log_weight > self.log_weight.max() - _WORTHLESS)

    def _keep(self, which) -> None:
        self.numbers = self.numbers[which]
        self.distance, self.log_weight = self.distance[which], self.log_weight[which]
