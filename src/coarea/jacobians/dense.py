"""The dense structure: no assumption on J, and a Cholesky factor of J Jᵀ."""

from collections.abc import Callable
from typing import ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from typing_extensions import override

from coarea.jacobians.linalg import small, triangles
from coarea.jacobians.linalg.linear_maps import matrix_of
from coarea.jacobians.structure import (
    AbstractLinearisation,
    AbstractStructure,
    ExecutionHints,
)


class DenseLinearisation(AbstractLinearisation):
    """J = C Q, where C is the lower Cholesky factor of J Jᵀ and QQᵀ = I; C⁻¹ and Q are stored.

    A quasi-Newton iteration and a projection are then products with vectors. Triangular solves
    would take several times as long. Only the last solvers of a cascade need C itself.
    """

    C_inverse: Float[Array, "N N"]
    Q: Float[Array, "N M"]

    @override
    def apply_transpose(self, lam):
        return small.solve_lower_transpose(self.C_inverse, lam[:, None])[:, 0] @ self.Q

    @override
    def pseudo_inverse(self, b):
        return (self.C_inverse @ b) @ self.Q

    @override
    def solve_newton(self, previous, b):
        solved = small.solve(self.Q @ previous.Q.T, (self.C_inverse @ b)[:, None])[:, 0]
        return solved @ previous.C_inverse

    @override
    def project(self, p):
        return p - (self.Q @ p) @ self.Q

    @override
    def half_log_det(self):
        return -jnp.sum(jnp.log(jnp.diagonal(self.C_inverse)))


class Dense(AbstractStructure[DenseLinearisation]):
    """Jacobians by forward mode (M tangents) or reverse mode (N cotangents)."""

    tells_inputs_apart: ClassVar[bool] = False
    num_constraints: int = eqx.field(static=True)
    num_inputs: int = eqx.field(static=True)

    @property
    def mode(self) -> Literal["forward", "reverse"]:
        """The cheaper mode; a cotangent costs about twice a tangent, and needs more memory."""
        return "forward" if self.num_inputs <= 2 * self.num_constraints else "reverse"

    @property
    @override
    def hints(self):
        """Chains are not vectorised on a CPU, where batched products and factors take longer.

        Batched LAPACK calls can also deadlock, and the model itself may factor matrices.
        """
        return ExecutionHints(
            linearisation_cost=min(self.num_inputs, 2 * self.num_constraints),
            uses_lapack=self.num_constraints > small.LARGEST,
        )

    @override
    def linearise(self, constraint, u):
        return _factored(self.jacobian(constraint)(u))

    @override
    def linearise_and_differentiate(self, constraint, u):
        """The linearisation, and the gradient tr(∂ᵢJ · [(JJᵀ)⁻¹J]ᵀ) (the paper's Appendix B).

        The gradient is one vector–Jacobian product of the map u ↦ J, and reuses the factor.
        Differentiating through the determinant would need another factorisation.
        """
        J, pull_back = jax.vjp(self.jacobian(constraint), u)
        linearisation = _factored(J)
        (gradient,) = pull_back(
            triangles.lower_transpose_times(linearisation.C_inverse, linearisation.Q)
        )
        return linearisation, gradient

    def jacobian(self, constraint: Callable) -> Callable:
        """The function u ↦ J."""

        def forward(u):
            _, push = jax.linearize(constraint, u)
            return matrix_of(push, u).T

        def reverse(u):
            value, pull_back = jax.vjp(constraint, u)
            return matrix_of(lambda cotangent: pull_back(cotangent)[0], value)

        return forward if self.mode == "forward" else reverse


def _factored(J) -> DenseLinearisation:
    if len(J) <= small.LARGEST:
        C_inverse = small.inverse_of_cholesky(J @ J.T)
    else:
        # LAPACK reads only the lower triangle, so `gram` need not fill the upper one.
        C = jax.lax.linalg.cholesky(triangles.gram(J), symmetrize_input=False)
        C_inverse = small.inverse_of_lower(C)
    return DenseLinearisation(C_inverse, triangles.lower_times(C_inverse, J))
