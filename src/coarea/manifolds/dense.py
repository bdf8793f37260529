"""The dense shape: no assumption on J, a Cholesky factor of J Jᵀ. Right for anything."""

from collections.abc import Callable
from typing import ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.linalg import cho_solve
from jaxtyping import Array, Float

from coarea.manifolds.target import AbstractLinearisation, AbstractShape


class DenseLinearisation(AbstractLinearisation):
    """J as a full matrix, with the lower Cholesky factor of J Jᵀ and (J Jᵀ)⁻¹J.

    The last is what the gradient needs anyway. With it at hand, an iteration of the quasi-Newton
    solver and a projection are products with vectors, where triangular solves take thrice as long.
    """

    J: Float[Array, "N M"]
    factor: Float[Array, "N N"]
    solved: Float[Array, "N M"]

    def apply(self, p):  # noqa: D102
        return self.J @ p

    def apply_transpose(self, lam):  # noqa: D102
        return lam @ self.J

    def solve_gram(self, b):  # noqa: D102
        return cho_solve((self.factor, True), b)

    def pseudo_inverse(self, b):  # noqa: D102
        return b @ self.solved

    def solve_newton(self, older, b):  # noqa: D102
        return jnp.linalg.solve(self.J @ older.J.T, b)

    def project(self, p):  # noqa: D102
        return p - self.pseudo_inverse(self.apply(p))

    def half_log_det(self):  # noqa: D102
        return jnp.sum(jnp.log(jnp.diagonal(self.factor)))


class Dense(AbstractShape[DenseLinearisation]):
    """Jacobians by forward mode (M tangents) or reverse mode (N cotangents)."""

    is_cheap: ClassVar[bool] = False
    mode: Literal["forward", "reverse"] = eqx.field(static=True)

    def chains_together(self, num_chains):
        """One: on the CPU, XLA's batched products and factors take longer than the same in turn.

        Also, jaxlib's batched LU can deadlock when two threads call it at once.
        """
        return 1

    @classmethod
    def for_size(cls, num_constraints: int, num_inputs: int) -> "Dense":
        """The cheaper mode: a cotangent costs about twice a tangent, and holds on to memory."""
        return cls("forward" if num_inputs <= 2 * num_constraints else "reverse")

    def linearise(self, constraint, u):  # noqa: D102
        return _factored(self.jacobian(constraint)(u))

    def linearise_and_differentiate(self, constraint, u):
        """The gradient is tr(∂ᵢJ · [(JJᵀ)⁻¹J]ᵀ): one product with the Jacobian map's transpose.

        It reuses the factor where differentiating through the determinant would need another
        (the paper's Appendix B).
        """
        J, pull_back = jax.vjp(self.jacobian(constraint), u)
        linearisation = _factored(J)
        (gradient,) = pull_back(linearisation.solved)
        return linearisation, gradient

    def jacobian(self, constraint: Callable) -> Callable:
        """The function u ↦ J."""
        return (jax.jacfwd if self.mode == "forward" else jax.jacrev)(constraint)


def _factored(J) -> DenseLinearisation:
    factor = jnp.linalg.cholesky(J @ J.T)
    return DenseLinearisation(J, factor, cho_solve((factor, True), J))
