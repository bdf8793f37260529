"""Seeds, random keys, and the keys of chains."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Key

from coarea.arguments import shown, whole_number
from coarea.errors import SettingError

_SEEDS = 2**63


def checked_seed(seed: Any) -> int:
    """Check that a seed is a whole number; return it as an int below 2⁶³.

    A larger seed, such as the entropy of NumPy's `SeedSequence`, is hashed.
    """
    number = whole_number(seed)
    if number is None or number < 0:
        raise SettingError(f"seed={shown(seed)}: it must be a whole number, 0 or more.")
    if number < _SEEDS:
        return number
    return int(np.random.SeedSequence(number).generate_state(1, np.uint64)[0]) % _SEEDS


def key_from_seed(seed: Any) -> Key[Array, ""]:
    """The random key of a seed, which does not depend on JAX's settings."""
    number = checked_seed(seed)
    data = np.array([number >> 32, number & 0xFFFFFFFF], np.uint32)
    return jax.random.wrap_key_data(jnp.asarray(data), impl="threefry2x32")


def checked_key(key: Any) -> Key[Array, ""]:
    """Check that this is one random key; a raw key or a seed is converted to a typed key."""
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
    """Convert raw `uint32` keys to typed keys; return anything else unchanged."""
    is_raw = isinstance(keys, jax.Array | np.ndarray) and keys.dtype == np.uint32 and keys.ndim
    impl = {2: "threefry2x32", 4: "rbg"}.get(keys.shape[-1]) if is_raw else None
    return keys if impl is None else jax.random.wrap_key_data(jnp.asarray(keys), impl=impl)


def _is_typed(keys: Any) -> bool:
    return isinstance(keys, jax.Array) and jnp.issubdtype(keys.dtype, jax.dtypes.prng_key)


class ChainKeys(NamedTuple):
    """The random keys of a chain, which depend only on the seed and the chain's number."""

    start: Key[Array, ""]
    run: Key[Array, ""]


def chain_keys(key: Key[Array, ""], chain: int | Int[Array, ""]) -> ChainKeys:
    """The keys of one chain."""
    return ChainKeys(*jax.vmap(jax.random.fold_in, (None, 0))(key, 2 * chain + jnp.arange(2)))
