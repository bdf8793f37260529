"""Weighted draws: normalised weights, effective sample size and resampling."""

from typing import TYPE_CHECKING

import jax.numpy as jnp
import numpy as np
from blackjax.smc.ess import ess
from blackjax.smc.resampling import systematic
from jaxtyping import Array, ArrayLike, Float

from coarea.arguments import check_draws, checked_count, require_memory
from coarea.errors import DataError
from coarea.keys import checked_seed, key_from_seed
from coarea.precision import top_level

if TYPE_CHECKING:
    from xarray import DataTree


def normalised(log_weights: np.ndarray) -> np.ndarray:
    """Weights that sum to one."""
    weights = np.exp(log_weights - np.max(log_weights))
    return weights / np.sum(weights)


def effective_size(log_weights: Float[ArrayLike, " n"]) -> Float[Array, ""]:
    """The number of equally weighted independent draws that are worth as much (Kong)."""
    log_weights = jnp.asarray(log_weights)
    return jnp.where(jnp.all(jnp.isneginf(log_weights)), 0.0, ess(log_weights))


def _check_memory(draws: "DataTree", num: int) -> None:
    """Refuse to resample more draws than fit into memory."""
    drawn = [x for group in draws.subtree for x in group.data_vars.values() if "draw" in x.dims]
    one = sum(x.nbytes / x.sizes["draw"] for x in drawn)
    # Resampling itself takes a few numbers of each draw.
    require_memory(num * (one + 4 * 8.0), f"{num} draws", "Ask for fewer draws: a smaller num.")


@top_level
def resample(draws: "DataTree", num: int, seed: int = 0) -> "DataTree":
    """Equally weighted draws from the weighted draws of `reject` or `optimisation_monte_carlo`.

    Resampling is systematic: the number of copies of a draw differs by less than one from `num`
    times its weight. Some draws occur more than once; the attribute `effective_size` is the
    effective sample size of the weighted draws.

    >>> import coarea as co
    >>> model = co.Generator(lambda u: {"z": u["z"], "y": u["z"] + u["n"]}, {"z": (), "n": ()})
    >>> weighted = co.approximate.reject(
    ...     model, {"y": 1.0}, epsilon=0.5, kernel="gaussian", simulations=2000
    ... )
    >>> co.approximate.resample(weighted, 500).posterior["z"].shape
    (1, 500)
    """
    num, seed = checked_count("num", num), checked_seed(seed)
    check_draws(draws, "resample")
    stats = draws["sample_stats"].dataset
    if "weight" not in stats or stats.sizes["chain"] != 1:
        raise DataError("these draws have no weights: they all count alike already.")
    _check_memory(draws, num)
    weights = jnp.asarray(stats["weight"].values[0])
    chosen = np.sort(np.asarray(systematic(key_from_seed(seed), weights, num)))

    def choose(group):
        if "draw" not in group.dims:
            return group
        group = group.isel(draw=chosen).assign_coords(draw=np.arange(num))
        return group.drop_vars("weight", errors="ignore")

    return draws.map_over_datasets(choose)
