"""Solve an equation for an input that enters it element by element, by its traced program.

Each element of the result must follow from one element of the input through operations that have an
inverse, such as `exp(location + scale * x)`. The operations are undone one after the other, from
the result to the input.
"""

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core
from jaxtyping import Array


class NotInvertibleError(Exception):
    """The input does not enter element by element, or an operation has no known inverse."""


def solve_for(function: Callable, inputs: Sequence[Array]) -> list[Array]:
    """The inputs for which `function(inputs)` is zero; only the shapes of `inputs` matter.

    An element is NaN if it has no finite solution, or if the result does not depend on it.
    """
    traced = jax.make_jaxpr(function)(inputs)
    begin = [_Dependent(x.shape, (), number) for number, x in enumerate(inputs)]
    (result,) = _interpret(traced.jaxpr, traced.consts, begin)
    if isinstance(result, _Failure):
        raise NotInvertibleError(result.reason)
    out = traced.out_avals[0]
    pending = {}
    if isinstance(result, _Dependent):
        pending[result] = _Known(jnp.zeros(out.shape, out.dtype), jnp.full(out.shape, True))
    # Later values first: all that follows from a value is then known before it is undone.
    while not all(value.number >= 0 for value in pending):
        value = max((v for v in pending if v.number < 0), key=lambda v: v.order)
        known = pending.pop(value)
        for before, inverse in value.sources:
            found = inverse(known.filled())
            pending[before] = pending[before].or_else(found) if before in pending else found
    nothing = [_Known(jnp.zeros(x.shape, x.dtype), jnp.full(x.shape, False)) for x in inputs]
    found = [pending.get(x, none) for x, none in zip(begin, nothing, strict=True)]
    return [jnp.where(x.is_known & jnp.isfinite(x.values), x.values, jnp.nan) for x in found]


# Stands for an element that is not known. Every inverse of it is finite: a NaN here would make
# derivatives NaN, even where nothing depends on the element.
_UNKNOWN = 0.5


class _Known(NamedTuple):
    """The values that a quantity must have, as far as they are known."""

    values: Array
    is_known: Array

    def filled(self) -> "_Known":
        return self._replace(values=jnp.where(self.is_known, self.values, _UNKNOWN))

    def or_else(self, other: "_Known") -> "_Known":
        return _Known(
            jnp.where(self.is_known, self.values, other.values), self.is_known | other.is_known
        )

    def moved(self, move: Callable[[Array, Any], Array]) -> "_Known":
        """Both with their elements moved; `move` takes what to fill gaps with."""
        return _Known(move(self.values, _UNKNOWN), move(self.is_known, False))


_ORDER = itertools.count()


class _Dependent:
    """A value that depends on the inputs, by what it comes from and the inverse of that."""

    def __init__(self, shape: tuple[int, ...], sources: Sequence[Any], number: int = -1):
        self.shape, self.sources = shape, sources
        self.number = number  # of the input that it is; -1 if it is none
        self.order = next(_ORDER)


class _Failure(NamedTuple):
    """A value that depends on the inputs in a way that cannot be undone."""

    reason: str


def _interpret(jaxpr: core.Jaxpr, consts: Sequence[Any], args: Sequence[Any]) -> list[Any]:
    """The results, each an array or how it depends on the inputs."""
    known: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
    known.update(zip(jaxpr.invars, args, strict=True))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, core.Literal) else known[atom]

    for equation in jaxpr.eqns:
        operands = [read(atom) for atom in equation.invars]
        known.update(zip(equation.outvars, _results(equation, operands), strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _results(equation: Any, operands: list[Any]) -> Sequence[Any]:
    name, parameters = equation.primitive.name, equation.params
    inside = parameters.get("jaxpr") or parameters.get("call_jaxpr")
    is_call = isinstance(inside, core.ClosedJaxpr) and len(inside.jaxpr.invars) == len(operands)
    if not any(isinstance(x, _Dependent | _Failure) for x in operands):
        return _evaluated(equation, operands)
    if is_call and name not in _LOOPS:
        return _interpret(inside.jaxpr, inside.consts, operands)
    if failures := [x for x in operands if isinstance(x, _Failure)]:
        return [failures[0]] * len(equation.outvars)
    failure = [_Failure(f"{name} has no known inverse")] * len(equation.outvars)
    if equation.primitive.multiple_results:
        return failure
    shape = equation.outvars[0].aval.shape
    sources = _undone(name, parameters, operands, shape)
    return failure if sources is None else [_Dependent(shape, sources)]


def _evaluated(equation: Any, operands: list[Any]) -> Sequence[Array]:
    """The results of an equation whose operands are known."""
    primitive = equation.primitive
    results = primitive.bind(*operands, **primitive.get_bind_params(equation.params))
    return results if primitive.multiple_results else [results]


_LOOPS = frozenset({"scan", "while", "cond"})


def _undone(name: str, parameters: Any, operands: list[Any], shape: tuple[int, ...]) -> Any:
    """What a value comes from, with the inverse of each; None if that is not known."""
    if name == "concatenate":
        return _pieces(operands, parameters["dimension"])
    if name == "select_n" and not isinstance(operands[0], _Dependent):
        return _chosen(*operands)
    dependent = [i for i, x in enumerate(operands) if isinstance(x, _Dependent)]
    if len(dependent) != 1:
        return None
    (place,) = dependent
    before: _Dependent = operands[place]
    inverse = _moved(name, parameters, operands, before, shape)
    if inverse is None and before.shape == shape:
        inverse = _computed(name, operands, place)
    return None if inverse is None else [(before, inverse)]


def _pieces(operands: list[Any], axis: int) -> Any:
    """The operands of a concatenation, with the part of the result that is theirs."""
    sizes = [(x.shape if isinstance(x, _Dependent) else jnp.shape(x))[axis] for x in operands]
    ends = np.cumsum(sizes)

    def part(known: _Known, a: int, b: int) -> _Known:
        return known.moved(lambda y, _: jax.lax.slice_in_dim(y, a, b, axis=axis))

    return [
        (x, functools.partial(part, a=int(a), b=int(b)))
        for x, a, b in zip(operands, ends - sizes, ends, strict=True)
        if isinstance(x, _Dependent)
    ]


def _chosen(which: Array, *cases: Any) -> Any:
    """The cases of a selection, with the elements of the result that come from them."""
    number = jnp.asarray(which).astype(int)

    def mine(known: _Known, i: int) -> _Known:
        return known._replace(is_known=known.is_known & (number == i))

    return [
        (x, functools.partial(mine, i=i)) for i, x in enumerate(cases) if isinstance(x, _Dependent)
    ]


def _moved(name: str, parameters: Any, operands, before: _Dependent, shape) -> Callable | None:
    """The inverse of an operation that moves elements."""
    move = _move(name, parameters, operands, before, shape)
    return None if move is None else lambda known: known.moved(move)


def _move(name: str, parameters: Any, operands, before: _Dependent, shape) -> Callable | None:
    is_in_order = name != "reshape" or parameters["dimensions"] is None
    if name in _RESHAPES and is_in_order and math.prod(before.shape) == math.prod(shape):
        return lambda y, _: y.reshape(before.shape)
    if name == "transpose":
        order = tuple(np.argsort(parameters["permutation"]))
        return lambda y, _: jnp.transpose(y, order)
    if name == "rev":
        return lambda y, _: jax.lax.rev(y, parameters["dimensions"])
    if name == "slice":
        strides = parameters["strides"] or (1,) * len(shape)
        bounds = zip(parameters["start_indices"], parameters["limit_indices"], strides, strict=True)
        where = tuple(slice(*bound) for bound in bounds)
        return lambda y, fill: jnp.full(before.shape, fill, y.dtype).at[where].set(y)
    if name == "gather" and _takes_elements(parameters, before):
        index = operands[1][..., 0]
        return lambda y, fill: jnp.full(before.shape, fill, y.dtype).at[index].set(y)
    return None


def _takes_elements(parameters: Any, before: _Dependent) -> bool:
    """Whether a gather takes single elements of a vector."""
    numbers = parameters["dimension_numbers"]
    is_plain = not numbers.offset_dims and numbers.collapsed_slice_dims == (0,)
    return len(before.shape) == 1 and is_plain and parameters["slice_sizes"] == (1,)


_RESHAPES = frozenset({"reshape", "squeeze", "expand_dims", "broadcast_in_dim", "copy", "copy_p"})


def _computed(name: str, operands: list[Any], place: int) -> Callable | None:
    """The inverse of an operation on each element."""
    if name in _INVERSES:
        undo = _INVERSES[name]
        return lambda known: known._replace(values=undo(known.values))
    inverse = _WITH_ANOTHER.get(name, (None, None))[place]
    if inverse is None:
        return None
    other = operands[1 - place]
    return lambda known: known._replace(values=inverse(known.values, other))


_INVERSES: dict[str, Callable[[Array], Array]] = {
    "neg": lambda y: -y,
    "exp": jnp.log,
    "log": jnp.exp,
    "exp2": jnp.log2,
    "expm1": jnp.log1p,
    "log1p": jnp.expm1,
    "tanh": jnp.arctanh,
    "atanh": jnp.tanh,
    "sinh": jnp.arcsinh,
    "asinh": jnp.sinh,
    "logistic": jax.scipy.special.logit,
    "erf": jax.scipy.special.erfinv,
    "erf_inv": jax.scipy.special.erf,
    "cbrt": lambda y: y**3,
    "sqrt": lambda y: jnp.where(y >= 0, y**2, jnp.nan),
    "convert_element_type": lambda y: y,
}
# Of an operation with a value that is known, by which of the two operands is not.
_WITH_ANOTHER: dict[str, tuple[Callable | None, Callable]] = {
    "add": (lambda y, c: y - c, lambda y, c: y - c),
    "sub": (lambda y, c: y + c, lambda y, c: c - y),
    "mul": (lambda y, c: y / c, lambda y, c: y / c),
    "div": (lambda y, c: y * c, lambda y, c: c / y),
    "pow": (None, lambda y, c: jnp.log(y) / jnp.log(c)),  # x ** c may have two roots
}
