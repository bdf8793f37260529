"""Checks of arguments that users pass: counts, numbers, memory and draws."""

import math
import operator
from pathlib import Path
from typing import Any

import numpy as np
from jax.core import Tracer

from coarea.errors import DataError, SettingError


def checked_count(name: str, value: Any, least: int = 1) -> int:
    """Check that a value is a whole number of at least `least`; return it as an int."""
    number = whole_number(value)
    if number is None or number < least:
        raise SettingError(f"{name}={shown(value)}: it must be a whole number, {least} or more.")
    return number


def checked_number(
    name: str, value: Any, above: float = 0.0, below: float = math.inf, example: float = 0.1
) -> float:
    """Check that a value is a number strictly between two bounds; return it as a float."""
    number = _real(value)
    if number is None or not above < number < below:
        kind = "a positive number" if (above, below) == (0.0, math.inf) else "a number"
        between = f" between {above:g} and {below:g}" if below < math.inf else ""
        raise SettingError(
            f"{name}={shown(value)}: it must be {kind}{between}, such as {example:g}."
        )
    return number


def require_memory(num_bytes: float, what: str, cure: str) -> None:
    """Raise if `num_bytes` exceeds the free memory."""
    free = _free_memory()
    if num_bytes > free:
        raise SettingError(
            f"{what} would take {num_bytes / 1e9:.3g} GB of memory, of which {free / 1e9:.3g} GB "
            f"are free. {cure}"
        )


def _free_memory() -> float:
    """The free memory in bytes; infinite if the system does not report it."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        known = dict(line.split(":") for line in lines)
        return 1024.0 * int(known["MemAvailable"].split()[0])
    except (OSError, KeyError, ValueError):
        return math.inf


def check_draws(draws: Any, caller: str) -> None:
    """Refuse anything but draws in ArviZ's layout."""
    children = getattr(draws, "children", {})
    if "posterior" not in children or "sample_stats" not in children:
        raise DataError(
            f"{caller} takes the draws that coarea.sample returns, with groups posterior and "
            f"sample_stats; got {type(draws).__name__}"
            + (f" with groups {', '.join(children)}." if children else ".")
        )


def shown(value: Any) -> str:
    """A value for an error message: its repr, or only its type if the repr is long."""
    text = repr(value)
    return text if len(text) <= 60 and "\n" not in text else f"a {type(value).__name__}"


def whole_number(value: Any) -> int | None:
    """A whole number of any type as an int; None if the value is not one."""
    if isinstance(value, bool | np.bool_):
        return None
    try:
        return operator.index(value)
    except TypeError:  # includes JAX's errors about traced values
        return None


def _real(value: Any) -> float | None:
    if isinstance(value, str | bytes | bool | np.bool_ | Tracer):
        return None
    try:
        number = np.asarray(value, dtype=float)
    except (TypeError, ValueError):
        return None
    return float(number) if number.shape == () else None
