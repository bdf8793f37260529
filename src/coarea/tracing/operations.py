"""Count the arithmetic operations of a function, from its traced program.

The count depends on nothing but the program, unlike a measured time: choices that rest on it are
the same in every run.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
from jax.extend import core

from coarea.xla import inner_jaxprs

# Operations for each element of the result. Others count one.
_FREE = frozenset(
    """
    bitcast_convert_type broadcast_in_dim concatenate convert_element_type copy copy_p
    expand_dims iota pad random_unwrap random_wrap reshape rev slice split squeeze stop_gradient
    transpose
    """.split()  # noqa: SIM905
)
_TRANSCENDENTAL = frozenset(
    """
    acos acosh asin asinh atan atan2 atanh cbrt cos cosh erf erf_inv erfc exp exp2 expm1 log log1p
    logistic pow sin sinh tan tanh
    """.split()  # noqa: SIM905
)
_SPECIAL = frozenset({"igamma", "igammac", "random_gamma_grad", "regularized_incomplete_beta"})
_DEAR = {
    **dict.fromkeys(_TRANSCENDENTAL, 20),
    **dict.fromkeys(_SPECIAL, 500),
    **dict.fromkeys(("div", "rem", "rsqrt", "sqrt"), 5),
    **dict.fromkeys(("digamma", "lgamma", "random_bits", "threefry2x32"), 50),
}
# Elements in registers at a time: fewer take as long.
_LEAST = 8
_FACTORISATIONS = frozenset({"cholesky", "lu", "geqrf", "householder_product", "qr"})
_DECOMPOSITIONS = frozenset({"eig", "eigh", "hessenberg", "schur", "svd", "tridiagonal"})


def operations(function: Callable, *example: Any) -> float:
    """About how many operations a call takes, from the shapes of its arguments.

    A loop whose length depends on values counts as one round.
    """
    return _of_jaxpr(jax.make_jaxpr(function)(*example).jaxpr)


def _of_jaxpr(jaxpr: core.Jaxpr) -> float:
    return sum(map(_of_equation, jaxpr.eqns))


def _of_equation(equation) -> float:
    name, parameters = equation.primitive.name, equation.params
    inner = [_of_jaxpr(jaxpr) for jaxpr in inner_jaxprs(equation)]
    if name == "scan":
        return parameters["length"] * sum(inner)
    if name in ("cond", "platform_index"):
        return max(inner, default=0.0)
    if inner and not name.startswith(("reduce", "scatter", "custom")):
        return sum(inner)
    if inner and name.startswith("custom"):
        return inner[0]  # the others are derivative rules
    size = max(sum(_size(v) for v in equation.outvars), _LEAST)
    if name in _FREE:
        return 0.0
    if name == "dot_general":
        (contracted, _), _ = parameters["dimension_numbers"]
        shape = equation.invars[0].aval.shape
        return 2.0 * size * math.prod(shape[i] for i in contracted)
    if name == "conv_general_dilated":
        kernel = equation.invars[1].aval.shape
        features = kernel[parameters["dimension_numbers"].rhs_spec[0]]
        return 2.0 * size * math.prod(kernel) / max(features, 1)
    if name in _FACTORISATIONS:
        return size * equation.invars[0].aval.shape[-1] / 3
    if name in _DECOMPOSITIONS:
        return 10.0 * size * equation.invars[0].aval.shape[-1]
    if name == "triangular_solve":
        return size * equation.invars[0].aval.shape[-1]
    if name.startswith(("reduce", "arg", "cum", "scatter")):
        return float(max(_size(v) for v in equation.invars))  # each element is read once
    return float(_DEAR.get(name, 1) * size)


def _size(variable) -> int:
    return math.prod(getattr(variable.aval, "shape", ()))
