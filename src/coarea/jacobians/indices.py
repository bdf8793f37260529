"""Index arrays that are known at compile time."""

import math

import numpy as np
from jaxtyping import Array, Float
from typing_extensions import override

# A padding index: `take` returns zero for it, and `put` drops its value.
PAD = np.iinfo(np.int32).max


class Indices:
    """An array of indices that is hashed by its values; contiguous ones are taken as a slice."""

    def __init__(self, values):
        values = np.asarray(values, dtype=np.int32)
        self.shape = values.shape
        self.flat = values.ravel()
        self.is_pad = self.flat == PAD
        self._bytes = self.flat.tobytes()
        first = int(self.flat[0]) if self.flat.size else 0
        is_run = np.array_equal(self.flat, first + np.arange(self.flat.size))
        self._run = (first, first + self.flat.size) if is_run else None

    @override
    def __hash__(self):
        return hash((self.shape, self._bytes))

    @override
    def __eq__(self, other):
        return (
            isinstance(other, Indices) and self.shape == other.shape and self._bytes == other._bytes
        )

    def __len__(self):
        return self.shape[0]

    @override
    def __repr__(self):
        return f"Indices({self.shape}, {'a run' if self._run else 'scattered'})"

    @property
    def count(self) -> int:
        """The number of indices that are not padding."""
        return int(np.count_nonzero(~self.is_pad))

    def take(self, x: Array) -> Array:
        """These elements along the first axis, in the shape of the indices."""
        if self._run is not None:
            taken = x[slice(*self._run)]
        elif self.is_pad.any():
            taken = x.at[self.flat].get(mode="fill", fill_value=0)
        else:
            taken = x[self.flat]
        return taken.reshape(*self.shape, *x.shape[1:])

    def put(self, x: Array, values: Array) -> Array:
        """x with these elements replaced."""
        values = values.reshape(math.prod(self.shape), *x.shape[1:])
        if self._run == (0, x.shape[0]):
            return values
        if self._run is not None:
            return x.at[slice(*self._run)].set(values)
        return x.at[self.flat].set(values, mode="drop")

    def is_followed_by(self, others: "Indices", size: int) -> bool:
        """Whether these indices followed by the others are 0, 1, … `size` − 1."""
        middle = self.flat.size
        return self._run == (0, middle) and others._run == (middle, size)

    def mark(self, size: int) -> Float[np.ndarray, " size"]:
        """A vector with ones at these indices and zeros elsewhere."""
        return np.bincount(self.flat[~self.is_pad], minlength=size).astype(float)
