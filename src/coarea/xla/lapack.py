"""LAPACK on a CPU: which programs call it, and how to call it safely.

jaxlib splits a batched LAPACK call into tasks for XLA's threads and waits for them on one of those
threads. Two batched calls at once, in one program or in two, can each hold a thread and wait for
ever. So whatever calls LAPACK is mapped sequentially on a CPU.
"""

from collections.abc import Callable
from typing import Any

import jax
from threadpoolctl import threadpool_limits

from coarea.xla.jaxprs import equations
from coarea.xla.platforms import on_cpu

_FACTORISATIONS = frozenset(
    """
    cholesky eig eigh geqrf hessenberg householder_product lu qr schur svd triangular_solve
    tridiagonal tridiagonal_solve
    """.split()  # noqa: SIM905
)


def calls_lapack(function: Callable, *example: Any) -> bool:
    """Whether a function factors or solves matrices, for which JAX calls LAPACK on a CPU."""
    jaxpr = jax.make_jaxpr(function)(*example).jaxpr
    return any(equation.primitive.name in _FACTORISATIONS for equation in equations(jaxpr))


def sequential_vmap_on_cpu(function: Callable) -> Callable:
    """`vmap`, except on a CPU, where it is one call after another."""

    def mapped(rows):
        return on_cpu(lambda rows: jax.lax.map(function, rows), rows, otherwise=jax.vmap(function))

    return mapped


def one_blas_thread() -> threadpool_limits:
    """A context in which LAPACK runs in the thread that calls it.

    Threads of its own would compete with ours for the cores, and their number would show in the
    last bits of the draws.
    """
    return threadpool_limits(1, user_api="blas")
