"""Copy the constants of a traced program, and make them arguments of it."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

_CALLS = ("jit", "pjit")


class Owned:
    """Copies programs with their constants, which may be arrays that the user changes later.

    It is a class because mutually recursive closures would form a reference cycle, which would keep
    arrays alive.
    """

    def __init__(self):
        self._known: dict[int, core.Jaxpr] = {}

    def __call__(self, x: Any) -> Any:
        """A copy of a program or of a part of it."""
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


def without_constants(closed: core.ClosedJaxpr) -> tuple[core.ClosedJaxpr, list[Any]]:
    """The same program with its constants as leading arguments, and the list of constants.

    Inner calls of `jit` that hold constants are inlined.
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
            found = bind(equation, values)
        known |= dict(zip(equation.outvars, found, strict=True))
    return [read(atom) for atom in closed.jaxpr.outvars]


def bind(equation: Any, values: list[Any]) -> list[Any]:
    """The results of an equation for given values of its arguments."""
    primitive = equation.primitive
    with equation.ctx.manager:
        found = primitive.bind(*values, **primitive.get_bind_params(equation.params))
    return found if primitive.multiple_results else [found]
