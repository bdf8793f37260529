"""Share one object between programs with equal equations."""

import importlib.util
import threading
import weakref
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core
from typing_extensions import override

from coarea.tracing.constants import bind

# A lock for tracing: the stack of NumPyro's handlers belongs to the process, not to a thread.
TRACING = threading.RLock()
# Nested derivative rules are compared by their equations up to this depth, and by their source
# location beyond it. No higher derivatives than this are ever taken.
_RULES = 3
# Rules defined in these folders close over nothing that changes.
_LIBRARIES = tuple(
    str(Path(str(module.origin)).parent)
    for name in ("jax", "numpyro", "coarea")
    if (module := importlib.util.find_spec(name)) is not None
)


class SharedJaxpr:
    """A jaxpr without constants; `shared_jaxpr` returns one object for all equal jaxprs."""

    def __init__(self, closed: core.ClosedJaxpr, names: tuple, in_tree: Any, out_tree: Any):
        self.closed, self.in_tree, self.out_tree = closed, in_tree, out_tree
        self.names = names  # the keys of each dictionary argument, in order


_KNOWN: weakref.WeakValueDictionary[Hashable, SharedJaxpr] = weakref.WeakValueDictionary()


def shared_jaxpr(closed: core.ClosedJaxpr, names, in_tree, out_tree) -> SharedJaxpr:
    """The object shared by all jaxprs with the same equations."""
    key = (in_tree, out_tree, _Keys().of_closed(closed))
    with TRACING:
        found = _KNOWN.get(key)
        if found is None:
            found = _KNOWN[key] = SharedJaxpr(closed, names, in_tree, out_tree)
    return found


class _Keys:
    """Makes hashable values that are equal for jaxprs with the same equations.

    A parameter that cannot be compared by value, such as a user's own rule, is compared by
    identity.
    """

    def __init__(self, depth: int = 0):
        self._depth = depth
        self._known: dict[int, Hashable] = {}

    def of_closed(self, closed: core.ClosedJaxpr) -> Hashable:
        return self._of_jaxpr(closed.jaxpr), tuple(map(_value, closed.consts))

    def _of_jaxpr(self, jaxpr: core.Jaxpr) -> Hashable:
        if id(jaxpr) not in self._known:
            numbers: dict[Any, int] = {}

            def new(variables):
                for variable in variables:
                    numbers[variable] = len(numbers)
                return tuple(_aval(variable.aval) for variable in variables)

            def atom(x):
                return _value(x.val) if isinstance(x, core.Literal) else numbers[x]

            parts: list[Hashable] = [new(jaxpr.constvars), new(jaxpr.invars)]
            for equation in jaxpr.eqns:
                read = tuple(map(atom, equation.invars))
                parts.append(
                    (equation.primitive, read, self._of_parameters(equation), new(equation.outvars))
                )
            parts.append(tuple(map(atom, jaxpr.outvars)))
            self._known[id(jaxpr)] = tuple(parts)
        return self._known[id(jaxpr)]

    def _of_parameters(self, equation) -> Hashable:
        parameters, rule = dict(equation.params), ()
        if equation.primitive.name == "custom_jvp_call":
            rule = self._of_rule(equation, parameters.pop("jvp_jaxpr_fun").debug_info)
        return rule, *((name, self._of(parameters[name])) for name in sorted(parameters))

    def _of_rule(self, equation, origin) -> Hashable:
        """A derivative rule. Those of libraries do not change."""
        # A rule may call the function that it belongs to, and so recurse without end.
        if self._depth >= _RULES or any(name in origin.func_src_info for name in _LIBRARIES):
            return origin.func_src_info
        return tuple(map(_Keys(self._depth + 1)._of, _derivatives(equation)))

    def _of(self, x: Any) -> Hashable:
        if isinstance(x, core.ClosedJaxpr):
            return self.of_closed(x)
        if isinstance(x, core.Jaxpr):
            return self._of_jaxpr(x)
        if type(x) in (tuple, list):
            return tuple(map(self._of, x))
        if isinstance(x, Mapping):
            return tuple((name, self._of(value)) for name, value in x.items())
        if isinstance(x, np.ndarray | jax.Array):
            return _value(x)
        try:
            hash(x)
        except TypeError:
            return _Identity(x)
        return x


class _Identity:
    """Compares a value by identity; the value is kept alive so that its id stays unique."""

    def __init__(self, value: Any):
        self.value = value

    @override
    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and self.value is other.value

    @override
    def __hash__(self) -> int:
        return id(self.value)


def _derivatives(equation) -> list[core.ClosedJaxpr | str]:
    """The jaxprs of a custom derivative rule, one for each input, or the errors it raises."""
    like = [jax.ShapeDtypeStruct(x.aval.shape, x.aval.dtype) for x in equation.invars]

    def pushed(moving: int):
        def function(values, tangent):
            def of_one(x):
                return bind(equation, [*values[:moving], x, *values[moving + 1 :]])

            return jax.jvp(of_one, (values[moving],), (tangent,))

        return jax.make_jaxpr(function)(like, like[moving])

    found: list[core.ClosedJaxpr | str] = []
    for moving, x in enumerate(like):
        if jnp.issubdtype(x.dtype, jnp.inexact):
            try:
                found.append(pushed(moving))
            except Exception as error:  # a rule may refuse some tangents with any error
                found.append(f"{type(error).__name__}: {error}".split("\n")[0])
    return found


def _aval(aval: Any) -> Hashable:
    return aval.shape, aval.dtype, getattr(aval, "weak_type", False)


def _value(x: Any) -> Hashable:
    if isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        return str(x.dtype), _value(jax.random.key_data(x))
    value = np.asarray(x)
    weak = getattr(getattr(x, "aval", None), "weak_type", False)
    return value.shape, value.dtype.str, value.tobytes(), weak
