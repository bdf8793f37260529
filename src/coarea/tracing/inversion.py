"""Solve an equation for an input that enters it element by element, by its traced program.

Each element of the result must follow from one element of the input through operations that have an
inverse, such as `exp(location + scale * x)`. The operations are undone one after the other, from
the result to the input.
"""

import functools
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

    An element is NaN if the equation has no solution, or if the result does not depend on it.
    """
    traced = jax.make_jaxpr(function)(inputs)
    found: list[Array] = [jnp.full(x.shape, jnp.nan, x.dtype) for x in inputs]

    def undo(at: Any, y: Array) -> None:
        if isinstance(at, _Failure):
            raise NotInvertibleError(at.reason)
        if not isinstance(at, _Dependent):
            return
        if at.number is not None:
            old = found[at.number]
            found[at.number] = jnp.where(jnp.isnan(old), y, old)
        for before, inverse in at.sources:
            undo(before, inverse(y))

    begin = [_Dependent(x.shape, (), number) for number, x in enumerate(inputs)]
    (result,) = _interpret(traced.jaxpr, traced.consts, begin)
    undo(result, jnp.zeros(traced.out_avals[0].shape, traced.out_avals[0].dtype))
    return found


class _Dependent(NamedTuple):
    """A value that depends on the inputs, by what it comes from and the inverse of that."""

    shape: tuple[int, ...]
    sources: Sequence[tuple["_Dependent", Callable[[Array], Array]]]
    number: int | None = None  # of the input that it is


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
        inverse = _computed(name, parameters, operands, place)
    return None if inverse is None else [(before, inverse)]


def _pieces(operands: list[Any], axis: int) -> Any:
    """The operands of a concatenation, with the part of the result that is theirs."""
    sizes = [(x.shape if isinstance(x, _Dependent) else jnp.shape(x))[axis] for x in operands]
    ends = np.cumsum(sizes)
    bounds = zip(operands, ends - sizes, ends, strict=True)
    return [
        (x, functools.partial(jax.lax.slice_in_dim, start_index=a, limit_index=b, axis=axis))
        for x, a, b in bounds
        if isinstance(x, _Dependent)
    ]


def _chosen(which: Array, *cases: Any) -> Any:
    """The cases of a selection, with the elements of the result that come from them."""
    number = jnp.asarray(which).astype(int)
    return [
        (x, lambda y, i=i: jnp.where(number == i, y, jnp.nan))
        for i, x in enumerate(cases)
        if isinstance(x, _Dependent)
    ]


def _moved(name: str, parameters: Any, operands, before: _Dependent, shape) -> Callable | None:
    """The inverse of an operation that moves elements."""
    if name in _RESHAPES and math.prod(before.shape) == math.prod(shape):
        return lambda y: y.reshape(before.shape)
    if name == "transpose":
        order = np.argsort(parameters["permutation"])
        return lambda y: jnp.transpose(y, tuple(order))
    if name == "rev":
        return lambda y: jax.lax.rev(y, parameters["dimensions"])
    if name == "slice":
        strides = parameters["strides"] or (1,) * len(shape)
        bounds = zip(parameters["start_indices"], parameters["limit_indices"], strides, strict=True)
        where = tuple(slice(*bound) for bound in bounds)
        return lambda y: jnp.full(before.shape, jnp.nan, y.dtype).at[where].set(y)
    if name == "gather" and len(before.shape) == 1 and parameters["slice_sizes"] == (1,):
        index = operands[1][..., 0]
        return lambda y: jnp.full(before.shape, jnp.nan, y.dtype).at[index].set(y)
    return None


_RESHAPES = frozenset({"reshape", "squeeze", "expand_dims", "broadcast_in_dim", "copy", "copy_p"})


def _computed(name: str, parameters: Any, operands: list[Any], place: int) -> Callable | None:
    """The inverse of an operation on each element."""
    if name in _INVERSES:
        return _INVERSES[name]
    if name not in _WITH_ANOTHER:
        return None
    other, inverse = operands[1 - place], _WITH_ANOTHER[name][place]
    return lambda y: inverse(y, other)


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
_WITH_ANOTHER: dict[str, tuple[Callable, Callable]] = {
    "add": (lambda y, c: y - c, lambda y, c: y - c),
    "sub": (lambda y, c: y + c, lambda y, c: c - y),
    "mul": (lambda y, c: y / c, lambda y, c: y / c),
    "div": (lambda y, c: y * c, lambda y, c: c / y),
    "pow": (lambda y, c: jnp.exp(jnp.log(y) / c), lambda y, c: jnp.log(y) / jnp.log(c)),
}
