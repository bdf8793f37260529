"""When a projection has converged."""

from dataclasses import replace
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from coarea.manifolds import AbstractTarget

_ROOT_TOLERANCE = 1e-5


class Tolerance(eqx.Module):
    """When a projection has converged: the residual and the last change of position.

    Both are relative, to the size of the constrained quantities and to that of the position, or to
    a `size` given once for all. With a `known_root`, a solution that is known, it is also enough to see
    that this is where the solver goes: how close is a tolerance of its own.
    """

    residual: float
    position: float
    size: Float[Array, ""] | None = None
    known_root: Float[Array, " M"] | None = None

    @property
    def root_tolerance(self) -> float:
        """How close to the known_root, relative to the size of positions, no other solution is.

        Two that meet do so where J Jₒᵀ is singular, and their distance grows as a root: of steps
        that end root_tolerance such a place one in the square of this number's inverse has them so close.
        """
        return max(20 * self.residual, _ROOT_TOLERANCE)

    @classmethod
    def following(cls, residual: float) -> "Tolerance":
        """The change of position held to ten times the tolerance of the residual."""
        return cls(residual, 10 * residual)

    def sized(self, target: AbstractTarget, u: Float[Array, " M"]) -> "Tolerance":
        """With a size, that of u if none was given."""
        if self.size is not None:
            return self
        return replace(self, size=position_size(target, u))

    def is_met(
        self,
        target: AbstractTarget,
        u: Float[Array, " M"],
        residual: Float[Array, ""],
        moved: Float[Array, ""],
    ) -> Bool[Array, ""]:
        """Whether a largest residual and a largest change that led to u are small enough."""
        bounds = self.at(target, u)
        return (residual <= bounds.residual) & (moved <= bounds.moved)

    def at(self, target: AbstractTarget, u: Float[Array, " M"]) -> "Bounds":
        """In absolute terms, for positions of the size of u."""
        size = position_size(target, u) if self.size is None else self.size
        bounds = Bounds(self.residual * target.scale, self.position * size)
        if self.known_root is None:
            return bounds
        return bounds._replace(
            known_root=self.known_root, root_tolerance=self.root_tolerance * size
        )


class Bounds(NamedTuple):
    """A tolerance in absolute terms."""

    residual: Float[Array, ""]
    moved: Float[Array, ""]
    known_root: Float[Array, " M"] | None = None
    root_tolerance: Float[Array, ""] | float = 0.0

    def error(self, c: Float[Array, " N"], step: Float[Array, " M"]) -> Float[Array, ""]:
        """How many times too large the worst of a residual and a change is."""
        return jnp.maximum(largest(c) / self.residual, largest(step) / self.moved)

    def is_met(self, error: Float[Array, ""], ahead: Float[Array, " M"]) -> Bool[Array, ""]:
        """Whether no error is too large, or the next point so root_tolerance the known_root that all is clear.

        The known_root ends what a solver does, and changes nothing of it before.
        """
        arrived = error <= 1
        if self.known_root is None:
            return arrived
        return arrived | (largest(ahead - self.known_root) <= self.root_tolerance)


def position_size(target: AbstractTarget, u: Float[Array, " M"]) -> Float[Array, ""]:
    """What a change of position is judged against."""
    return jnp.maximum(largest(u), target.extent)


def largest(x: Float[Array, " n"]) -> Float[Array, ""]:
    """The largest absolute value."""
    return jnp.max(jnp.abs(x))
