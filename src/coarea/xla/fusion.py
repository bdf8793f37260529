"""Fuse a small computation into one CPU kernel.

XLA:CPU splits a program into about a hundred kernels. For vectors of a few hundred elements
launching them costs more than the arithmetic. Loops that touch less than a kilobyte are compiled as
one function; the same frontend attributes that XLA sets for those can be set for any call.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.experimental.xla_metadata import set_xla_metadata
from jax.extend import core
from jaxtyping import Array

from coarea.xla.jaxprs import equations

T = TypeVar("T")

# Operations that a fused kernel may hold. Others call libraries.
_ALLOWED = frozenset(
    """
    abs acos acosh add add_any and argmax argmin asin asinh atan atan2 atanh bitcast_convert_type
    broadcast_in_dim cbrt ceil clamp clz concatenate cond convert_element_type copy copy_p cos cosh
    cumlogsumexp cummax cummin cumprod cumsum custom_jvp_call custom_vjp_call custom_vmap_call
    digamma div dot_general dynamic_slice dynamic_update_slice eq erf erf_inv erfc exp exp2
    expand_dims expm1 floor gather ge gt igamma igammac integer_pow iota is_finite jit le lgamma
    log log1p logistic lt max min mul ne neg nextafter not or pad platform_index population_count
    pow random_bits random_fold_in random_seed random_split random_unwrap random_wrap reduce_and
    reduce_max reduce_min reduce_or reduce_prod reduce_sum regularized_incomplete_beta rem reshape
    rev round rsqrt scan scatter scatter-add select_n shift_left shift_right_arithmetic
    shift_right_logical sign sin sinh slice split sqrt square squeeze stack stop_gradient sub tan
    tanh threefry2x32 transpose unstack while xla_metadata_value xor
    """.split()  # noqa: SIM905
)
# Their results may be large: they call other programs, write in place, or only change a shape.
_MAY_BE_LARGE = frozenset(
    """
    broadcast_in_dim cond custom_jvp_call custom_vjp_call custom_vmap_call dynamic_update_slice jit
    reshape scan scatter squeeze while xla_metadata_value
    """.split()  # noqa: SIM905
)
# Larger arrays are better computed in loops of their own, larger products by a library.
_MOST_BYTES = 2**16
_MOST_PRODUCTS = 2**15
# Compile time grows faster than the number of operations.
_MOST_OPERATIONS = 10_000


def fuse_cpu(
    function: Callable[..., T], args: tuple, otherwise: Callable[..., T] | None = None
) -> T:
    """`function(*args)` as one CPU kernel if its operations allow that.

    If they do not: `otherwise(*args)`, or without it the same as ordinary kernels. Call it inside a
    program that is compiled for a CPU. All arrays travel as one array of bytes, because XLA aborts
    if a fused kernel has an argument that turns out to be unused.
    """
    arrays, rest = eqx.partition(args, eqx.is_array)
    leaves, tree = jax.tree.flatten(arrays)
    if any(jnp.iscomplexobj(x) for x in leaves):  # which cannot be packed
        return (otherwise or function)(*args)
    packing = _Packing(leaves)

    @jax.jit
    def kernel(packed):
        return function(*eqx.combine(jax.tree.unflatten(tree, packing.unpack(packed)), rest))

    packed = packing.pack(leaves)
    can_fuse = _can_fuse(kernel.trace(packed).jaxpr.jaxpr)
    if not can_fuse and otherwise is not None:
        return otherwise(*args)
    results = kernel(packed)
    return jax.tree.map(_mark_fused, results) if can_fuse else results


def _mark_fused(x: Array) -> Any:
    # The attributes belong to the call that the array comes from.
    return x if _is_key(x) else set_xla_metadata(x, inlineable="false", xla_cpu_small_call="true")


def _can_fuse(jaxpr: core.Jaxpr) -> bool:
    for count, equation in enumerate(equations(jaxpr)):
        if count > _MOST_OPERATIONS or not _is_allowed(equation):
            return False
    return True


def _is_allowed(equation) -> bool:
    name = equation.primitive.name
    if name not in _ALLOWED:
        return False
    if name not in _MAY_BE_LARGE:
        sizes = (math.prod(v.aval.shape) * v.aval.dtype.itemsize for v in equation.outvars)
        if max(sizes, default=0) > _MOST_BYTES:
            return False
    if name.startswith("scatter"):  # at one place
        return math.prod(equation.invars[1].aval.shape[:-1]) == 1
    if name == "dot_general":
        (contracted, _), _ = equation.params["dimension_numbers"]
        shape = equation.invars[0].aval.shape
        size = math.prod(equation.outvars[0].aval.shape)
        return size * math.prod(shape[i] for i in contracted) <= _MOST_PRODUCTS
    return True


class _Packing:
    """How arrays of any dtypes are laid out in one array of bytes."""

    def __init__(self, leaves: Sequence[Array]):
        self._keys = [jax.random.key_impl(x) if _is_key(x) else None for x in leaves]
        self._like = [(x.shape, x.dtype) for x in map(_raw, leaves)]

    @staticmethod
    def pack(leaves: Sequence[Array]) -> Array:
        return jnp.concatenate([_as_bytes(_raw(x)) for x in leaves])

    def unpack(self, packed: Array) -> list[Array]:
        begin, leaves = 0, []
        for (shape, dtype), impl in zip(self._like, self._keys, strict=True):
            end = begin + math.prod(shape) * dtype.itemsize
            x = _from_bytes(packed[begin:end], shape, dtype)
            leaves.append(x if impl is None else jax.random.wrap_key_data(x, impl=impl))
            begin = end
        return leaves


def _as_bytes(x: Array) -> Array:
    if jnp.issubdtype(x.dtype, bool):
        return x.astype(jnp.uint8).ravel()
    return jax.lax.bitcast_convert_type(x, jnp.uint8).ravel()


def _from_bytes(packed: Array, shape: tuple[int, ...], dtype) -> Array:
    if jnp.issubdtype(dtype, bool):
        return packed.reshape(shape).astype(bool)
    rest = () if dtype.itemsize == 1 else (dtype.itemsize,)
    return jax.lax.bitcast_convert_type(packed.reshape(*shape, *rest), dtype)


def _raw(x: Array) -> Array:
    return jax.random.key_data(x) if _is_key(x) else x


def _is_key(x: Array) -> bool:
    return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
