"""How a constraint's Jacobian is laid out and factored: the interface of this room."""

from abc import abstractmethod
from typing import Any, ClassVar, Generic, Self, TypeVar

import equinox as eqx
import jax
from jaxtyping import Array, Float, Key


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
    def solve_newton(self, previous: Self, b: Float[Array, " N"]) -> Float[Array, " N"]:
        """(J Jₒᵀ)⁻¹ b, with Jₒ from an previous linearisation."""

    @abstractmethod
    def half_log_det(self) -> Float[Array, ""]:
        """½ log |J Jᵀ|."""


L = TypeVar("L", bound=AbstractLinearisation)


class AbstractStructure(eqx.Module, Generic[L]):
    """How a Jacobian is laid out, and so how it is computed and factored."""

    is_cheap: ClassVar[bool]  # whether a linearisation costs little more than the residual

    @property
    def is_light(self) -> bool:
        """Whether a linearisation takes few derivatives and no LAPACK: solvers may make many."""
        return False

    @abstractmethod
    def vmap_width(self, num_chains: int) -> int:
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
