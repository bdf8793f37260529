"""What is stored of each draw."""

from collections.abc import Iterable
from typing import Any, Literal, Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from coarea.errors import DataError, SettingError
from coarea.manifolds.target import AbstractReporter

Keep = Literal["inputs"] | None


class Reports(Protocol):
    """What is asked for the names and values of a draw."""

    def latents(self, u: Float[Array, " M"]) -> dict[str, Array]:
        """What a user wants to know of a draw, by name."""
        ...

    def inputs(self, u: Float[Array, " M"]) -> dict[str, Array]:
        """The draw itself, by name."""
        ...


def check_keep(keep: Any) -> None:
    """Refuse an unknown value of `keep`."""
    if keep not in (None, "inputs"):
        raise SettingError(f"keep={keep!r}: choose 'inputs' or None.")


def recorded(reporter: AbstractReporter, u: Float[Array, " M"], keep_inputs: bool):
    """What is stored of a position: latents, and inputs if they are wanted."""
    latents = {name: x for name, x in reporter.latents(u).items() if name not in reporter.fixed}
    return latents, reporter.inputs(u) if keep_inputs else None


def recorded_shapes(
    source: Reports, num_inputs: int, keep: Keep, fixed: Iterable[str] = ()
) -> dict[str, dict[str, Any]]:
    """The shapes of what is stored of each draw, by group; refused if there is nothing.

    Latents that are `fixed` are the same in every draw, and not stored with each.
    """
    u = jax.ShapeDtypeStruct((num_inputs,), jnp.zeros(()).dtype)
    latents, inputs = jax.eval_shape(lambda u: (source.latents(u), source.inputs(u)), u)
    if not latents and keep is None:
        raise DataError(
            "every output was observed, so there is nothing left to report. Let the generator "
            "return the quantities of interest as further outputs, or pass keep='inputs'."
        )
    latents = {name: x for name, x in latents.items() if name not in fixed}
    return {"posterior": latents} | ({"inputs": inputs} if keep == "inputs" else {})
