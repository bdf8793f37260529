"""The search for start points, from draws of the prior."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, Key

from coarea.dynamics.projection import Tolerance
from coarea.initialisation.approach import Start, improve
from coarea.manifolds.target import AbstractConstrainedTarget, AbstractTarget
from coarea.xla import jit_fast_compile

# Number of prior draws for each chain in a round, and number of rounds.
CANDIDATES = 2
ROUNDS = 16
# Rounds after which a start on the manifold is good enough, plausible or not.
_ROUNDS_FOR_PLAUSIBLE = 4


def search(target: AbstractTarget, keys: Key[Array, " chains"], tolerance: Tolerance) -> Start:
    """A start for each key: the first plausible candidate that reached the manifold.

    The most probable candidate would be a worse choice. If the posterior is in several pieces, all
    chains would then start in the heaviest piece, and would agree although they missed the others.

    Rounds of candidates are repeated until every chain has a start. A Python loop over programs
    that are compiled once takes less time than compiling all rounds as one program.
    """
    # A NumPy value is an argument of the compiled program; a Python number would be a constant.
    infinite = jnp.asarray(np.full((*keys.shape, 1 + target.num_inputs), np.inf))
    best = Start(infinite[:, 1:], infinite[:, 0], infinite[:, 0])

    def another_round(carry):
        tries, _, best = carry
        found = improve(target, _guesses(target, keys, tries), tolerance)
        return tries + 1, *_better(target, best, found, tries + 1, tolerance)

    def unfinished(carry):
        tries, is_over, _ = carry
        return ~is_over & (tries < ROUNDS)

    carry = np.array(0), np.array(False), best
    if isinstance(keys, Tracer):
        return jax.lax.while_loop(unfinished, another_round, carry)[2]
    while unfinished(carry):
        carry = another_round(carry)
    if not isinstance(target, AbstractConstrainedTarget) or target.unlifted is target:
        return carry[2]
    unlifted = target.unlifted
    return _search_unlifted(target, unlifted, keys, tolerance, carry[2])


def _search_unlifted(
    target: AbstractConstrainedTarget,
    unlifted: AbstractConstrainedTarget,
    keys,
    tolerance,
    best: Start,
) -> Start:
    """Find starts without state augmentation, for the chains that have no plausible start.

    If the states are variables, the search may end at a path that only implausibly large noise can
    produce. Inputs found without state augmentation are close to a plausible point.
    """
    for tries in range(ROUNDS):
        if np.all(_are_plausible(target, best, tolerance)):
            break
        guesses = _guesses(unlifted, keys, np.array(tries))
        near = improve(unlifted, guesses, tolerance)
        found = improve(target, _lifted(target, near.u), tolerance)
        best = _better(target, best, found, np.array(tries + 1), tolerance)[1]
    return best


@jit_fast_compile
def _lifted(target: AbstractConstrainedTarget, u):
    return jax.vmap(target.lift)(u)


@jit_fast_compile
def _guesses(target, keys, tries) -> Float[Array, "candidates M"]:
    """The candidates of all chains in one array, grouped by chain."""
    split = jax.vmap(lambda key: jax.random.split(key, (ROUNDS, CANDIDATES))[tries])(keys)
    return jax.vmap(target.guess)(split.ravel())


@jit_fast_compile
def _better(
    target, best: Start, found: Start, tries, tolerance: Tolerance
) -> tuple[Bool[Array, ""], Start]:
    """Update the best start of each chain; also return whether no more rounds are needed.

    The choice is the first plausible candidate, else the most probable one on the manifold, else
    the one nearest to the manifold.
    """

    def one(best: Start, found: Start) -> Start:
        usable, plausible = is_usable(found, tolerance), _are_plausible(target, found, tolerance)
        probable = jnp.argmax(jnp.where(usable, found.log_density, -jnp.inf))
        otherwise = jnp.where(jnp.any(usable), probable, jnp.argmin(found.error))
        choice = jnp.where(jnp.any(plausible), jnp.argmax(plausible), otherwise)
        chosen = jax.tree.map(lambda x: x[choice], found)
        # A candidate with infinite error still replaces the initial placeholder.
        nearer = usable[choice] | (chosen.error <= best.error)
        better = jnp.where(is_usable(best, tolerance), plausible[choice], nearer)
        better &= ~_are_plausible(target, best, tolerance)
        return jax.tree.map(lambda a, b: jnp.where(better, a, b), chosen, best)

    by_chain = jax.tree.map(lambda x: x.reshape(-1, CANDIDATES, *x.shape[1:]), found)
    best = jax.vmap(one)(best, by_chain)
    are_usable = jnp.all(is_usable(best, tolerance)) & (tries >= _ROUNDS_FOR_PLAUSIBLE)
    return jnp.all(_are_plausible(target, best, tolerance)) | are_usable, best


def _are_plausible(target, start: Start, tolerance: Tolerance) -> Bool[Array, "..."]:
    """Whether a start is usable, and its normal inputs have a size typical of normals."""
    usable = is_usable(start, tolerance)
    if not isinstance(target, AbstractConstrainedTarget):
        return usable
    size = start.u**2 @ jnp.asarray(target.gaussian, start.u.dtype)
    return usable & (size <= 4 * np.sum(target.gaussian) + 20)


def is_usable(start: Start, tolerance: Tolerance) -> Bool[Array, "..."]:
    """Whether a point is on the manifold and inside the support."""
    return (start.error <= tolerance.residual) & jnp.isfinite(start.log_density)
