"""Compiled programs: quickly compiled ones, and a bounded number of them."""

import functools
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.core import Tracer

from coarea.xla.options import for_fast_compile, hints_enabled

P = ParamSpec("P")
T = TypeVar("T")


def jit_fast_compile(function: Callable[P, T], level: int = 0) -> Callable[P, T]:
    """`jit_bounded` for a function that runs once: compile time matters more than run time.

    Without optimisation compiling takes half as long. Functions with long loops want `level=1`,
    which makes loops nearly as fast as any level. Called while JAX traces another program, the
    function becomes part of that program.
    """
    compiled = jit_bounded(function, lambda: for_fast_compile(level))

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        is_traced = any(isinstance(x, Tracer) for x in jax.tree.leaves((args, kwargs)))
        return (function if is_traced else compiled)(*args, **kwargs)

    call.compile = compiled.compile  # pyright: ignore
    return call


def jit_bounded(
    function: Callable[P, T], options: Callable[[], Mapping[str, Any]] | None = None
) -> Callable[P, T]:
    """`equinox.filter_jit`, except that the process keeps a bounded number of programs.

    Each compiled program holds memory and memory maps, of which Linux allows a process 65 530. The
    least recently used programs are dropped. `options` gives XLA's compiler options.
    """

    def found(args, kwargs) -> tuple["_Compiled", list[Any]]:
        leaves, tree = jax.tree.flatten((args, kwargs))
        arrays = [x for x in leaves if _is_array_or_shape(x)]
        others = [_ARRAY if _is_array_or_shape(x) else x for x in leaves]
        key = (
            function,
            tree,
            tuple((type(x), x) for x in others),
            tuple(map(_signature, arrays)),
            jax.dtypes.canonicalize_dtype(float),
            hints_enabled(),
        )
        with _LOCK:
            compiled = _programs.pop(key, None)
            if compiled is None:
                _make_room()
                compiled = _Compiled(function, tree, others, options() if options else {})
            _programs[key] = compiled
        return compiled, arrays

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        compiled, leaves = found(args, kwargs)
        return compiled(leaves)

    def lower(*args: P.args, **kwargs: P.kwargs) -> Any:
        """As `jax.jit` has it."""
        compiled, leaves = found(args, kwargs)
        return compiled.run.lower(leaves)

    def compile(*args: P.args, **kwargs: P.kwargs) -> T:
        """Compile without running, for the devices that the arguments are on.

        Arguments may be shapes in place of arrays. The result has shapes for arrays.
        """
        compiled, leaves = found(args, kwargs)
        return compiled.compile(leaves)

    call.lower = lower  # pyright: ignore[reportAttributeAccessIssue]
    call.compile = compile  # pyright: ignore[reportAttributeAccessIssue]
    return call


# Programs by what they were compiled for, the most recently used at the end.
_programs: OrderedDict[Any, "_Compiled"] = OrderedDict()
_LOCK = threading.Lock()
_MOST_PROGRAMS = 400
_MOST_MAPS = 30_000
# Stands for an array among arguments that are no arrays.
_ARRAY = object()


class _Compiled:
    """A function compiled for one choice of what is not an array in its arguments."""

    def __init__(self, function: Callable, tree, others: list[Any], options: Mapping[str, Any]):
        def run(leaves):
            left = iter(leaves)
            args, kwargs = tree.unflatten([next(left) if x is _ARRAY else x for x in others])
            arrays, self._rest = eqx.partition(function(*args, **kwargs), eqx.is_array)
            return arrays

        run.__name__ = run.__qualname__ = getattr(function, "__name__", "run")
        self.run = jax.jit(run, compiler_options=dict(options) or None)
        self._rest: Any = None  # what the function returns beside arrays, known once it is traced
        self._executable: Callable | None = None

    def __call__(self, leaves: list[Any]) -> Any:
        arrays = (self._executable or self.run)(leaves)
        return eqx.combine(arrays, self._rest)

    def compile(self, leaves: list[Any]) -> Any:
        if self._executable is None:
            self._executable = self.run.lower(leaves).compile()
        return eqx.combine(jax.eval_shape(self.run, leaves), self._rest)


def _make_room() -> None:
    """Drop the least recently used programs."""
    while len(_programs) >= _MOST_PROGRAMS:
        _programs.popitem(last=False)
    if len(_programs) % 16 == 0 and _num_maps() > _MOST_MAPS:
        for _ in range(len(_programs) // 2):
            _programs.popitem(last=False)


def _num_maps() -> int:
    """How many memory maps the process has; 0 where the system does not say."""
    try:
        with open("/proc/self/maps", "rb") as maps:
            return sum(1 for _ in maps)
    except OSError:
        return 0


def _is_array_or_shape(x: Any) -> bool:
    return eqx.is_array(x) or isinstance(x, jax.ShapeDtypeStruct)


def _signature(x: Any) -> tuple:
    return jnp.shape(x), x.dtype, getattr(x, "weak_type", False)
