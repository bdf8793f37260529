"""The dense shape: no assumption on J, a Cholesky factor of J Jᵀ. Right for anything."""

from collections.abc import Callable
from typing import ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from typing_extensions import override

from coarea.jacobians.linalg import small, triangles
from coarea.jacobians.linalg.linear_maps import matrix_of
from coarea.jacobians.structure import AbstractLinearisation, AbstractStructure


class DenseLinearisation(AbstractLinearisation):
    """J = C Q with C the lower Cholesky factor of J Jᵀ and QQᵀ = I: C⁻¹ and Q are kept.

    With these at hand, an iteration of the quasi-Newton solver and a projection are products with
    vectors, where triangular solves take several times as long. C itself only a fallback needs.
    """

    C_inverse: Float[Array, "N N"]
    Q: Float[Array, "N M"]

    @override
    def apply(self, p):
        return small.solve_lower(self.C_inverse, (self.Q @ p)[:, None])[:, 0]

    @override
    def apply_transpose(self, lam):
        return small.solve_lower_transpose(self.C_inverse, lam[:, None])[:, 0] @ self.Q

    @override
    def solve_gram(self, b):
        return (self.C_inverse @ b) @ self.C_inverse

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

    is_cheap: ClassVar[bool] = False
    mode: Literal["forward", "reverse"] = eqx.field(static=True)
    has_few_rows: bool = eqx.field(static=True, default=False)

    @property
    @override
    def is_light(self):
        return self.has_few_rows

    def vmap_width(self, num_chains):
        """One: on the CPU, XLA's batched products and factors take longer than the same in turn.

        Also, jaxlib's batched LU can deadlock when two threads call it at once, and where nothing
        is known of a model it may be one that factors matrices itself.
        """
        return 1

    @classmethod
    def for_size(cls, num_constraints: int, num_inputs: int) -> "Dense":
        """The cheaper mode: a cotangent costs about twice a tangent, and holds on to memory."""
        mode = "forward" if num_inputs <= 2 * num_constraints else "reverse"
        return cls(mode, num_constraints <= small.LARGEST)

    @override
    def linearise(self, constraint, u):
        return _factored(self.jacobian(constraint)(u))

    def linearise_and_differentiate(self, constraint, u):
        """The gradient is tr(∂ᵢJ · [(JJᵀ)⁻¹J]ᵀ): one product with the Jacobian map's transpose.

        It reuses the factor where differentiating through the determinant would need another
        (the paper's Appendix B).
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
        # LAPACK looks at the lower half alone.
        C = jax.lax.linalg.cholesky(triangles.gram(J), symmetrize_input=False)
        C_inverse = small.inverse_of_lower(C)
    return DenseLinearisation(C_inverse, triangles.lower_times(C_inverse, J))
