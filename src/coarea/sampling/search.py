"""The search for points to start from: of those that prior draws lead to, the best."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, Int, Key

from coarea.dynamics.tolerance import Tolerance
from coarea.manifolds import AbstractTarget
from coarea.programs import runs_once
from coarea.sampling.approach import Start, improve

# Prior draws tried at once for each chain, and how often.
CANDIDATES = 8
ROUNDS = 4


class ChainKeys(NamedTuple):
    """A chain's random streams: they depend on the seed and the chain's number alone."""

    start: Key[Array, ""]
    run: Key[Array, ""]


def chain_keys(key: Key[Array, ""], chain: int | Int[Array, ""]) -> ChainKeys:
    """The streams of one chain."""
    return ChainKeys(*jax.vmap(jax.random.fold_in, (None, 0))(key, 2 * chain + jnp.arange(2)))


def search(target: AbstractTarget, keys: Key[Array, " chains"], tolerance: Tolerance) -> Start:
    """A start for each key: of its candidates that reached the manifold, the most probable.

    There are rounds of candidates until every chain has one. Each is made of programs that are
    compiled once, which takes less long than all rounds as one program would.
    """

    def infinite(*shape):
        return jnp.asarray(np.full((*keys.shape, *shape), np.inf))

    def another_round(carry):
        tries, _, best = carry
        found = improve(target, _guesses(target, keys, tries), tolerance)
        return tries + 1, *_better(best, found, tolerance)

    def unfinished(carry):
        tries, is_over, _ = carry
        return ~is_over & (tries < ROUNDS)

    # NumPy's zero is an argument of a program, where Python's would be a part of it.
    nowhere = Start(infinite(target.num_inputs), infinite(), infinite())
    carry = np.array(0), np.array(False), nowhere
    if isinstance(keys, Tracer):
        return jax.lax.while_loop(unfinished, another_round, carry)[2]
    for _ in range(ROUNDS):
        carry = another_round(carry)
        if carry[1]:
            break
    return carry[2]


@runs_once
def _guesses(target, keys, tries) -> Float[Array, "candidates M"]:
    """One chain's after another's."""
    split = jax.vmap(lambda key: jax.random.split(key, (ROUNDS, CANDIDATES))[tries])(keys)
    return jax.vmap(target.guess)(split.ravel())


@runs_once
def _better(best: Start, found: Start, tolerance: Tolerance) -> tuple[Bool[Array, ""], Start]:
    """For each chain the best of its candidates, unless it has a start; whether now all have."""

    def one(best: Start, found: Start) -> Start:
        usable = _is_usable(found, tolerance)
        probable = jnp.where(usable, found.log_density, -jnp.inf)
        choice = jnp.where(jnp.any(usable), jnp.argmax(probable), jnp.argmin(found.error))
        chosen = jax.tree.map(lambda x: x[choice], found)
        # An infinite error is better than none: at least it was a candidate's.
        better = ~_is_usable(best, tolerance) & (usable[choice] | (chosen.error <= best.error))
        return jax.tree.map(lambda a, b: jnp.where(better, a, b), chosen, best)

    by_chain = jax.tree.map(lambda x: x.reshape(-1, CANDIDATES, *x.shape[1:]), found)
    best = jax.vmap(one)(best, by_chain)
    return jnp.all(_is_usable(best, tolerance)), best


def _is_usable(start: Start, tolerance: Tolerance):
    return (start.error <= tolerance.residual) & jnp.isfinite(start.log_density)
