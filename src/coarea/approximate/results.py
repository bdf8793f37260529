"""Independent or weighted draws as ArviZ data, and the error raised when there are none."""

import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from coarea.approximate.method import stored_shapes
from coarea.approximate.softened import Softened
from coarea.approximate.weights import effective_size, normalised
from coarea.arguments import require_memory
from coarea.errors import AcceptanceError, SamplingWarning
from coarea.execution.blocks import Block
from coarea.execution.recording import Keep
from coarea.results.datatree import as_datatree, saving, warn_of
from coarea.results.diagnose import not_finite

if TYPE_CHECKING:
    from xarray import DataTree


# About how many numbers are kept of a draw beside its inputs and outputs.
_STATISTICS = 4


class WeightedStats(NamedTuple):
    """Statistics of draws that are not from a Markov chain; `weight` is None if all are equal."""

    distance: Float[np.ndarray, "chain draw"]
    weight: Float[np.ndarray, "chain draw"] | None


def check_storable(target: Softened, keep: Keep, count: int, what: str, cure: str) -> None:
    """Refuse names that cannot be stored, and `count` draws called `what` that do not fit."""
    latents = stored_shapes(target, keep)["posterior"]
    size = target.num_inputs + sum(x.size for x in latents.values())
    # Draws come in batches, which are then copied into one array.
    require_memory(2 * 8.0 * count * (size + _STATISTICS), f"{count} {what}", cure)


def accepted(
    target: Softened,
    u: Float[np.ndarray, "draw M"],
    latents: dict[str, np.ndarray],
    distance: Float[np.ndarray, " draw"],
    log_weight: Float[np.ndarray, " draw"] | None,
    keep: Keep,
    about: dict[str, Any],
) -> "DataTree":
    """The accepted draws as one chain of ArviZ data, with weights unless all are equal."""
    weight = None if log_weight is None else normalised(log_weight)
    size = distance.size if log_weight is None else float(effective_size(log_weight))
    inputs = jax.vmap(target.inputs)(jnp.asarray(u)) if keep == "inputs" else None
    block = Block(latents, inputs, WeightedStats(distance, weight))
    about = {
        "epsilon": float(target.epsilon),
        "kernel": target.kernel,
        "accepted": distance.size,
        "effective_size": size,
        **about,
    }
    return as_datatree(jax.tree.map(lambda x: np.asarray(x)[None], block), target.observed, about)


def warned(draws: "DataTree") -> "DataTree":
    """The draws, after a warning if they have values that are not finite.

    Mixing is not looked at: the draws are not a Markov chain.
    """
    with saving(draws):
        if problems := not_finite(draws):
            warn_of(problems, stacklevel=4)
    return draws


def nothing_accepted(smallest: float, simulations: int, target: Softened) -> AcceptanceError:
    """The error for no accepted simulation; it reports the smallest distance seen."""
    seen = (
        f"the smallest distance seen is {smallest:.3g}"
        if np.isfinite(smallest)
        else "none was finite"
    )
    return AcceptanceError(
        f"none of {simulations} simulations is within epsilon={float(target.epsilon):.3g} of the "
        f"{target.num_observed} observed values: {seen}. Use a larger epsilon, fewer values "
        "(model.summarise), or coarea.condition, which conditions on all of them exactly.",
        smallest,
    )


def warn_if_interrupted(done: int, wanted: int) -> None:
    """Warn if Ctrl-C stopped the simulations early."""
    if done < wanted:
        warnings.warn(
            f"interrupted: {done} of {wanted} simulations were made.", SamplingWarning, stacklevel=4
        )
