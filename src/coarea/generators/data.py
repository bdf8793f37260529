"""Observed values as arrays of real numbers, with missing values masked."""

from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from coarea.errors import DataError


def real_values(name: str, given: Any) -> np.ma.MaskedArray:
    """Copy the observed values; refuse values that are not real numbers."""
    try:
        data = np.ma.array(given, copy=True)
    except Exception as error:  # the type that NumPy raises depends on the value
        raise DataError(
            f"observed {name!r} cannot be made an array of numbers: {_why(given)}."
        ) from error
    if data.dtype.kind not in "fiub":
        raise DataError(f"observed {name!r} is not real-valued: {_why(given, data.dtype)}.")
    return data


def _why(given: Any, dtype: Any = None) -> str:
    if given is None:
        return "it is None. Leave out what was not observed, or mask it (numpy.ma.masked_invalid)"
    if isinstance(given, Tracer):
        return "it is being traced by JAX. Condition outside of jit, grad and vmap"
    if isinstance(given, list | tuple) and any(x is None for x in given):
        return "it has None among its values. Mask what is missing (numpy.ma.masked_invalid)"
    if isinstance(given, list | tuple) and dtype in (None, object):
        return "its rows differ in length. Fill them up and mask what was added (numpy.ma)"
    if dtype is not None and dtype.kind == "O" and not isinstance(given, np.ndarray):
        return f"it is a {type(given).__name__}"
    if isinstance(given, jax.Array):
        return f"it has dtype {given.dtype}"
    return f"it has dtype {dtype}" if dtype is not None else f"it is a {type(given).__name__}"
