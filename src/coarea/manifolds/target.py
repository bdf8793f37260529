"""The interface between a density on a manifold and the dynamics that move along it.

A target is the density; a shape knows how the constraint's Jacobian J (N×M) is laid out; a
linearisation is J at one point with whatever factor makes its solves cheap. The dynamics see
only these three and never which shape they move on.
"""

from abc import abstractmethod
from collections.abc import Mapping
from typing import NamedTuple, Self, TypeAlias

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from coarea.jacobians.linalg import small
from coarea.jacobians.structure import AbstractLinearisation

# What a position is measured in: a unit for each element, or a lower triangle.
Units: TypeAlias = Float[Array, " M"] | Float[Array, "M M"]


class Evaluation(NamedTuple):
    """All that the dynamics need to know of a target at one point."""

    linearisation: AbstractLinearisation
    log_density: Float[Array, ""]
    gradient: Float[Array, " M"]


class AbstractGeodesic(eqx.Module):
    """Free motion on a manifold, exactly (Byrne & Girolami 2013)."""

    @property
    @abstractmethod
    def max_flow_time(self) -> float:
        """About the time in which free motion has gone furthest."""

    @abstractmethod
    def project(self, u: Float[Array, " M"], p: Float[Array, " M"]) -> Float[Array, " M"]:
        """The part of p that is tangent to the manifold at u."""

    @abstractmethod
    def move(
        self, u: Float[Array, " M"], p: Float[Array, " M"], tau: Float[Array, ""]
    ) -> tuple[Float[Array, " M"], Float[Array, " M"]]:
        """Position and momentum after a time τ, without a drift away from the manifold."""


class AbstractTarget(eqx.Module):
    """A density on the manifold {u : residual(u) = 0}, with respect to its Hausdorff measure."""

    @property
    @abstractmethod
    def num_inputs(self) -> int:
        """M, the dimension of the ambient space."""

    @property
    @abstractmethod
    def num_constraints(self) -> int:
        """N, the number of equations."""

    @property
    @abstractmethod
    def scale(self) -> Float[Array, ""]:
        """The size of the constrained quantities: residuals are judged relative to it."""

    @property
    @abstractmethod
    def extent(self) -> Float[Array, ""]:
        """The size of a position's elements: changes are judged relative to it."""

    @property
    @abstractmethod
    def normals(self) -> np.ndarray:
        """Which elements are standard normal, independently of all others, but for |J Jᵀ|^(−½)."""

    @property
    @abstractmethod
    def is_cheap(self) -> bool:
        """Whether a linearisation costs little more than the residual."""

    @property
    def is_light(self) -> bool:
        """Whether a linearisation takes few derivatives and no LAPACK: solvers may make many."""
        return False

    @property
    def is_sequential(self) -> bool:
        """Whether it is computed by long loops of short rounds: all chains make one in one's time.

        So it is on an accelerator, where there is no use in sparing some of them.
        """
        return False

    @abstractmethod
    def vmap_width(self, num_chains: int) -> int:
        """How many of the chains are best run as one vectorised group on a CPU."""

    @property
    def closed_form(self) -> AbstractGeodesic | None:
        """Free motion on the manifold where it has a closed form: then no equations are solved."""
        return None

    @property
    def geodesic_steps(self) -> int:
        """How many projected sub-steps suit a step.

        More than one pays only where the gradient costs more than the rest of a step, and the
        manifold bends more than the density: measured, on lifted simulators.
        """
        return 1

    @property
    def observed(self) -> Mapping[str, np.ma.MaskedArray] | None:
        """The data by name, missing values masked. None where there are none."""
        return None

    @property
    def ambient(self) -> "AbstractTarget":
        """The target among all inputs, where start points are looked for: itself, or a chart's."""
        return self

    def embed(self, u: Float[Array, " M"]) -> Float[Array, " K"]:
        """A position among all inputs."""
        return u

    def restrict(self, u: Float[Array, " K"]) -> Float[Array, " M"]:
        """The position of what `embed` gives."""
        return u

    def metric(self, u: Float[Array, " M"]) -> Float[Array, "M M"] | None:
        """The matrix that measures changes of a position here, if it is worth a mass matrix."""
        del u
        return None

    def constraint_error(self, u: Float[Array, " M"]) -> Float[Array, ""]:
        """The largest residual, relative to the size of the data."""
        return jnp.max(jnp.abs(self.ambient.residual(self.embed(u)))) / self.scale

    @abstractmethod
    def in_units(self, units: Units | None) -> Self:
        """The same distribution with every element of a position measured in a unit of its own.

        This is what a diagonal mass matrix amounts to. A shape stays what it is. Where there is
        no shape, a chart takes a matrix too: a position is then that times the one in its units.
        """

    @abstractmethod
    def residual(self, u: Float[Array, " M"]) -> Float[Array, " N"]:
        """The constraint function c, zero on the manifold."""

    @abstractmethod
    def linearise(self, u: Float[Array, " M"]) -> AbstractLinearisation:
        """The constraint linearised at u."""

    @abstractmethod
    def evaluate(self, u: Float[Array, " M"]) -> Evaluation:
        """Linearisation, log density and its gradient at u, sharing their work."""

    @abstractmethod
    def guess(self, key: Key[Array, ""]) -> Float[Array, " M"]:
        """A random point of the ambient space near which to look for the manifold."""

    @abstractmethod
    def latents(self, u: Float[Array, " M"]) -> dict[str, Array]:
        """What a user wants to know of a draw, by name."""

    @property
    def fixed(self) -> Mapping[str, Array]:
        """The latents that are the same in every draw, and need not be kept of each."""
        return {}

    @abstractmethod
    def inputs(self, u: Float[Array, " M"]) -> dict[str, Array]:
        """The draw itself, by name."""

    @property
    def constraints(self) -> np.ndarray:
        """The rows of the residual that constrain anything: all, unless some only fill up."""
        return np.arange(self.num_constraints)

    @abstractmethod
    def describe(self, constraint: int) -> str:
        """The name of one constraint, for messages: `y[3, 0]`."""


def to_model_space(u: Float[Array, " M"], units: Units | None) -> Float[Array, " M"]:
    """The position that the user's functions see."""
    if units is None:
        return u
    return units * u if units.ndim == 1 else small.combine(u, units.T)


def to_sampler_space(u: Float[Array, " M"], units: Units | None) -> Float[Array, " M"]:
    """The position in these units."""
    if units is None:
        return u
    return u / units if units.ndim == 1 else small.solve_lower(units, u[:, None])[:, 0]
