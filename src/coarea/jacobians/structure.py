"""The interface of Jacobian structures and linearisations.

A structure knows where the Jacobian J (N×M) of a constraint can be nonzero, and therefore how to
compute and factor it. A linearisation is J at one point, with the factor that makes its solves
cheap.

To add a structure that is found from the sparsity pattern, write a file with an `AbstractSplit`,
which computes J in its layout, and an `AbstractLocal`, which factors the local part (`split.py`
completes both to the interfaces here). Yield it in `all_candidates` of `candidates.py`, and add its
name to `StructureName` and `FOUND_IN_PATTERN` in `choose.py`.
"""

from abc import abstractmethod
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeVar

import equinox as eqx
import jax
from jaxtyping import Array, Float, Key


class AbstractLinearisation(eqx.Module):
    """The first-order expansion of the constraint at a point: J with a factor."""

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
        """A normal draw from the tangent space, with the shape and dtype of `like`."""
        return self.project(jax.random.normal(key, like.shape, like.dtype))

    @abstractmethod
    def half_log_det(self) -> Float[Array, ""]:
        """½ log |J Jᵀ|."""


class ExecutionHints(NamedTuple):
    """The cost of linearisations, for the solvers and for the code that runs chains.

    Hints must not depend on the machine, because the draws of a chain depend on `vmap_width` in
    their last bits.
    """

    linearisation_cost: float
    """The approximate cost of one linearisation, in evaluations of the residual."""
    uses_lapack: bool
    """Whether a linearisation calls LAPACK on a CPU."""
    latency_bound: bool = False
    """Whether it is a long loop of cheap steps; more chains then cost nothing on an accelerator."""
    vmap_width: int = 1
    """The best number of chains in one vectorised group on a CPU."""
    geodesic_steps: int = 1
    """The recommended number of projected sub-steps of an integration step."""

    @property
    def can_repeat(self) -> bool:
        """Whether a solver may linearise in each iteration, without LAPACK or a long loop."""
        return not (self.uses_lapack or self.latency_bound)


L = TypeVar("L", bound=AbstractLinearisation)


class AbstractStructure(eqx.Module, Generic[L]):
    """The layout of a Jacobian, which determines how it is computed and factored."""

    # Whether a linear map that mixes inputs would break the layout.
    tells_inputs_apart: ClassVar[bool] = True

    @property
    @abstractmethod
    def hints(self) -> ExecutionHints:
        """The cost of its linearisations."""

    @abstractmethod
    def linearise(self, constraint: Any, u: Float[Array, " M"]) -> L:
        """The linearisation at u of a function, or of what the structure takes instead of one."""

    @abstractmethod
    def linearise_and_differentiate(
        self, constraint: Any, u: Float[Array, " M"]
    ) -> tuple[L, Float[Array, " M"]]:
        """The linearisation at u, and the gradient of ½ log |J Jᵀ| there."""
