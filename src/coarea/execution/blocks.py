"""The compiled part: a group of chains, vectorised, advanced by a block of transitions."""

from abc import abstractmethod
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree

from coarea.xla import fuse_cpu
from coarea.xla.options import COMPILER_OPTIONS, FUSED_OPTIONS
from coarea.xla import jit_bounded


class Block(NamedTuple):
    """What a block of transitions brought, axes (chain, draw, …), `count` draws of it valid.

    Its `stats`, a named tuple, have at least `acceptance_rate` and `diverging`.
    """

    latents: PyTree[Array]
    inputs: PyTree[Array] | None
    stats: Any


class AbstractTransition(eqx.Module):
    """What a group of chains runs, and so what is compiled."""

    longest_block: eqx.AbstractVar[int]
    fuse: eqx.AbstractVar[bool]  # whether it shall be one, if it suits. For a CPU only

    @property
    def lockstep(self) -> bool:
        """Whether chains do the same at the same time, but for their numbers."""
        return False

    @abstractmethod
    def draw(self, chain: Any, number: Int[Array, ""]) -> tuple[Any, Block]:
        """A chain after its next transition (the first has number 0), and what is kept of it."""


def advance(
    program: AbstractTransition, chains: Any, done: Int[Array, ""], count: Int[Array, ""]
) -> tuple[Any, Block]:
    """Advance each chain by `count` transitions, at most the longest block, after those `done`.

    That number is one for all chains of a group, so that under `vmap` what warm-up learns is not
    computed again and again when it is over.
    """
    return (_routine if program.fuse else _program)(program, chains, done, count)


def _together(program: AbstractTransition, chains, done, count):
    return for_each_chain(lambda chain: _advance_one(program, chain, done, count))(chains)


def _in_turn(program: AbstractTransition, chains, done, count):
    return jax.lax.map(lambda chain: _advance_one(program, chain, done, count), chains)


_program = jit_bounded(_together, COMPILER_OPTIONS)


def _as_routine(program: AbstractTransition, chains, done, count):
    """Chains that may wait for one another had better make their transitions one after another."""
    args = program, chains, done, count
    if program.lockstep or jax.tree.leaves(chains)[0].shape[0] == 1:
        return fuse_cpu(_together, args)
    return fuse_cpu(_in_turn, args, otherwise=_together)


_routine = jit_bounded(_as_routine, FUSED_OPTIONS)


def longest_block(size: int, num_chains: int) -> int:
    """The most transitions of so many chains in one block, of which each keeps `size` numbers.

    A bound on memory, and on what travels from an accelerator, where the chains are thousands.
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


def _advance_one(program: AbstractTransition, chain, done, count):
    def body(i, carry):
        chain, block = carry
        chain, draw = program.draw(chain, done + i)
        return chain, jax.tree.map(lambda all, one: all.at[i].set(one), block, draw)

    empty = jax.tree.map(
        lambda x: jnp.zeros((program.longest_block, *x.shape), x.dtype),
        jax.eval_shape(program.draw, chain, done)[1],
    )
    return jax.lax.fori_loop(0, count, body, (chain, empty))
