"""Arguments that users pass, checked: counts, numbers, seeds and random keys."""

import math
import operator
from pathlib import Path
from typing import Any

import numpy as np
from jax.core import Tracer

from coarea.errors import DataError, SettingError


def checked_count(name: str, value: Any, least: int = 1) -> int:
    """A whole number of at least `least`, of any kind, as Python's."""
    number = whole_number(value)
    if number is None or number < least:
        raise SettingError(f"{name}={shown(value)}: it must be a whole number, {least} or more.")
    return number


def checked_number(
    name: str, value: Any, above: float = 0.0, below: float = math.inf, example: float = 0.1
) -> float:
    """A number strictly between two bounds, of any kind, as Python's."""
    number = _real(value)
    if number is None or not above < number < below:
        kind = "a positive number" if (above, below) == (0.0, math.inf) else "a number"
        between = f" between {above:g} and {below:g}" if below < math.inf else ""
        raise SettingError(
            f"{name}={shown(value)}: it must be {kind}{between}, such as {example:g}."
        )
    return number


def require_memory(num_bytes: float, what: str, cure: str) -> None:
    """Refuse what would not fit into the memory that is free."""
    free = _free_memory()
    if num_bytes > free:
        raise SettingError(
            f"{what} would take {num_bytes / 1e9:.3g} GB of memory, of which {free / 1e9:.3g} GB "
            f"are free. {cure}"
        )


def _free_memory() -> float:
    """How many bytes this process may still take, as far as the system tells."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        known = dict(line.split(":") for line in lines)
        return 1024.0 * int(known["MemAvailable"].split()[0])
    except (OSError, KeyError, ValueError):
        return math.inf


def check_draws(draws: Any, caller: str) -> None:
    """Refuse what are not draws in ArviZ's layout."""
    children = getattr(draws, "children", {})
    if "posterior" not in children or "sample_stats" not in children:
        raise DataError(
            f"{caller} takes the draws that coarea.sample returns, with groups posterior and "
            f"sample_stats; got {type(draws).__name__}"
            + (f" with groups {', '.join(children)}." if children else ".")
        )


def shown(value: Any) -> str:
    """A value in an error: as it is written, or only what it is if that is long."""
    text = repr(value)
    return text if len(text) <= 60 and "\n" not in text else f"a {type(value).__name__}"


def whole_number(value: Any) -> int | None:
    """A whole number of any kind as Python's; None if it is none."""
    if isinstance(value, bool | np.bool_):
        return None
    try:
        return operator.index(value)
    except TypeError:  # JAX's errors about traced values are of this kind too
        return None


def _real(value: Any) -> float | None:
    if isinstance(value, str | bytes | bool | np.bool_ | Tracer):
        return None
    try:
        number = np.asarray(value, dtype=float)
    except (TypeError, ValueError):
        return None
    return float(number) if number.shape == () else None
