"""The interface between a density on a manifold and the dynamics that move along it.

A target is the density; a shape knows how the constraint's Jacobian J (N×M) is laid out; a
linearisation is J at one point with whatever factor makes its solves cheap. The dynamics see
only these three and never which shape they move on.
"""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeAlias, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from coarea.manifolds import small

# What a position is measured in: a unit for each element, or a lower triangle.
Units: TypeAlias = Float[Array, " M"] | Float[Array, "M M"]


class AbstractTangentSpace(eqx.Module):
    """The directions in which a manifold goes on from a point."""

    @abstractmethod
    def project(self, p: Float[Array, " M"]) -> Float[Array, " M"]:
        """The part of p that is tangent to the manifold."""

    def draw(self, key: Key[Array, ""], like: Float[Array, " M"]) -> Float[Array, " M"]:
        """A normal draw from them, a vector `like` this one."""
        return self.project(jax.random.normal(key, like.shape, like.dtype))


class AbstractLinearisation(AbstractTangentSpace):
    """The constraint to first order at a point: J with a factor. `project` is p − Jᵀ(JJᵀ)⁻¹J p."""

    @abstractmethod
    def apply(self, p: Float[Array, " M"]) -> Float[Array, " N"]:
        """J p."""

    @abstractmethod
    def apply_transpose(self, lam: Float[Array, " N"]) -> Float[Array, " M"]:
        """Jᵀ λ."""

    @abstractmethod
    def solve_gram(self, b: Float[Array, " N"]) -> Float[Array, " N"]:
        """(J Jᵀ)⁻¹ b."""

    @abstractmethod
    def pseudo_inverse(self, b: Float[Array, " N"]) -> Float[Array, " M"]:
        """Jᵀ(J Jᵀ)⁻¹ b, the smallest p with J p = b."""

    @abstractmethod
    def solve_newton(self, older: Self, b: Float[Array, " N"]) -> Float[Array, " N"]:
        """(J Jₒᵀ)⁻¹ b, with Jₒ from an older linearisation."""

    @abstractmethod
    def half_log_det(self) -> Float[Array, ""]:
        """½ log |J Jᵀ|."""


L = TypeVar("L", bound=AbstractLinearisation)


class AbstractShape(eqx.Module, Generic[L]):
    """How a Jacobian is laid out, and so how it is computed and factored."""

    is_cheap: ClassVar[bool]  # whether a linearisation costs little more than the residual

    @property
    def is_light(self) -> bool:
        """Whether a linearisation takes few derivatives and no LAPACK: solvers may make many."""
        return False

    @abstractmethod
    def chains_together(self, num_chains: int) -> int:
        """How many of the chains are best run as one vectorised group on a CPU.

        A chain's last bits depend on it, so it must not follow the machine.
        """

    @abstractmethod
    def linearise(self, constraint: Any, u: Float[Array, " M"]) -> L:
        """J at u of a function, or of what the shape takes in its place."""

    @abstractmethod
    def linearise_and_differentiate(
        self, constraint: Any, u: Float[Array, " M"]
    ) -> tuple[L, Float[Array, " M"]]:
        """The linearisation at u, and there the gradient of ½ log |J Jᵀ|."""


class Evaluation(NamedTuple):
    """All that the dynamics need to know of a target at one point."""

    linearisation: AbstractLinearisation
    log_density: Float[Array, ""]
    gradient: Float[Array, " M"]


class AbstractGeodesic(eqx.Module):
    """Free motion on a manifold, exactly (Byrne & Girolami 2013)."""

    @property
    @abstractmethod
    def quarter_turn(self) -> float:
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
    def chains_together(self, num_chains: int) -> int:
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


def in_own_units(u: Float[Array, " M"], units: Units | None) -> Float[Array, " M"]:
    """The position that the user's functions see."""
    if units is None:
        return u
    return units * u if units.ndim == 1 else small.combine(u, units.T)


def measured_in(u: Float[Array, " M"], units: Units | None) -> Float[Array, " M"]:
    """The position in these units."""
    if units is None:
        return u
    return u / units if units.ndim == 1 else small.solve_lower(units, u[:, None])[:, 0]
