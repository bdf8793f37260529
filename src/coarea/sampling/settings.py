"""Checks of what a user passes, and the process-wide setting that running chains needs."""

import operator
from typing import Any

from threadpoolctl import threadpool_limits

from coarea.errors import ModelError, SettingError
from coarea.manifolds import AbstractTarget


def check_target(target: Any, caller: str) -> None:
    """Refuse what is not a density on a manifold."""
    if not isinstance(target, AbstractTarget):
        raise ModelError(
            f"{caller} takes what coarea.condition(model, observed) returns, or a coarea.Manifold; "
            f"got {type(target).__name__}."
        )


def check_count(name: str, value: Any, least: int) -> None:
    """Refuse what is not a whole number of at least `least`."""
    try:
        is_well = operator.index(value) >= least
    except TypeError:
        is_well = False
    if not is_well:
        raise SettingError(f"{name}={value!r}: it must be a whole number, {least} or more.")


def one_blas_thread() -> threadpool_limits:
    """A context in which LAPACK runs in the thread that calls it.

    JAX calls SciPy's LAPACK on the CPU. Its own threads would fight with ours for the cores, and
    their number would show in the last bits of the draws.
    """
    return threadpool_limits(1, user_api="blas")
