"""The compiled part of a run: a group of chains, advanced by a block of transitions."""

from abc import abstractmethod
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree

from coarea.xla import fuse_cpu, jit_bounded
from coarea.xla.options import for_transitions


class Block(NamedTuple):
    """What a block of transitions brought, axes (chain, draw, …), the first `count` draws valid.

    Its `stats`, a named tuple, have at least `acceptance_rate` and `diverging`.
    """

    latents: PyTree[Array]
    inputs: PyTree[Array] | None
    stats: Any
    trail: Any = None  # what warm-up reads beside, and what is not kept


class AbstractTransition(eqx.Module):
    """What a chain does next, and so what is compiled."""

    longest_block: eqx.AbstractVar[int]
    fuse: eqx.AbstractVar[bool]  # whether to try one fused kernel; only for a CPU

    @property
    def is_lockstep(self) -> bool:
        """Whether chains hardly ever wait for one another."""
        return False

    @abstractmethod
    def draw(self, chain: Any, number: Int[Array, ""]) -> tuple[Any, Block]:
        """A chain after its next transition (the first has number 0), and what is kept of it."""


def advance(
    transition: AbstractTransition, chains: Any, done: Int[Array, ""], count: Int[Array, ""]
) -> tuple[Any, Block]:
    """Advance each chain by `count` transitions, at most the longest block, after those `done`.

    The counts are shared by all chains of a group, so that under `vmap` the adaptation is not
    computed when warm-up is over.
    """
    return (_advance_fused if transition.fuse else _advance)(transition, chains, done, count)


def compile_advance(transition: AbstractTransition, chains: Any) -> None:
    """Compile the program of `advance` for chains, or for their shapes."""
    zero = jnp.asarray(0)
    program: Any = _advance_fused if transition.fuse else _advance
    program.compile(transition, chains, zero, zero)


def _vectorised(transition: AbstractTransition, chains, done, count):
    return for_each_chain(lambda chain: _advance_one(transition, chain, done, count))(chains)


def _sequential(transition: AbstractTransition, chains, done, count):
    return jax.lax.map(lambda chain: _advance_one(transition, chain, done, count), chains)


def _fused(transition: AbstractTransition, chains, done, count):
    """Run chains sequentially, unless they are in lockstep."""
    args = transition, chains, done, count
    if transition.is_lockstep or jax.tree.leaves(chains)[0].shape[0] == 1:
        return fuse_cpu(_vectorised, args)
    return fuse_cpu(_sequential, args, otherwise=_vectorised)


_advance = jit_bounded(_vectorised, lambda: for_transitions(fused=False))
_advance_fused = jit_bounded(_fused, lambda: for_transitions(fused=True))


def longest_block(size: int, num_chains: int) -> int:
    """The most transitions of these chains in one block, if each draw keeps `size` numbers.

    This bounds memory, and what leaves an accelerator at once, where the chains are thousands.
    Shorter blocks run the same program.
    """
    most = 2**22 if num_chains < 1024 else 2**25
    return max(4, min(1024, most // (num_chains * (1 + size))))


def for_each_chain(function):
    """`vmap`, except that a single chain keeps its branches and loops instead of masking them."""

    def mapped(*chains):
        if jax.tree.leaves(chains)[0].shape[0] > 1:
            return jax.vmap(function)(*chains)
        only = function(*jax.tree.map(lambda x: x[0], chains))
        return jax.tree.map(lambda x: x[None], only)

    return mapped


def _advance_one(transition: AbstractTransition, chain, done, count):
    def body(i, carry):
        chain, block = carry
        chain, draw = transition.draw(chain, done + i)
        return chain, jax.tree.map(lambda all, one: all.at[i].set(one), block, draw)

    empty = jax.tree.map(
        lambda x: jnp.zeros((transition.longest_block, *x.shape), x.dtype),
        jax.eval_shape(transition.draw, chain, done)[1],
    )
    return jax.lax.fori_loop(0, count, body, (chain, empty))
