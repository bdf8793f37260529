"""LAPACK on a CPU: which programs call it, and how to call it safely."""

from collections.abc import Callable
from typing import Any

import jax
from threadpoolctl import threadpool_limits

from coarea.xla.jaxprs import equations


def one_blas_thread() -> threadpool_limits:
    """A context in which LAPACK runs in the thread that calls it.

    JAX calls SciPy's LAPACK on the CPU. Its own threads would fight with ours for the cores, and
    their number would show in the last bits of the draws.
    """
    return threadpool_limits(1, user_api="blas")


# LAPACK's on a CPU.
_FACTORISATIONS = frozenset(
    """
    cholesky eig eigh geqrf hessenberg householder_product lu qr schur svd triangular_solve
    tridiagonal tridiagonal_solve
    """.split()  # noqa: SIM905
)


def calls_lapack(function: Callable, *example: Any) -> bool:
    """Whether a function factors matrices, for which a CPU calls LAPACK.

    Of a batch JAX makes tasks for its threads, and waits for them on one of these: calls for two
    batches that find no other thread wait for ever, be they in one program or in two.
    """
    jaxpr = jax.make_jaxpr(function)(*example).jaxpr
    return any(equation.primitive.name in _FACTORISATIONS for equation in equations(jaxpr))


def in_turn_on_a_cpu(function: Callable) -> Callable:
    """`vmap`, but on a CPU one after the other, as what calls LAPACK must be."""

    def mapped(rows):
        return jax.lax.platform_dependent(
            rows, cpu=lambda rows: jax.lax.map(function, rows), default=jax.vmap(function)
        )

    return mapped
