"""Factors of small matrices, written out so that XLA vectorises them over chains and blocks.

LAPACK is called once for each matrix of a batch, which for a few rows costs more than the factor.
Beyond `LARGEST` rows LAPACK is called all the same.
"""

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

LARGEST = 8
_FEW = 2500


def cholesky(A: Float[Array, "*batch n n"]) -> Float[Array, "*batch n n"]:
    """The lower factor C with C Cᵀ = A. Not a number where A is not positive definite."""
    n = A.shape[-1]
    if n == 0 or n > LARGEST:
        return jnp.linalg.cholesky(A)
    rows: list[list[Array]] = []
    for i in range(n):
        row: list[Array] = []
        for j in range(i + 1):
            rest = A[..., i, j] - _dot(row, rows[j] if j < i else row, j)
            row.append(jnp.sqrt(rest) if i == j else rest / rows[j][j])
        rows.append(row)
    zero = jnp.zeros_like(A[..., 0, 0])
    return jnp.stack([jnp.stack(row + [zero] * (n - 1 - i), -1) for i, row in enumerate(rows)], -2)


def solve_lower(
    C: Float[Array, "*batch n n"], b: Float[Array, "*batch n k"]
) -> Float[Array, "*batch n k"]:
    """C⁻¹ b for a lower triangular C."""
    n = C.shape[-1]
    if n > LARGEST:
        return solve_triangular(C, b, lower=True)
    x: list[Array] = []
    for i in range(n):
        rest = b[..., i, :] - sum(C[..., i, j, None] * x[j] for j in range(i))
        x.append(rest / C[..., i, i, None])
    return jnp.stack(x, -2)


def solve_lower_transpose(
    C: Float[Array, "*batch n n"], b: Float[Array, "*batch n k"]
) -> Float[Array, "*batch n k"]:
    """C⁻ᵀ b for a lower triangular C."""
    n = C.shape[-1]
    if n > LARGEST:
        return solve_triangular(C, b, lower=True, trans="T")
    x: list[Array] = [b[..., 0, :]] * n
    for i in reversed(range(n)):
        rest = b[..., i, :] - sum(C[..., j, i, None] * x[j] for j in range(i + 1, n))
        x[i] = rest / C[..., i, i, None]
    return jnp.stack(x, -2)


def cholesky_solve(
    C: Float[Array, "*batch n n"], b: Float[Array, "*batch n k"]
) -> Float[Array, "*batch n k"]:
    """(C Cᵀ)⁻¹ b."""
    return solve_lower_transpose(C, solve_lower(C, b))


def solve(
    A: Float[Array, "*batch n n"], b: Float[Array, "*batch n k"]
) -> Float[Array, "*batch n k"]:
    """A⁻¹ b by elimination, rows exchanged for the largest pivot."""
    n = A.shape[-1]
    if n > LARGEST:
        return jnp.linalg.solve(A, b)
    k = b.shape[-1]
    rows = jnp.concatenate([A, b], axis=-1)
    rows = [rows[..., i, :] for i in range(n)]
    for i in range(n):
        for j in range(i + 1, n):
            swap = jnp.abs(rows[j][..., i]) > jnp.abs(rows[i][..., i])
            rows[i], rows[j] = _exchange(swap[..., None], rows[i], rows[j])
        for j in range(i + 1, n):
            factor = rows[j][..., i] / rows[i][..., i]
            rows[j] = rows[j] - factor[..., None] * rows[i]
    x: list[Array] = [rows[0][..., n:]] * n
    for i in reversed(range(n)):
        rest = rows[i][..., n:] - sum(rows[i][..., j, None] * x[j] for j in range(i + 1, n))
        x[i] = rest / rows[i][..., i, None]
    return jnp.stack(x, -2).reshape(*b.shape[:-1], k)


def _exchange(swap, a, b):
    return jnp.where(swap, b, a), jnp.where(swap, a, b)


def _dot(a: list[Array], b: list[Array], n: int):
    return sum((x * y for x, y in zip(a[:n], b[:n], strict=True)), start=jnp.zeros(()))


def matmul(A: Float[Array, "m n"], B: Float[Array, "n k"]) -> Float[Array, "m k"]:
    """A B, as a sum of products while those are few, which then costs less than a call of BLAS."""
    if A.size * B.shape[1] > _FEW:
        return A @ B
    return jnp.sum(A[:, :, None] * B[None, :, :], axis=1)


def transpose(A: Float[Array, "*batch n k"]) -> Float[Array, "*batch k n"]:
    """The transpose of each matrix."""
    return jax.numpy.swapaxes(A, -1, -2)


def lq(
    B: Float[Array, "*batch r w"],
) -> tuple[Float[Array, "*batch r r"], Float[Array, "*batch r w"]]:
    """B = C Q with C lower triangular and QQᵀ = I, r ≤ w.

    By orthogonalising each row twice against those before: as accurate as rotations, and it keeps
    the digits that the Cholesky factor of BBᵀ would lose where rows differ in size.
    """
    r = B.shape[-2]
    if r > LARGEST:
        right, left = jnp.linalg.qr(transpose(B))
        return transpose(left), transpose(right)
    Q: list[Array] = []
    C: list[Array] = []
    zero = jnp.zeros_like(B[..., 0, 0])
    for i in range(r):
        row, along = B[..., i, :], [zero] * r
        for _ in range(2):
            for j in range(i):
                part = jnp.sum(row * Q[j], axis=-1)
                row = row - part[..., None] * Q[j]
                along[j] = along[j] + part
        along[i] = jnp.sqrt(jnp.sum(row**2, axis=-1))
        Q.append(row / along[i][..., None])
        C.append(jnp.stack(along, -1))
    return jnp.stack(C, -2), jnp.stack(Q, -2)
