"""How programs are compiled: in haste if they run once, with hints to XLA if they run for long."""

import functools
import os
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import equinox as eqx
import jax
from jax.core import Tracer
from jax.experimental.xla_metadata import set_xla_metadata

P = ParamSpec("P")
T = TypeVar("T")

_LEVEL = "xla_backend_optimization_level"
# Later versions have no plainer emitter of loops to choose.
_PLAIN = {"xla_cpu_use_fusion_emitters": False} if jax.__version_info__ < (0, 11) else {}


def kept(x: T) -> T:
    """x, computed once: what it is needed for reads it, rather than computing it anew.

    On a CPU XLA lets every loop that reads a result repeat all cheap steps to it, however often it
    reads it, and drops optimisation barriers before it so decides. A call that it may not inline it
    respects.
    """

    def read_only(*leaves):
        return tuple(set_xla_metadata(x, inlineable="false") for x in _identity(leaves))

    leaves, tree = jax.tree.flatten(x)
    leaves = jax.lax.platform_dependent(*leaves, cpu=read_only, default=lambda *leaves: leaves)
    return jax.tree.unflatten(tree, leaves)  # pyright: ignore[reportArgumentType]


@jax.jit
def _identity(leaves):
    return leaves


def runs_once(function: Callable[P, T], level: int = 0) -> Callable[P, T]:
    """Compile a function in haste: it will be over sooner than it would be made faster.

    Without optimisation compiling takes half as long; what has loops wants level 1, which makes
    them nearly as fast as any. A level in the user's XLA_FLAGS is kept. Within another program the
    function is a part of that.
    """
    options: dict[str, bool | int] = dict(_PLAIN)
    if _LEVEL not in os.environ.get("XLA_FLAGS", ""):
        options[_LEVEL] = level
    compiled = eqx.filter_jit(function, compiler_options=options)  # pyright: ignore[reportCallIssue]

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        is_part = any(isinstance(x, Tracer) for x in jax.tree.leaves((args, kwargs)))
        return (function if is_part else compiled)(*args, **kwargs)

    return call
