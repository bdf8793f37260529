"""Recurrences over blocks as parallel prefix scans, for accelerators.

An accelerator processes all blocks in the time of one. A scan over K blocks takes O(log K) rounds
instead of K. Each recurrence is a composition of maps of one form, and compositions of such maps
have the same form.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from coarea.jacobians.linalg import small


def affine(
    A: Float[Array, "K r r"], f: Float[Array, "K r k"], reverse: bool = False
) -> Float[Array, "K r k"]:
    """x_k = A_k x_{k−1} + f_k from x_0 = f_0; with `reverse`, from the last block to the first."""

    def composed(first, then):
        (A1, f1), (A2, f2) = first, then
        return _product(A2, A1), _product(A2, f1) + f2

    return jax.lax.associative_scan(composed, (A, f), reverse=reverse)[1]


def congruent(
    F: Float[Array, "K r r"], X: Float[Array, "K r r"], reverse: bool = False
) -> Float[Array, "K r r"]:
    """Y_k = F_kᵀ Y_{k−1} F_k + X_k from Y_0 = X_0; with `reverse`, from the last to the first."""

    def composed(first, then):
        (F1, X1), (F2, X2) = first, then
        return _product(F1, F2), _product(small.transpose(F2), _product(X1, F2)) + X2

    return jax.lax.associative_scan(composed, (F, X), reverse=reverse)[1]


def schur_complements(
    diagonal: Float[Array, "K r r"], below: Float[Array, "K r r"], above: Float[Array, "K r r"]
) -> Float[Array, "K r r"]:
    """S_k = diagonal_k − below_k S_{k−1}⁻¹ above_k from S_0 = diagonal_0 (below_0 is zero).

    These are the pivots of a block tridiagonal matrix with G_{k,k−1} = below_k and
    G_{k−1,k} = above_k. A run of blocks maps the pivot S before it to its last pivot,
    D − M (S + E)⁻¹ N. The map of two adjacent runs follows by eliminating the block where they
    meet. The only divisors are pivots of the matrix itself, for another order of elimination.
    """

    def composed(first, then):
        (D1, M1, N1, E1), (D2, M2, N2, E2) = first, then
        r = D1.shape[-1]
        solved = small.solve(D1 + E2, jnp.concatenate([M1, N2], axis=-1))
        of_M, of_N = solved[..., :r], solved[..., r:]
        return (
            D2 - _product(M2, of_N),
            _product(M2, of_M),
            _product(N1, of_N),
            E1 - _product(N1, of_M),
        )

    maps = diagonal, below, above, jnp.zeros_like(diagonal)
    return jax.lax.associative_scan(composed, maps)[0]


def _product(A, B):
    """A B; for small matrices written as a sum, which XLA fuses with the adjacent operations."""
    if A.shape[-1] > small.LARGEST:
        return A @ B
    return jnp.sum(A[..., :, :, None] * B[..., None, :, :], axis=-2)
