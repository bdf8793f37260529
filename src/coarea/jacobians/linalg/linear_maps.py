"""The matrix of a linear function, from its values at all unit vectors.

The first and last operations of a simulator are often products with a matrix. Their derivatives
would be products of a matrix with the identity, which can cost as much as the rest. Unit vectors
are therefore represented symbolically, by their indices, for as long as possible. The product of a
matrix with a unit vector is then a column of the matrix.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core
from jaxtyping import Array, Float, Int

# Operations that only rearrange the elements of their arguments.
_MOVE = {"broadcast_in_dim", "concatenate", "reshape", "rev", "slice", "squeeze", "transpose"}
# Elementwise operations.
_CHANGE = {"add", "add_any", "convert_element_type", "copy", "div", "mul", "neg", "select_n", "sub"}


class _UnitVectors(NamedTuple):
    """An array whose elements are elements of the function's argument times factors."""

    places: Int[np.ndarray, "*shape"]
    factors: Float[Array, "*shape"]


class _Rows(NamedTuple):
    """The values of an array at all unit vectors, stacked along the first axis."""

    array: Float[Array, " n *shape"]


def matrix_of(linear: Callable[[Array], Array], like: Float[Array, " n"]) -> Float[Array, "n m"]:
    """The values at all unit vectors, as rows, of a linear function of vectors like `like`."""
    n = like.size
    units = _UnitVectors(np.arange(n), jnp.ones_like(like))
    (value,) = _values(jax.make_jaxpr(linear)(like), [units], n)
    value = _written_out(value, n)
    return value.array if isinstance(value, _Rows) else jnp.broadcast_to(value, (n, *value.shape))


def _values(closed: core.ClosedJaxpr, args: list[Any], n: int) -> list[Any]:
    """Evaluate a jaxpr on unit vectors and rows; other values do not depend on the argument."""
    known: dict[Any, Any] = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
    known.update(zip(closed.jaxpr.invars, args, strict=True))

    def value(atom):
        return jnp.asarray(atom.val) if isinstance(atom, core.Literal) else known[atom]

    for equation in closed.jaxpr.eqns:
        results = _results(equation, [value(x) for x in equation.invars], n)
        known.update(zip(equation.outvars, results, strict=True))
    return [value(x) for x in closed.jaxpr.outvars]


def _results(equation, args, n) -> list[Any]:
    if any(isinstance(x, _UnitVectors) for x in args):
        if equation.primitive.name == "jit":
            return _values(equation.params["jaxpr"], args, n)
        result = _of_unit_vectors(equation, args, n)
        if result is not None:
            return [result]
    args = [_written_out(x, n) for x in args]
    axes = [0 if isinstance(x, _Rows) else None for x in args]
    arrays = [x.array if isinstance(x, _Rows) else x for x in args]
    depends = 0 in axes
    bind = _as_function(equation)
    results = jax.vmap(bind, axes)(*arrays) if depends else bind(*arrays)
    results = results if equation.primitive.multiple_results else [results]
    return [_Rows(x) for x in results] if depends else list(results)


def _of_unit_vectors(equation, args, n) -> _UnitVectors | _Rows | None:
    """Apply the operation to symbolic unit vectors; None if there is no rule for it."""
    name, bind = equation.primitive.name, _as_function(equation)
    units = [x for x in args if isinstance(x, _UnitVectors)]
    if any(isinstance(x, _Rows) for x in args):
        return None
    if name in _MOVE and len(units) == len(args):
        with jax.ensure_compile_time_eval():
            places = np.asarray(bind(*(x.places for x in units)))
        return _UnitVectors(places, bind(*(x.factors for x in units)))
    if name in _CHANGE:
        places = units[0].places
        if places.shape == equation.outvars[0].aval.shape and all(
            np.array_equal(places, x.places) for x in units
        ):
            return _UnitVectors(
                places, bind(*(x.factors if isinstance(x, _UnitVectors) else x for x in args))
            )
    if name == "dot_general" and len(units) == 1:
        return _product(equation, args, n)
    return None


def _product(equation, args, n) -> _Rows | None:
    """The product of unit vectors and a matrix, if each selects one column; otherwise None."""
    contracted, (batch, _) = equation.params["dimension_numbers"]
    side = int(isinstance(args[1], _UnitVectors))
    (places, factors), matrix = args[side], args[1 - side]
    along, over = contracted[side], contracted[1 - side]
    if batch or len(along) < places.ndim or len(np.unique(places)) < places.size:
        return None
    places = places.transpose(along).ravel()
    columns = jnp.moveaxis(matrix, over, range(len(over)))
    columns = columns.reshape(places.size, *columns.shape[len(over) :])
    factors = factors.transpose(along).reshape(-1, *[1] * (columns.ndim - 1))
    rows = (factors * columns).astype(equation.outvars[0].aval.dtype)
    if not np.array_equal(places, np.arange(n)):
        rows = jnp.zeros((n, *rows.shape[1:]), rows.dtype).at[places].set(rows)
    return _Rows(rows)


def _written_out(value: Any, n: int) -> Any:
    if not isinstance(value, _UnitVectors):
        return value
    is_one = value.places == np.arange(n).reshape(-1, *[1] * value.places.ndim)
    return _Rows(jnp.where(is_one, value.factors, 0))


def _as_function(equation) -> Callable:
    params = equation.primitive.get_bind_params(equation.params)
    return lambda *args: equation.primitive.bind(*args, **params)
