"""Keep XLA from computing a value again for each of its uses."""

from typing import TypeVar

import jax
from jax.experimental.xla_metadata import set_xla_metadata

from coarea.xla.options import hints_enabled
from coarea.xla.platforms import on_cpu

T = TypeVar("T")


def materialize(x: T) -> T:
    """x, computed once and then read by everything that uses it.

    XLA:CPU lets each loop that reads a value recompute the cheap steps that lead to it. It drops
    optimisation barriers before it decides so, but respects a call that it may not inline.
    """
    if not hints_enabled():
        return x

    def read_only(*leaves):
        return tuple(set_xla_metadata(x, inlineable="false") for x in _identity(leaves))

    leaves, tree = jax.tree.flatten(x)
    leaves = on_cpu(read_only, *leaves, otherwise=lambda *leaves: leaves)
    return jax.tree.unflatten(tree, leaves)  # pyright: ignore[reportArgumentType]


@jax.jit
def _identity(leaves):
    return leaves
