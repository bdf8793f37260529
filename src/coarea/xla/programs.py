"""How programs are compiled: in haste if they run once, with hints to XLA if they run for long."""

import functools
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.core import Tracer

P = ParamSpec("P")
T = TypeVar("T")

_LEVEL = "xla_backend_optimization_level"
# Later versions have no plainer emitter of loops to choose.
_PLAIN = {"xla_cpu_use_fusion_emitters": False} if jax.__version_info__ < (0, 11) else {}


def runs_once(function: Callable[P, T], level: int = 0) -> Callable[P, T]:
    """Compile a function in haste: it will be over sooner than it would be made faster.

    Without optimisation compiling takes half as long; what has loops wants level 1, which makes
    them nearly as fast as any. A level in the user's XLA_FLAGS is kept. Within another program the
    function is a part of that.
    """
    options: dict[str, bool | int] = dict(_PLAIN)
    if _LEVEL not in os.environ.get("XLA_FLAGS", ""):
        options[_LEVEL] = level
    compiled = compile_bounded(function, options)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        is_part = any(isinstance(x, Tracer) for x in jax.tree.leaves((args, kwargs)))
        return (function if is_part else compiled)(*args, **kwargs)

    return call


def compile_bounded(
    function: Callable[P, T], options: Mapping[str, Any] | None = None
) -> Callable[P, T]:
    """`equinox.filter_jit`, of whose programs the process keeps a bounded number.

    Each compiled program holds memory and memory maps, of which Linux allows a process 65 530.
    Those that were not used for longest are dropped.
    """

    def found(args, kwargs) -> tuple["_Compiled", list[Any]]:
        arrays, rest = eqx.partition((args, kwargs), eqx.is_array)
        leaves, tree = jax.tree.flatten(arrays)
        others, other_tree = jax.tree.flatten(rest)
        key = (
            function,
            tree,
            other_tree,
            tuple((type(x), x) for x in others),
            tuple(map(_signature, leaves)),
            jax.dtypes.canonicalize_dtype(float),
        )
        with _LOCK:
            compiled = _programs.pop(key, None)
            if compiled is None:
                _make_room()
                compiled = _Compiled(function, tree, rest, options)
            _programs[key] = compiled
        return compiled, leaves

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        compiled, leaves = found(args, kwargs)
        return compiled(leaves)

    def lower(*args: P.args, **kwargs: P.kwargs) -> Any:
        """As `jax.jit` has it."""
        compiled, leaves = found(args, kwargs)
        return compiled.run.lower(leaves)

    call.lower = lower  # pyright: ignore[reportAttributeAccessIssue]
    return call


# Programs by what they were compiled for, the one used last at the end.
_programs: OrderedDict[Any, "_Compiled"] = OrderedDict()
_LOCK = threading.Lock()
_MOST_PROGRAMS = 400
_MOST_MAPS = 30_000


class _Compiled:
    """A function compiled for one choice of what is not an array in its arguments."""

    _rest: Any = None  # of what the function returns: what is no array

    def __init__(self, function: Callable, tree, rest, options: Mapping[str, Any] | None):
        def run(leaves):
            args, kwargs = eqx.combine(jax.tree.unflatten(tree, leaves), rest)
            arrays, self._rest = eqx.partition(function(*args, **kwargs), eqx.is_array)
            return arrays

        run.__name__ = run.__qualname__ = getattr(function, "__name__", "run")
        self.run = jax.jit(run, compiler_options=dict(options) if options else None)

    def __call__(self, leaves: list[Any]) -> Any:
        arrays = self.run(leaves)
        return eqx.combine(arrays, self._rest)


def _make_room() -> None:
    """Drop the programs that were not used for longest."""
    while len(_programs) >= _MOST_PROGRAMS:
        _programs.popitem(last=False)
    if len(_programs) % 16 == 0 and _num_maps() > _MOST_MAPS:
        for _ in range(len(_programs) // 2):
            _programs.popitem(last=False)


def _num_maps() -> int:
    """How many memory maps the process has, where that can be known."""
    try:
        with open("/proc/self/maps", "rb") as maps:
            return sum(1 for _ in maps)
    except OSError:
        return 0


def _signature(x: Any) -> tuple:
    return jnp.shape(x), x.dtype, getattr(x, "weak_type", False)
