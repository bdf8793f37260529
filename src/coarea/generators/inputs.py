"""Named random inputs: a flat vector `u` internally, a dictionary of values for the user."""

import math
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Collection, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key
from typing_extensions import override

from coarea.errors import ModelError


class AbstractInput(eqx.Module):
    """One random input: `size` unconstrained coordinates, their density, and their value."""

    @property
    @abstractmethod
    def size(self) -> int:
        """The number of coordinates."""

    @property
    @abstractmethod
    def is_standard_normal(self) -> bool:
        """Whether the coordinates are independent standard normals."""

    @property
    def is_proper(self) -> bool:
        """Whether the base density can be drawn from; if not, `draw` returns a start point."""
        return True

    @abstractmethod
    def value(self, u: Float[Array, " size"]) -> Array:
        """The value that the generator's function gets."""

    @abstractmethod
    def log_density(self, u: Float[Array, " size"]) -> Float[Array, ""]:
        """The log of the base density ρ of these coordinates."""

    @abstractmethod
    def draw(self, key: Key[Array, ""]) -> Float[Array, " size"]:
        """Coordinates drawn from the base density."""


class AbstractArray(AbstractInput):
    """An input whose value is its coordinates, in a given shape."""

    shape: eqx.AbstractVar[tuple[int, ...]]

    @property
    @override
    def size(self):
        return math.prod(self.shape)

    @override
    def value(self, u):
        return u.reshape(self.shape)


class StandardNormal(AbstractArray):
    """Independent standard normal values of a given shape."""

    shape: tuple[int, ...] = eqx.field(static=True)

    @property
    @override
    def is_standard_normal(self):
        return True

    @override
    def log_density(self, u):
        return standard_normal_log_density(u)

    @override
    def draw(self, key):
        return jax.random.normal(key, (self.size,))


class Flat(AbstractArray):
    """Real coordinates with constant density; the generator itself supplies their density.

    They are drawn uniformly between -2 and 2, like the initial values that NumPyro uses for sites
    that it cannot draw.
    """

    shape: tuple[int, ...] = eqx.field(static=True)

    @property
    @override
    def is_standard_normal(self):
        return False

    @override
    def log_density(self, u):
        return jnp.zeros((), u.dtype)

    @override
    def draw(self, key):
        return jax.random.uniform(key, (self.size,), float, -2.0, 2.0)


def standard_normal_log_density(u: Float[Array, " size"]) -> Float[Array, ""]:
    """The log density of independent standard normals."""
    return -0.5 * u @ u - 0.5 * math.log(2 * math.pi) * u.size


class Inputs(eqx.Module):
    """All inputs of a generator, concatenated in the order in which they were named."""

    names: tuple[str, ...] = eqx.field(static=True)
    parts: tuple[AbstractInput, ...]

    def __init__(self, specification: Mapping[str, Any]):
        if not isinstance(specification, Mapping) or not specification:
            raise ModelError(
                "inputs must be a dictionary that names each random input, such as "
                f"{{'z': 4, 'noise': (50, 2)}}; got {specification!r}."
            )
        self.names = tuple(specification)
        self.parts = tuple(_input(name, given) for name, given in specification.items())
        if self.size == 0:
            raise ModelError("the inputs have no elements: at least one random number is needed.")

    @property
    def size(self) -> int:
        """M, the length of the flat vector."""
        return sum(part.size for part in self.parts)

    @property
    def example(self) -> jax.ShapeDtypeStruct:
        """The shape of the flat vector in double precision, for tracing functions."""
        return jax.ShapeDtypeStruct((self.size,), jnp.float64)

    @property
    def example_values(self) -> dict[str, jax.ShapeDtypeStruct]:
        """The shapes of the values, by name."""
        return jax.eval_shape(lambda u: OrderedDict(self.values(u)), self.example)

    def copied(self) -> "Inputs":
        """The same inputs with copies of all arrays, unaffected by later changes to them."""
        return jax.tree.map(lambda x: np.array(x) if isinstance(x, np.ndarray) else x, self)

    @property
    def groups(self) -> np.ndarray:
        """For each coordinate of the flat vector, the number of its input."""
        return np.repeat(np.arange(len(self.parts)), self.sizes)

    @property
    def sizes(self) -> list[int]:
        """The numbers of coordinates of the inputs."""
        return [part.size for part in self.parts]

    def check_proper(self, caller: str) -> None:
        """Raise if an input has an improper prior, which cannot be drawn from."""
        for name, part in zip(self.names, self.parts, strict=True):
            if not part.is_proper:
                raise ModelError(
                    f"{caller} draws from the prior, which input {name!r} does not have: its "
                    "distribution is improper. coarea.condition and coarea.sample do without."
                )

    @property
    def is_standard_normal(self) -> bool:
        """Whether every coordinate of the flat vector is standard normal."""
        return all(part.is_standard_normal for part in self.parts)

    @property
    def normals(self) -> np.ndarray:
        """Which coordinates of the flat vector are standard normal."""
        return np.repeat([p.is_standard_normal for p in self.parts], [p.size for p in self.parts])

    def only(self, names: Collection[str]) -> "Inputs":
        """The named inputs alone, in the order they have here."""
        known = dict(zip(self.names, self.parts, strict=True))
        return Inputs({name: part for name, part in known.items() if name in names})

    def places(self, names: Collection[str]) -> np.ndarray:
        """The positions of the named inputs' coordinates in the flat vector."""
        return np.flatnonzero(np.isin(self.groups, [self.names.index(name) for name in names]))

    def values(self, u: Float[Array, " M"] | tuple[Array, ...]) -> dict[str, Array]:
        """The generator function's dictionary of values, from the flat vector or its parts."""
        pieces = u if isinstance(u, tuple) else self.split(u)
        return {n: p.value(x) for n, p, x in zip(self.names, self.parts, pieces, strict=True)}

    def log_density(self, u: Float[Array, " M"]) -> Float[Array, ""]:
        """The log of ρ(u)."""
        if self.is_standard_normal:
            return standard_normal_log_density(u)
        pieces = self.split(u)
        terms = [p.log_density(x) for p, x in zip(self.parts, pieces, strict=True)]
        return jnp.sum(jnp.stack(terms))

    def draw(self, key: Key[Array, ""]) -> Float[Array, " M"]:
        """One draw from ρ."""
        if all(part.is_standard_normal for part in self.parts):
            return jax.random.normal(key, (self.size,), float)
        keys = jax.random.split(key, len(self.parts))
        draws = [p.draw(k).ravel() for p, k in zip(self.parts, keys, strict=True)]
        return jnp.concatenate(draws).astype(float)

    def split(self, u: Float[Array, " M"]) -> tuple[Array, ...]:
        """The coordinates of each input."""
        pieces, first = [], 0
        for part in self.parts:
            pieces.append(u[first : first + part.size])
            first += part.size
        return tuple(pieces)


def _is_length(n: Any) -> bool:
    return isinstance(n, int | np.integer) and not isinstance(n, bool) and int(n) >= 0


def _input(name: str, given: Any) -> AbstractInput:
    if isinstance(given, AbstractInput):
        return given
    shape = tuple(given) if isinstance(given, list | tuple) else (given,)
    if all(_is_length(n) for n in shape):
        return StandardNormal(tuple(int(n) for n in shape))
    from coarea.generators.distributions import input_from  # NumPyro is slow to import

    return input_from(name, given)
