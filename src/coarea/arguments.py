"""Arguments that users pass, checked: counts, numbers, seeds and random keys."""

import math
import operator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Key

from coarea.errors import DataError, SettingError

_SEEDS = 2**63


def checked_count(name: str, value: Any, least: int = 1) -> int:
    """A whole number of at least `least`, of any kind, as Python's."""
    number = _whole(value)
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


def checked_seed(seed: Any) -> int:
    """A whole number of any kind and size, as Python's and below 2⁶³.

    A larger one, such as the entropy of NumPy's `SeedSequence`, is hashed.
    """
    number = _whole(seed)
    if number is None or number < 0:
        raise SettingError(f"seed={shown(seed)}: it must be a whole number, 0 or more.")
    if number < _SEEDS:
        return number
    return int(np.random.SeedSequence(number).generate_state(1, np.uint64)[0]) % _SEEDS


def key_from_seed(seed: Any) -> Key[Array, ""]:
    """The random key of a seed, the same whatever JAX's settings are."""
    number = checked_seed(seed)
    data = np.array([number >> 32, number & 0xFFFFFFFF], np.uint32)
    return jax.random.wrap_key_data(jnp.asarray(data), impl="threefry2x32")


def checked_key(key: Any) -> Key[Array, ""]:
    """One random key, of JAX's newer kind. One of the older kind, or a seed, is made such a key."""
    typed = typed_keys(key)
    if _is_typed(typed) and typed.shape == ():
        return typed
    if _is_typed(typed):
        raise SettingError(
            f"key holds several keys (shape {typed.shape}): give one of them, such as key[0]."
        )
    try:
        return key_from_seed(key)
    except SettingError:
        raise SettingError(
            f"key={shown(key)}: give a random key, such as jax.random.key(0), or a whole number."
        ) from None


def typed_keys(keys: Any) -> Any:
    """Random keys of JAX's older kind as keys of its newer kind; all else as it is."""
    is_raw = isinstance(keys, jax.Array | np.ndarray) and keys.dtype == np.uint32 and keys.ndim
    impl = {2: "threefry2x32", 4: "rbg"}.get(keys.shape[-1]) if is_raw else None
    return keys if impl is None else jax.random.wrap_key_data(jnp.asarray(keys), impl=impl)


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


def _is_typed(keys: Any) -> bool:
    return isinstance(keys, jax.Array) and jnp.issubdtype(keys.dtype, jax.dtypes.prng_key)


def _whole(value: Any) -> int | None:
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
