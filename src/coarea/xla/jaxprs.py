"""Walks over the equations of a traced program."""

from collections.abc import Iterator
from typing import Any

import jax
from jax.extend import core


def equations(jaxpr: core.Jaxpr) -> Iterator[Any]:
    """All equations, those of inner programs included."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in inner_jaxprs(equation):
            yield from equations(inner)


def inner_jaxprs(equation) -> list[core.Jaxpr]:
    """The programs that an equation calls."""
    kinds = core.ClosedJaxpr | core.Jaxpr
    leaves = jax.tree.leaves(list(equation.params.values()), is_leaf=lambda x: isinstance(x, kinds))
    found = [x for x in leaves if isinstance(x, kinds)]
    return [x.jaxpr if isinstance(x, core.ClosedJaxpr) else x for x in found]
