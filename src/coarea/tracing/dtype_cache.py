"""Work around JAX caching a NumPy array in the precision in which it was first traced."""

import functools
import gc
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

# The depth to which the objects that a function references are searched for arrays.
_REACH = 3


def forget_other_precision(function: Callable) -> None:
    """Clear JAX's caches if they hold an array of the function in another precision.

    As long as a program that closes over a NumPy array lives, JAX caches the array in its canonical
    dtype, whatever precision is enabled later. A new program would get rounded data, or fail.
    """
    for x in _arrays(function, _REACH, set()):
        canonical = jax.dtypes.canonicalize_dtype(x.dtype)
        if x.dtype.itemsize >= 8 and x.dtype.kind in "iuf" and _remembered(x) != canonical:
            forget_all()
            return


def _remembered(x: np.ndarray) -> Any:
    return jax.make_jaxpr(lambda: jax.lax.mul(x, x))().out_avals[0].dtype  # pyright: ignore


def forget_all() -> None:
    """Clear JAX's caches."""
    jax.clear_caches()
    gc.collect()


def met_other_precision(error: Exception) -> bool:
    """Whether an error is typical of an array cached in another precision."""
    text = str(error)
    return (isinstance(error, TypeError) and "same dtypes" in text and "int64" in text) or (
        isinstance(error, jax.errors.JaxRuntimeError) and "incompatible size" in text
    )


def _arrays(x: Any, depth: int, seen: set[int]) -> Iterator[np.ndarray]:
    """The NumPy arrays that a function references, up to a depth."""
    if id(x) in seen or isinstance(x, str | int | float | type | jax.Array):
        return
    seen.add(id(x))
    if isinstance(x, np.ndarray):
        yield x
        return
    if depth == 0:
        return
    held: list[Any] = []
    if isinstance(x, functools.partial):
        held += [x.func, *x.args, *x.keywords.values()]
    elif isinstance(x, Mapping):
        held += list(x.values())
    elif isinstance(x, list | tuple):
        held += list(x)
    elif hasattr(x, "__code__"):
        closure = zip(x.__code__.co_freevars, x.__closure__ or (), strict=False)
        held += [cell.cell_contents for _, cell in closure if not _is_empty(cell)]
        held += [x.__globals__[n] for n in x.__code__.co_names if n in x.__globals__]
        held += list(x.__defaults__ or ())
        held += [getattr(x, "__self__", None)]
    elif hasattr(x, "__wrapped__"):
        held.append(x.__wrapped__)
    elif hasattr(x, "__func__"):
        held += [x.__func__, x.__self__]
    elif type(x).__module__.partition(".")[0] not in ("jax", "numpyro", "numpy", "builtins"):
        held += list(getattr(x, "__dict__", {}).values())
        held.append(vars(type(x)).get("__call__"))
    for y in held:
        yield from _arrays(y, depth - (not callable(y)), seen)


def _is_empty(cell) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return True
    return False
