"""Checks of what a user passes, and the process-wide setting that running chains needs."""

from typing import Any

from threadpoolctl import threadpool_limits

from coarea.arguments import require_memory
from coarea.errors import ModelError
from coarea.manifolds import AbstractTarget

# About how many numbers say of a draw how it went.
_STATISTICS = 8


def check_target(target: Any, caller: str) -> None:
    """Refuse what is not a density on a manifold."""
    if not isinstance(target, AbstractTarget):
        raise ModelError(
            f"{caller} takes what coarea.condition(model, observed) returns, or a coarea.Manifold; "
            f"got {type(target).__name__}."
        )


def check_memory(size: int, chains: int, draws: int) -> None:
    """Refuse to draw what would not fit into memory: `size` numbers each, and how each went."""
    require_memory(
        8.0 * chains * draws * (size + _STATISTICS),
        f"{draws} draws of {chains} chains, with {size} numbers each,",
        "Ask for fewer draws or chains, or let the model return fewer outputs.",
    )


def one_blas_thread() -> threadpool_limits:
    """A context in which LAPACK runs in the thread that calls it.

    JAX calls SciPy's LAPACK on the CPU. Its own threads would fight with ours for the cores, and
    their number would show in the last bits of the draws.
    """
    return threadpool_limits(1, user_api="blas")
