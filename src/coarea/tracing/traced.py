"""A user's function, frozen: the jaxpr that it traces to, its constants held as arrays.

A function may close over what changes later, share global state with other threads, and remember
arrays in another precision. A jaxpr does none of that. Functions that trace to equal jaxprs share
one, so that whatever is compiled for the first serves the others, whatever their constants are.
"""

import functools
import gc
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core
from jaxtyping import Array

from coarea.errors import CoareaError, ModelError
from coarea.precision import require_float64
from coarea.tracing.errors import explained

# NumPyro's handlers are a stack of the process, not of a thread.
TRACING = threading.RLock()
# Down to this depth rules for derivatives within such rules are compared by what they compute, and
# beyond it by where they are written. No more derivatives than this are ever taken.
_RULES = 3
# How deep arrays are looked for in what a function can reach.
_REACH = 3
_CALLS = ("jit", "pjit")


class SharedJaxpr:
    """A jaxpr without constants. Equal ones are one object, found by `_shared`."""

    def __init__(self, closed: core.ClosedJaxpr, names: tuple, in_tree: Any, out_tree: Any):
        self.closed, self.in_tree, self.out_tree = closed, in_tree, out_tree
        self.names = names  # of each argument that is a dictionary, in order
        self.known: dict[Hashable, Any] = {}  # what was found out about it


class _Source:
    """What a traced function was made of. It does not count when two of them are compared."""

    def __init__(self, function: Callable, example: tuple, what: str):
        self.function, self.example, self.what = function, example, what

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Source)

    def __hash__(self) -> int:
        return 0


class Traced(eqx.Module):
    """A function as a jaxpr, with its constants. Made by `trace`."""

    shared: SharedJaxpr = eqx.field(static=True)
    constants: tuple[Array, ...]
    source: _Source = eqx.field(static=True)

    def __call__(self, *args: Any) -> Any:
        """The function of arguments with the shapes it was traced for."""
        pairs = zip(args, self.shared.names, strict=True)
        args = tuple(x if names is None else {n: x[n] for n in names} for x, names in pairs)
        leaves, tree = jax.tree.flatten(_ordered(args))
        assert tree == self.shared.in_tree, (tree, self.shared.in_tree)
        avals = self.shared.closed.in_avals[len(self.constants) :]
        if any(aval.dtype == jnp.float64 for aval in avals):  # pyright: ignore
            require_float64(self.source.what)
        leaves = [
            x if getattr(x, "dtype", None) == a.dtype else jnp.asarray(x, a.dtype)  # pyright: ignore
            for x, a in zip(leaves, avals, strict=True)
        ]
        out = core.jaxpr_as_fun(self.shared.closed)(*self.constants, *leaves)
        # What does not depend on the arguments is no array.
        out = [x if isinstance(x, jax.Array) else jnp.asarray(x) for x in out]
        return _plain(jax.tree.unflatten(self.shared.out_tree, out))

    def follow_from(self, argument: int) -> Any:
        """For each array that is returned, whether it depends on an argument."""
        jaxpr = self.shared.closed.jaxpr
        sizes = [jax.tree.structure(x).num_leaves for x in self.source.example]
        first = len(self.constants) + sum(sizes[:argument])
        reached = set(jaxpr.invars[first : first + sizes[argument]])
        for equation in jaxpr.eqns:
            if any(not isinstance(x, core.Literal) and x in reached for x in equation.invars):
                reached |= set(equation.outvars)
        found = [not isinstance(x, core.Literal) and x in reached for x in jaxpr.outvars]
        return _plain(jax.tree.unflatten(self.shared.out_tree, found))

    def retraced(self) -> "Traced":
        """The function traced in JAX's present precision, for the same values closed over."""
        function, example, what = self.source.function, self.source.example, self.source.what
        with jax.enable_x64(True):
            now = trace(function, *example, what=what)
        same = now.shared is self.shared and all(
            np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
            for a, b in zip(map(np.asarray, now.constants), self.constants, strict=True)
        )
        if not same:
            raise ModelError(
                f"{what} computes something else now than when it was given: what it closes over "
                "has changed. Condition anew."
            )
        return trace(function, *jax.tree.map(_canonical, example), what=what)


def _canonical(x: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, jax.dtypes.canonicalize_dtype(x.dtype, True))


def retraced(tree: Any) -> Any:
    """A target or a model with all of its traced functions in JAX's present precision."""
    is_traced = functools.partial(_is, Traced)
    return jax.tree.map(lambda x: x.retraced() if is_traced(x) else x, tree, is_leaf=is_traced)


def _is(kind: type, x: Any) -> bool:
    return isinstance(x, kind)


def trace(function: Callable, *example: Any, what: str) -> Traced:
    """The function frozen, from the shapes of its arguments. `what` names it in errors.

    A dictionary among the arguments, and one that is returned, keeps its order.
    """
    if isinstance(function, Traced):
        return function
    source = _Source(function, example, what)
    ordered = _ordered(example)

    def flat(*args):
        return _ordered(function(*map(_plain, args)))

    with TRACING:
        _forget_other_precision(function)
        try:
            closed, shape = _make_jaxpr(flat, ordered)
        except CoareaError:
            raise
        except Exception as error:
            if not _met_other_precision(error):
                raise explained(error, what) from error
            _forget_all()
            try:
                closed, shape = _make_jaxpr(flat, ordered)
            except Exception as again:
                raise explained(again, what) from again
        closed, constants = _without_constants(_Owned()(closed))
    in_tree, out_tree = jax.tree.structure(ordered), jax.tree.structure(shape)
    # Copies: the function's own may change, and JAX remembers them in this precision.
    names = tuple(tuple(x) if isinstance(x, Mapping) else None for x in example)
    shared = _shared(closed, names, in_tree, out_tree)
    return Traced(shared, tuple(map(_copied, constants)), source)


def _make_jaxpr(flat: Callable, example: tuple) -> tuple[core.ClosedJaxpr, Any]:
    return jax.make_jaxpr(flat, return_shape=True)(*example)


def _copied(x: Any) -> Array:
    return x if isinstance(x, jax.Array) else jnp.asarray(np.array(x))


def _ordered(x: Any) -> Any:
    """Dictionaries as ordered ones, which JAX does not sort."""
    if isinstance(x, tuple):
        return tuple(map(_ordered, x))
    return OrderedDict(x) if isinstance(x, Mapping) else x


def _plain(x: Any) -> Any:
    return dict(x) if isinstance(x, OrderedDict) else x


# Constants.


class _Owned:
    """Copies of programs with copies of their numbers, which may be arrays that the user changes.

    (A class: functions that call one another would keep each other, and arrays, alive.)
    """

    def __init__(self):
        self._known: dict[int, core.Jaxpr] = {}

    def __call__(self, x: Any) -> Any:
        if isinstance(x, core.Literal) and isinstance(x.val, np.ndarray):
            return core.Literal(x.val.copy(), x.aval)
        if isinstance(x, core.ClosedJaxpr) and x is not x.jaxpr:
            return x.replace(jaxpr=self(x.jaxpr))
        if isinstance(x, core.Jaxpr):
            if id(x) not in self._known:
                self._known[id(x)] = x.replace(
                    eqns=[self._equation(equation) for equation in x.eqns],
                    outvars=[self(v) for v in x.outvars],
                )
            return self._known[id(x)]
        return tuple(map(self, x)) if type(x) is tuple else x

    def _equation(self, equation: Any) -> Any:
        parameters = {name: self(value) for name, value in equation.params.items()}
        return equation.replace(invars=[self(v) for v in equation.invars], params=parameters)


def _without_constants(closed: core.ClosedJaxpr) -> tuple[core.ClosedJaxpr, list[Any]]:
    """The same program with its constants as its first arguments, and these.

    Calls of `jit` hold constants of their own. Those that do are made part of the program.
    """
    constants: dict[int, Any] = {id(x): x for x in _constants(closed)}

    def with_arguments(given, *args):
        return _evaluated(closed, dict(zip(constants, given, strict=True)), args)

    like = [jax.ShapeDtypeStruct(jnp.shape(x), jnp.result_type(x)) for x in constants.values()]
    args = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in closed.in_avals]  # pyright: ignore
    return jax.make_jaxpr(with_arguments)(like, *args), list(constants.values())


def _constants(closed: core.ClosedJaxpr) -> Iterator[Any]:
    yield from closed.consts
    for equation in closed.jaxpr.eqns:
        if equation.primitive.name in _CALLS:
            yield from _constants(equation.params["jaxpr"])


def _evaluated(closed: core.ClosedJaxpr, constants: dict[int, Any], args) -> list[Any]:
    known = dict(
        zip(closed.jaxpr.constvars, (constants[id(x)] for x in closed.consts), strict=True)
    )
    known |= dict(zip(closed.jaxpr.invars, args, strict=True))

    def read(atom):
        return atom.val if isinstance(atom, core.Literal) else known[atom]

    for equation in closed.jaxpr.eqns:
        values = [read(atom) for atom in equation.invars]
        inner = equation.params.get("jaxpr") if equation.primitive.name in _CALLS else None
        if inner is not None and any(True for _ in _constants(inner)):
            found = _evaluated(inner, constants, values)
        else:
            found = _bound(equation, values)
        known |= dict(zip(equation.outvars, found, strict=True))
    return [read(atom) for atom in closed.jaxpr.outvars]


def _bound(equation: Any, values: list[Any]) -> list[Any]:
    primitive = equation.primitive
    with equation.ctx.manager:
        found = primitive.bind(*values, **primitive.get_bind_params(equation.params))
    return found if primitive.multiple_results else [found]


# Equality.

_KNOWN: weakref.WeakValueDictionary[Hashable, SharedJaxpr] = weakref.WeakValueDictionary()


def _shared(closed: core.ClosedJaxpr, names, in_tree, out_tree) -> SharedJaxpr:
    key = (in_tree, out_tree, _Keys().of_closed(closed))
    with TRACING:
        found = _KNOWN.get(key)
        if found is None:
            found = _KNOWN[key] = SharedJaxpr(closed, names, in_tree, out_tree)
    return found


class _Keys:
    """Hashable values that are equal for jaxprs that compute the same by the same equations.

    What cannot be compared by its value, a rule of somebody's own say, is compared by identity.
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
        parameters = dict(equation.params)
        if equation.primitive.name == "custom_jvp_call":
            # A rule may call the function that it belongs to, and so itself.
            parameters["jvp_jaxpr_fun"] = (
                tuple(map(_Keys(self._depth + 1)._of, _derivatives(equation)))
                if self._depth < _RULES
                else parameters["jvp_jaxpr_fun"].debug_info.func_src_info
            )
        return tuple((name, self._of(parameters[name])) for name in sorted(parameters))

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
    """A value that is equal to itself alone, kept alive so that no other takes its place."""

    def __init__(self, value: Any):
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def _derivatives(equation) -> list[core.ClosedJaxpr | str]:
    """What a custom derivative rule computes, for each input alone; what it raises, if it does."""
    like = [jax.ShapeDtypeStruct(x.aval.shape, x.aval.dtype) for x in equation.invars]

    def pushed(moving: int):
        def function(values, tangent):
            def of_one(x):
                return _bound(equation, [*values[:moving], x, *values[moving + 1 :]])

            return jax.jvp(of_one, (values[moving],), (tangent,))

        return jax.make_jaxpr(function)(like, like[moving])

    found: list[core.ClosedJaxpr | str] = []
    for moving, x in enumerate(like):
        if jnp.issubdtype(x.dtype, jnp.inexact):
            try:
                found.append(pushed(moving))
            except Exception as error:  # a rule may refuse some tangents, each in its own words
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


# Precision.


def _forget_other_precision(function: Callable) -> None:
    """Clear JAX's caches if they hold an array of the function's in another precision.

    JAX remembers a NumPy array in its canonical dtype as long as a program that closes over it
    lives, and forgets which precision that was for. The program would get rounded data, or fail.
    """
    for x in _arrays(function, _REACH, set()):
        canonical = jax.dtypes.canonicalize_dtype(x.dtype)
        if x.dtype.itemsize >= 8 and x.dtype.kind in "iuf" and _remembered(x) != canonical:
            _forget_all()
            return


def _remembered(x: np.ndarray) -> Any:
    return jax.make_jaxpr(lambda: jax.lax.mul(x, x))().out_avals[0].dtype  # pyright: ignore


def _forget_all() -> None:
    jax.clear_caches()
    gc.collect()


def _met_other_precision(error: Exception) -> bool:
    text = str(error)
    return (isinstance(error, TypeError) and "same dtypes" in text and "int64" in text) or (
        isinstance(error, jax.errors.JaxRuntimeError) and "incompatible size" in text
    )


def _arrays(x: Any, depth: int, seen: set[int]) -> Iterator[np.ndarray]:
    """The NumPy arrays that a function can reach, by a few steps."""
    if id(x) in seen or isinstance(x, str | int | float | type | jax.Array):
        return
    seen.add(id(x))
    if isinstance(x, np.ndarray):
        yield x
        return
    if depth == 0:
        return
    held: list[Any] = []
    if isinstance(x, functools.partial):
        held += [x.func, *x.args, *x.keywords.values()]
    elif isinstance(x, Mapping):
        held += list(x.values())
    elif isinstance(x, list | tuple):
        held += list(x)
    elif hasattr(x, "__code__"):
        closure = zip(x.__code__.co_freevars, x.__closure__ or (), strict=False)
        held += [cell.cell_contents for _, cell in closure if not _is_empty(cell)]
        held += [x.__globals__[n] for n in x.__code__.co_names if n in x.__globals__]
        held += list(x.__defaults__ or ())
        held += [getattr(x, "__self__", None)]
    elif hasattr(x, "__wrapped__"):
        held.append(x.__wrapped__)
    elif hasattr(x, "__func__"):
        held += [x.__func__, x.__self__]
    elif type(x).__module__.partition(".")[0] not in ("jax", "numpyro", "numpy", "builtins"):
        held += list(getattr(x, "__dict__", {}).values())
        held.append(vars(type(x)).get("__call__"))
    for y in held:
        yield from _arrays(y, depth - (not callable(y)), seen)


def _is_empty(cell) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return True
    return False
