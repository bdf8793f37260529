"""Observations: the observed values of elements of a generator's outputs."""

from collections.abc import Iterable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from coarea.errors import DataError
from coarea.generators import AbstractGenerator
from coarea.generators.data import real_values


class Observation(eqx.Module):
    """The observed values of one output; `index` holds their positions if others are missing."""

    name: str = eqx.field(static=True)
    shape: tuple[int, ...] = eqx.field(static=True)
    values: np.ndarray
    index: np.ndarray | None

    def residual(self, output: Array) -> Float[Array, " n"]:
        """Computed minus observed values, without missing ones."""
        is_real = jnp.issubdtype(output.dtype, jnp.floating)
        computed = output.ravel() if is_real else output.ravel().astype(float)
        if self.index is not None:
            computed = computed[self.index]
        return computed - self.values.astype(computed.dtype)

    def as_given(self) -> np.ma.MaskedArray:
        """The data in their original shape, with missing values masked."""
        whole = np.ma.masked_all(self.shape, dtype=float)
        whole.reshape(-1)[slice(None) if self.index is None else self.index] = self.values
        return whole

    def describe(self, constraint: int) -> str:
        """The name of one observed element."""
        flat = constraint if self.index is None else int(self.index[constraint])
        place = ", ".join(str(int(i)) for i in np.unravel_index(flat, self.shape))
        return f"{self.name}[{place}]" if place else self.name


def as_given(observations: Iterable[Observation]) -> dict[str, np.ma.MaskedArray]:
    """The data by name, with missing values masked."""
    return {o.name: o.as_given() for o in observations}


def unobserved(
    outputs: Mapping[str, Array], observations: Iterable[Observation]
) -> dict[str, Array]:
    """The outputs that were not observed, or only partly."""
    whole = {o.name for o in observations if o.index is None}
    return {name: x for name, x in outputs.items() if name not in whole}


def observe(
    model: AbstractGenerator, observed: Mapping[str, Any]
) -> tuple[tuple[Observation, ...], Mapping[str, jax.ShapeDtypeStruct]]:
    """Check the data against the model's outputs; return observations and output shapes."""
    if not isinstance(observed, Mapping) or not observed:
        raise DataError("observed must be a dictionary from output names to values, not empty.")
    outputs = jax.eval_shape(lambda u: model.outputs(u), model.inputs.example)
    made = [_observation(name, given, outputs) for name, given in observed.items()]
    present = tuple(observation for observation in made if observation.values.size)
    if not present:
        raise DataError("every observed value is masked: there is nothing to condition on.")
    return present, outputs


def _observation(name: str, given: Any, outputs: Mapping[str, jax.ShapeDtypeStruct]) -> Observation:
    if name not in outputs:
        raise DataError(
            f"{name!r} is not an output of the generator, whose outputs are {', '.join(outputs)}."
        )
    output = outputs[name]
    data = real_values(name, given).astype(float)
    if data.shape != output.shape:
        raise DataError(
            f"observed {name!r} has shape {data.shape}, but the generator's output {name!r} has "
            f"shape {output.shape}."
        )
    missing = np.ma.getmaskarray(data).ravel()
    values = np.asarray(data.data).ravel()[~missing]
    if not np.all(np.isfinite(values)):
        first = np.unravel_index(np.flatnonzero(~missing)[~np.isfinite(values)][0], data.shape)
        raise DataError(
            f"observed {name!r} has values that are not finite, the first at index "
            f"{tuple(int(i) for i in first)}. If they are missing, mask them: "
            "numpy.ma.masked_invalid(data)."
        )
    index = np.flatnonzero(~missing) if missing.any() else None
    return Observation(name, output.shape, values, index)
