"""When a projection has converged."""

from dataclasses import replace
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from coarea.manifolds.target import AbstractConstrainedTarget

_ROOT_TOLERANCE = 1e-5


class Tolerance(eqx.Module):
    """Bounds on the residual and on the last change of position.

    Both are relative: `residual` to the size of the constrained quantities, `position` to that of
    the position, or to `size` if that is given. With a `known_root` a solver may also stop once it
    is close enough to that root that it can only converge to it: within `root_tolerance`.
    """

    residual: float
    position: float
    size: Float[Array, ""] | None = None
    known_root: Float[Array, " M"] | None = None

    @property
    def root_tolerance(self) -> float:
        """The distance from the known root, relative to positions, within which no other lies.

        Two roots meet where J J_previousᵀ is singular, and their distance grows as a square root
        from there. Of the steps that end near such a place, a fraction of about the square of this
        number has two roots this close.
        """
        return max(20 * self.residual, _ROOT_TOLERANCE)

    @classmethod
    def following(cls, residual: float) -> "Tolerance":
        """The tolerance of the change of position is ten times that of the residual."""
        return cls(residual, 10 * residual)

    @classmethod
    def default(cls, dtype) -> "Tolerance":
        """What a precision allows."""
        return cls.following(1e-9 if dtype == jnp.float64 else 1e-4)

    def sized(self, target: AbstractConstrainedTarget, u: Float[Array, " M"]) -> "Tolerance":
        """With a size, that of u if none was given."""
        if self.size is not None:
            return self
        return replace(self, size=position_size(target, u))

    def is_met(
        self,
        target: AbstractConstrainedTarget,
        u: Float[Array, " M"],
        residual: Float[Array, ""],
        moved: Float[Array, ""],
    ) -> Bool[Array, ""]:
        """Whether a largest residual and a largest change that led to u are small enough."""
        bounds = self.at(target, u)
        return (residual <= bounds.residual) & (moved <= bounds.moved)

    def at(self, target: AbstractConstrainedTarget, u: Float[Array, " M"]) -> "Bounds":
        """Absolute bounds, for positions of the size of u."""
        size = position_size(target, u) if self.size is None else self.size
        bounds = Bounds(self.residual * target.scales.residual, self.position * size)
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
        """How many times too large the worse of a residual and a change is."""
        return jnp.maximum(largest(c) / self.residual, largest(step) / self.moved)

    def is_met(self, error: Float[Array, ""], ahead: Float[Array, " M"]) -> Bool[Array, ""]:
        """Whether no error is too large, or the next point is close to the known root.

        The known root ends the iteration and influences nothing before.
        """
        converged = error <= 1
        if self.known_root is None:
            return converged
        return converged | (largest(ahead - self.known_root) <= self.root_tolerance)


def position_size(target: AbstractConstrainedTarget, u: Float[Array, " M"]) -> Float[Array, ""]:
    """The size that a change of position is compared with."""
    return jnp.maximum(largest(u), target.scales.position)


def largest(x: Float[Array, " n"]) -> Float[Array, ""]:
    """The largest absolute value."""
    return jnp.max(jnp.abs(x))
