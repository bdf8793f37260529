"""Factors of small matrices, written so that XLA vectorises them over chains and blocks.

LAPACK is called once for each matrix of a batch, and for a few rows the call costs more than the
factorisation. Up to `_WRITTEN_OUT` rows every element has its own formula. This is the fastest way,
but takes long to compile for more rows. Up to `LARGEST` rows there is a loop over rows. Beyond
that, LAPACK is called.
"""

import math

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from coarea.xla import on_cpu

LARGEST = 8
_WRITTEN_OUT = 4
# Triangular matrices up to this size are inverted by a solve, larger ones by recursive blocking.
_SMALL = 32


def cholesky(A: Float[Array, "*batch n n"]) -> Float[Array, "*batch n n"]:
    """The lower factor C with C Cᵀ = A; NaN if A is not positive definite."""
    n = A.shape[-1]
    if n == 0 or n > LARGEST:
        return jnp.linalg.cholesky(A)
    if n > _WRITTEN_OUT:
        return _cholesky_by_columns(A)
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
    if n > _WRITTEN_OUT:
        return _solve_by_rows(C, b)
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
    if n > _WRITTEN_OUT:
        # Reversing the order of rows and columns makes Cᵀ lower triangular.
        turned = jnp.flip(transpose(C), (-1, -2))
        return jnp.flip(_solve_by_rows(turned, jnp.flip(b, -2)), -2)
    x: list[Array] = [b[..., 0, :]] * n
    for i in reversed(range(n)):
        rest = b[..., i, :] - sum(C[..., j, i, None] * x[j] for j in range(i + 1, n))
        x[i] = rest / C[..., i, i, None]
    return jnp.stack(x, -2)


def solve(
    A: Float[Array, "*batch n n"], b: Float[Array, "*batch n k"]
) -> Float[Array, "*batch n k"]:
    """A⁻¹ b by Gaussian elimination with partial pivoting."""
    n = A.shape[-1]
    if n > LARGEST:
        return jnp.linalg.solve(A, b)
    if n > _WRITTEN_OUT:
        return _solve_by_elimination(A, b)
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


def inverse_of_cholesky(A: Float[Array, "*batch n n"]) -> Float[Array, "*batch n n"]:
    """The lower T with TᵀT = A⁻¹: the inverse of the Cholesky factor of A."""
    n = A.shape[-1]
    if n > _WRITTEN_OUT:
        return inverse_of_lower(cholesky(A))
    # One division a row. The other operations are so cheap that XLA recomputes their results
    # instead of storing them, which leads to fewer kernels.
    C: list[list[Array]] = []
    T: list[list[Array]] = []
    for i in range(n):
        row: list[Array] = []
        for j in range(i):
            row.append((A[..., i, j] - _dot(row, C[j], j)) * T[j][j])
        inverse = 1 / jnp.sqrt(A[..., i, i] - _dot(row, row, i))
        T.append(
            [-inverse * sum(row[k] * T[k][j] for k in range(j, i)) for j in range(i)] + [inverse]
        )
        C.append(row)
    zero = jnp.zeros_like(A[..., 0, 0])
    elements = [x for i, row in enumerate(T) for x in row + [zero] * (n - 1 - i)]
    return jnp.stack(elements, -1).reshape(A.shape)


def inverse_of_lower(C: Float[Array, "*batch n n"]) -> Float[Array, "*batch n n"]:
    """C⁻¹; if C is large, by recursive blocking, as products take half the time of a solve."""
    n = C.shape[-1]
    if n <= _SMALL:
        return solve_lower(C, jnp.broadcast_to(jnp.eye(n, dtype=C.dtype), C.shape))
    first, last = slice(n // 2), slice(n // 2, n)
    upper, lower = (inverse_of_lower(C[..., part, part]) for part in (first, last))
    beside = -lower @ (C[..., last, first] @ upper)
    return jnp.block([[upper, jnp.zeros_like(transpose(beside))], [beside, lower]])


def root_of_inverse(A: Float[Array, "*batch n n"]) -> Float[Array, "*batch n n"]:
    """The lower R with R Rᵀ = A⁻¹."""
    # Reversing the order of rows and columns gives A = C Cᵀ with an upper C. Then R = C⁻ᵀ.
    turned = inverse_of_cholesky(jnp.flip(A, (-1, -2)))
    return transpose(jnp.flip(turned, (-1, -2)))


def _cholesky_by_columns(A):
    n = A.shape[-1]
    index = jnp.arange(n)

    def column(j, carry):
        left, C = carry
        found = _pick(left, j, -1)
        found = jnp.where(index >= j, found, 0.0) / jnp.sqrt(_pick(found, j, -1))[..., None]
        C = jnp.where(index == j, found[..., None], C)
        return left - found[..., :, None] * found[..., None, :], C

    return jax.lax.fori_loop(0, n, column, (A, jnp.zeros_like(A)))[1]


def _solve_by_rows(C, b):
    n = C.shape[-1]
    index = jnp.arange(n)[:, None]

    def row(i, x):
        of_C = _pick(C, i, -2)
        rest = _pick(b, i, -2) - jnp.sum(of_C[..., None] * x, axis=-2)
        return jnp.where(index == i, (rest / _pick(of_C, i, -1)[..., None])[..., None, :], x)

    return jax.lax.fori_loop(0, n, row, jnp.zeros_like(b))


def _solve_by_elimination(A, b):
    """Gauss–Jordan elimination with partial pivoting."""
    n = A.shape[-1]
    index = jax.lax.broadcasted_iota(int, A.shape[:-1], A.ndim - 2)

    def clear(i, rows):
        column = _pick(rows, i, -1)
        best = jnp.argmax(jnp.where(index >= i, jnp.abs(column), -1.0), axis=-1)
        chosen = (index == best[..., None])[..., None]
        pivot = jnp.sum(jnp.where(chosen, rows, 0.0), axis=-2, keepdims=True)
        # Move row i to the place of the pivot row.
        rows = jnp.where(chosen, _pick(rows, i, -2)[..., None, :], rows)
        pivot = pivot / _pick(pivot, i, -1)[..., None]
        factor = jnp.where(index == i, 0.0, _pick(rows, i, -1))
        return jnp.where((index == i)[..., None], pivot, rows - factor[..., None] * pivot)

    return jax.lax.fori_loop(0, n, clear, jnp.concatenate([A, b], axis=-1))[..., n:]


def _pick(x, i, axis):
    return jax.lax.dynamic_index_in_dim(x, i, axis, keepdims=False)


def _exchange(swap, a, b):
    return jnp.where(swap, b, a), jnp.where(swap, a, b)


def _dot(a: list[Array], b: list[Array], n: int):
    return sum((x * y for x, y in zip(a[:n], b[:n], strict=True)), start=jnp.zeros(()))


@jax.custom_jvp
def sum_of_logs(x: Float[Array, " n"]) -> Float[Array, ""]:
    """Σ log |x|, as the logarithm of a product from which powers of two are split off.

    On a CPU a logarithm takes as long as a dozen products.
    """
    most = -int(jnp.finfo(x.dtype).minexp)  # a product of this many factors ≥ ½ cannot underflow
    factors, powers = jnp.frexp(jnp.abs(x))
    if x.size > most:
        factors = jnp.pad(factors, (0, -x.size % most), constant_values=1.0).reshape(most, -1)
    logs = jnp.log(jnp.prod(factors, axis=0))
    return jnp.sum(logs) + math.log(2) * jnp.sum(powers)


@sum_of_logs.defjvp
def _(primals, tangents):
    (x,), (dx,) = primals, tangents
    return sum_of_logs(x), jnp.sum(dx / x)


def products(rows: Float[Array, "n k"], x: Float[Array, " k"]) -> Float[Array, " n"]:
    """The product of each row with x; on an accelerator a sum, which XLA fuses with its inputs."""
    if rows.shape[0] > LARGEST:
        return rows @ x
    return on_cpu(jnp.dot, rows, x, otherwise=lambda rows, x: jnp.sum(rows * x[None], axis=1))


def outer_products(A: Float[Array, "n k"], B: Float[Array, "m k"]) -> Float[Array, "n m"]:
    """A Bᵀ: the inner products of the rows of A with those of B."""
    if max(A.shape[0], B.shape[0]) > LARGEST:
        return A @ B.T
    return jnp.sum(A[:, None] * B[None], axis=2)


def combine(x: Float[Array, " n"], rows: Float[Array, "n k"]) -> Float[Array, " k"]:
    """x B, a weighted sum of the rows of B; written out if there are few rows."""
    if not 0 < x.shape[0] <= LARGEST:
        return x @ rows
    terms = [x[i] * rows[i] for i in range(x.shape[0])]
    return sum(terms[1:], start=terms[0])


def matmul(A: Float[Array, "m n"], B: Float[Array, "n k"]) -> Float[Array, "m k"]:
    """A B for a B with long rows; a written-out sum if there are few rows."""
    if not 0 < A.shape[1] <= LARGEST:
        return A @ B
    terms = [A[:, i, None] * B[None, i] for i in range(A.shape[1])]
    return sum(terms[1:], start=terms[0])


def transpose(A: Float[Array, "*batch n k"]) -> Float[Array, "*batch k n"]:
    """The transpose of each matrix."""
    return jax.numpy.swapaxes(A, -1, -2)


def lq(
    B: Float[Array, "*batch r w"],
) -> tuple[Float[Array, "*batch r r"], Float[Array, "*batch r w"]]:
    """B = C Q with C lower triangular and QQᵀ = I, r ≤ w.

    Each row is orthogonalised twice against the previous rows, which is as accurate as rotations.
    The Cholesky factor of BBᵀ would lose digits if the rows differ in size.
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
