"""Double precision by context; the process-wide flag is never changed."""

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Literal, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
from jax.core import Tracer

from coarea.errors import PrecisionError, SettingError

Precision = Literal["float64", "float32"]

P = ParamSpec("P")
T = TypeVar("T")


@contextmanager
def computing_in(precision: Precision) -> Iterator[None]:
    """A context in which JAX computes with `precision`, for the current thread only."""
    if precision not in ("float64", "float32"):
        raise SettingError(f"precision={precision!r}: choose 'float64' or 'float32'.")
    with ExitStack() as more:
        for setting in (
            jax.enable_x64(precision == "float64"),
            # Undo settings of the user that this library does not support.
            jax.numpy_dtype_promotion("standard"),
            jax.disable_jit(False),
            jax.debug_nans(False),
            jax.debug_infs(False),
        ):
            more.enter_context(setting)
        if precision == "float32":
            # By default accelerators multiply float32 matrices to about three digits.
            more.enter_context(jax.default_matmul_precision("highest"))
        yield


def in_float64(function: Callable[P, T]) -> Callable[P, T]:
    """Run a top-level call in double precision, whatever the caller's setting."""

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        with computing_in("float64"):
            return function(*args, **kwargs)

    return wrapped


def top_level(function: Callable[P, T]) -> Callable[P, T]:
    """Run a call in double precision, and refuse to run it in a function that JAX traces."""

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        require_no_trace(function.__name__)
        with computing_in("float64"):
            return function(*args, **kwargs)

    return wrapped


def require_no_trace(name: str) -> None:
    """Raise if called in a function that JAX traces."""
    if isinstance(jnp.zeros(()), Tracer):
        raise SettingError(
            f"{name} was called in a function that jax.jit, scan or another of JAX's "
            "transformations traces. It runs Python and returns NumPy arrays: call it outside."
        )


def require_float64(what: str) -> None:
    """Raise if JAX would silently compute `what` in single precision."""
    if jnp.zeros(()).dtype != jnp.float64:
        raise PrecisionError(
            f"{what} needs double precision, but JAX's x64 mode is off, so arrays would be "
            "float32. Enclose the calls in `with jax.enable_x64(True):` (in every thread that "
            "makes them), or set `jax.config.update('jax_enable_x64', True)` at the start of the "
            "program. `coarea.sample` does this by itself."
        )
