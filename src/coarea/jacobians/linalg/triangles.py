"""Products of large triangular matrices, and Gram matrices, by recursive blocking.

Half of such a product is zero, or known by symmetry; most of that half is not computed.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

# Matrices with more rows than this are split. Two smaller products then take less time than one.
_LARGE = 256


def gram(J: Float[Array, "n m"]) -> Float[Array, "n n"]:
    """J Jᵀ; if it is large, parts of its upper triangle are zero."""
    n = len(J)
    if n <= _LARGE:
        return J @ J.T
    first, last = J[: n // 2], J[n // 2 :]
    beside = last @ first.T
    return jnp.block([[gram(first), jnp.zeros_like(beside.T)], [beside, gram(last)]])


def lower_times(C: Float[Array, "n n"], B: Float[Array, "n m"]) -> Float[Array, "n m"]:
    """C B for a lower C; if C is large, products with its zeros are skipped."""
    h = len(C) // 2
    if len(C) <= _LARGE:
        return C @ B
    last = C[h:, :h] @ B[:h] + lower_times(C[h:, h:], B[h:])
    return jnp.concatenate([lower_times(C[:h, :h], B[:h]), last])


def lower_transpose_times(C: Float[Array, "n n"], B: Float[Array, "n m"]) -> Float[Array, "n m"]:
    """Cᵀ B for a lower C; if C is large, products with its zeros are skipped."""
    h = len(C) // 2
    if len(C) <= _LARGE:
        return C.T @ B
    first = lower_transpose_times(C[:h, :h], B[:h]) + C[h:, :h].T @ B[h:]
    return jnp.concatenate([first, lower_transpose_times(C[h:, h:], B[h:])])
