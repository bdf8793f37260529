"""Keep XLA from computing a value again for each of its uses."""

from typing import TypeVar

import jax
from jax.experimental.xla_metadata import set_xla_metadata

T = TypeVar("T")


def kept(x: T) -> T:
    """x, computed once: what it is needed for reads it, rather than computing it anew.

    On a CPU XLA lets every loop that reads a result repeat all cheap steps to it, however often it
    reads it, and drops optimisation barriers before it so decides. A call that it may not inline it
    respects.
    """

    def read_only(*leaves):
        return tuple(set_xla_metadata(x, inlineable="false") for x in _identity(leaves))

    leaves, tree = jax.tree.flatten(x)
    leaves = jax.lax.platform_dependent(*leaves, cpu=read_only, default=lambda *leaves: leaves)
    return jax.tree.unflatten(tree, leaves)  # pyright: ignore[reportArgumentType]


@jax.jit
def _identity(leaves):
    return leaves
