"""How a constraint's Jacobian is laid out and factored: the interface of this room.

A structure knows where the Jacobian J (N×M) of a constraint can be nonzero, and so how to compute
and factor it. A linearisation is J at one point, with the factor that makes its solves cheap. A new
structure is a file with a class of each kind, and a line in `choose.py`, which picks among them.
"""

from abc import abstractmethod
from typing import Any, Generic, NamedTuple, Self, TypeVar

import equinox as eqx
import jax
from jaxtyping import Array, Float, Key


class AbstractLinearisation(eqx.Module):
    """The constraint to first order at a point: J with a factor."""

    @abstractmethod
    def apply_transpose(self, lam: Float[Array, " N"]) -> Float[Array, " M"]:
        """Jᵀ λ."""

    @abstractmethod
    def pseudo_inverse(self, b: Float[Array, " N"]) -> Float[Array, " M"]:
        """Jᵀ(J Jᵀ)⁻¹ b, the smallest p with J p = b."""

    @abstractmethod
    def solve_newton(self, previous: Self, b: Float[Array, " N"]) -> Float[Array, " N"]:
        """(J J_previousᵀ)⁻¹ b."""

    @abstractmethod
    def project(self, p: Float[Array, " M"]) -> Float[Array, " M"]:
        """The part of p that is tangent to the manifold, p − Jᵀ(JJᵀ)⁻¹J p."""

    def draw(self, key: Key[Array, ""], like: Float[Array, " M"]) -> Float[Array, " M"]:
        """A normal draw from the tangent space, a vector `like` this one."""
        return self.project(jax.random.normal(key, like.shape, like.dtype))

    @abstractmethod
    def half_log_det(self) -> Float[Array, ""]:
        """½ log |J Jᵀ|."""


class ExecutionHints(NamedTuple):
    """What linearisations cost, for the solvers and for whatever runs chains.

    The draws of a chain depend on `vmap_width` in their last bits, so no hint may depend on the
    machine.
    """

    linearisation_cost: float
    """About how many evaluations of the residual one takes."""
    uses_lapack: bool
    """Whether LAPACK is called for it on a CPU."""
    latency_bound: bool = False
    """Whether it is a long loop of cheap steps: on an accelerator more chains then cost nothing."""
    vmap_width: int = 1
    """How many chains a CPU had better run as one vectorised group."""
    geodesic_steps: int = 1
    """How many projected sub-steps suit an integration step."""

    @property
    def can_repeat(self) -> bool:
        """Whether a solver may linearise in each iteration: it takes no LAPACK and no long loop."""
        return not (self.uses_lapack or self.latency_bound)


L = TypeVar("L", bound=AbstractLinearisation)


class AbstractStructure(eqx.Module, Generic[L]):
    """How a Jacobian is laid out, and so how it is computed and factored."""

    @property
    @abstractmethod
    def hints(self) -> ExecutionHints:
        """What its linearisations cost."""

    @abstractmethod
    def linearise(self, constraint: Any, u: Float[Array, " M"]) -> L:
        """J at u of a function, or of what the structure takes in its place."""

    @abstractmethod
    def linearise_and_differentiate(
        self, constraint: Any, u: Float[Array, " M"]
    ) -> tuple[L, Float[Array, " M"]]:
        """The linearisation at u, and the gradient of ½ log |J Jᵀ| there."""
