"""A program as one routine of machine code.

On a CPU XLA makes of a program some hundred small ones, and calls them one by one. For vectors of a
few hundred elements that takes longer than what they do. Loops that touch less than a kilobyte it
compiles as a whole, by a means that is open to other calls too.
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

# Operations that can be part of a routine. Others call libraries.
_CAN_BE_PART = frozenset(
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
# These hold others, write into what is there already, or only have it in another shape: their
# results may be large.
_MAY_BE_LARGE = frozenset(
    """
    broadcast_in_dim cond custom_jvp_call custom_vjp_call custom_vmap_call dynamic_update_slice jit
    reshape scan scatter squeeze while xla_metadata_value
    """.split()  # noqa: SIM905
)
# Larger arrays are better off in loops of their own, and larger products in a library.
_MOST_BYTES = 2**16
_MOST_PRODUCTS = 2**15
# The compiler takes longer than in proportion.
_MOST_OPERATIONS = 10_000


def one_routine(
    function: Callable[..., T], args: tuple, otherwise: Callable[..., T] | None = None
) -> T:
    """`function(*args)` as one routine, if it suits. If not, `otherwise(*args)`, if that is given.

    To be called within a program that is compiled for a CPU. All arrays are handed over as one: an
    argument that the routine turned out not to need would bring down the compiler.
    """
    arrays, rest = eqx.partition(args, eqx.is_array)
    leaves, tree = jax.tree.flatten(arrays)
    if any(jnp.iscomplexobj(x) for x in leaves):  # which are no bytes
        return (otherwise or function)(*args)
    bag = _Bag(leaves)

    @jax.jit
    def routine(packed):
        return function(*eqx.combine(jax.tree.unflatten(tree, bag.unpacked(packed)), rest))

    packed = bag.packed(leaves)
    suits = _suits(routine.trace(packed).jaxpr.jaxpr)
    if not suits and otherwise is not None:
        return otherwise(*args)
    results = routine(packed)
    return jax.tree.map(_of_routine, results) if suits else results


def _of_routine(x: Array) -> Any:
    # The mark is one of the call that the array comes from.
    return x if _is_key(x) else set_xla_metadata(x, inlineable="false", xla_cpu_small_call="true")


def _suits(jaxpr: core.Jaxpr) -> bool:
    for count, equation in enumerate(equations(jaxpr)):
        if count > _MOST_OPERATIONS or not _can_be_part(equation):
            return False
    return True


def _can_be_part(equation) -> bool:
    name = equation.primitive.name
    if name not in _CAN_BE_PART:
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


class _Bag:
    """Arrays of any dtypes as one of bytes."""

    def __init__(self, leaves: Sequence[Array]):
        self._keys = [jax.random.key_impl(x) if _is_key(x) else None for x in leaves]
        self._like = [(x.shape, x.dtype) for x in map(_raw, leaves)]

    @staticmethod
    def packed(leaves: Sequence[Array]) -> Array:
        return jnp.concatenate([_as_bytes(_raw(x)) for x in leaves])

    def unpacked(self, packed: Array) -> list[Array]:
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
