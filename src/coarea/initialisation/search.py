"""The search for points to start from: where draws from the prior lead."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, Key

from coarea.dynamics.projection import Tolerance
from coarea.initialisation.approach import Start, improve
from coarea.manifolds.lifted import LiftedPosterior
from coarea.manifolds.target import AbstractConstrainedTarget
from coarea.xla import jit_fast_compile

# Prior draws tried at once for each chain, and how often.
CANDIDATES = 8
ROUNDS = 4


def search(
    target: AbstractConstrainedTarget, keys: Key[Array, " chains"], tolerance: Tolerance
) -> Start:
    """A start for each key: the first plausible one of its candidates that reached the manifold.

    Not the most probable one: of a posterior in pieces all chains would then start in the heaviest
    piece, and agree with one another. There are rounds of candidates until every chain has a start.
    Each is made of programs that are compiled once, which takes less long than all rounds as one
    program would.
    """
    # NumPy's values are arguments of a program, where Python's would be a part of it.
    infinite = jnp.asarray(np.full((*keys.shape, 1 + target.num_inputs), np.inf))
    best = Start(infinite[:, 1:], infinite[:, 0], infinite[:, 0])

    def another_round(carry):
        tries, _, best = carry
        found = improve(target, _guesses(target, keys, tries), tolerance)
        return tries + 1, *_better(target, best, found, tolerance)

    def unfinished(carry):
        tries, is_over, _ = carry
        return ~is_over & (tries < ROUNDS)

    carry = np.array(0), np.array(False), best
    if isinstance(keys, Tracer):
        return jax.lax.while_loop(unfinished, another_round, carry)[2]
    while unfinished(carry):
        carry = another_round(carry)
    if isinstance(target, LiftedPosterior):
        return _search_unlifted(target, keys, tolerance, carry[2])
    return carry[2]


def _search_unlifted(target: LiftedPosterior, keys, tolerance, best: Start) -> Start:
    """Starts for the chains that have no plausible one, found by simulating.

    With states as variables a path may be pulled apart, so that only absurd noise leads along it.
    From inputs that were found without them it is a small step.
    """
    for tries in range(ROUNDS):
        if np.all(_are_plausible(target, best, tolerance)):
            break
        guesses = _guesses(target.unlifted, keys, np.array(tries))
        near = improve(target.unlifted, guesses, tolerance)
        found = improve(target, _lifted(target, near.u), tolerance)
        best = _better(target, best, found, tolerance)[1]
    return best


@jit_fast_compile
def _lifted(target: LiftedPosterior, u):
    return jax.vmap(target.lift)(u)


@jit_fast_compile
def _guesses(target, keys, tries) -> Float[Array, "candidates M"]:
    """One chain's after another's."""
    split = jax.vmap(lambda key: jax.random.split(key, (ROUNDS, CANDIDATES))[tries])(keys)
    return jax.vmap(target.guess)(split.ravel())


@jit_fast_compile
def _better(
    target, best: Start, found: Start, tolerance: Tolerance
) -> tuple[Bool[Array, ""], Start]:
    """For each chain one of its candidates, if it has no better start; whether now all have one.

    It is the first that is plausible, else the most probable on the manifold, else the nearest.
    """

    def one(best: Start, found: Start) -> Start:
        usable, plausible = is_usable(found, tolerance), _are_plausible(target, found, tolerance)
        probable = jnp.argmax(jnp.where(usable, found.log_density, -jnp.inf))
        otherwise = jnp.where(jnp.any(usable), probable, jnp.argmin(found.error))
        choice = jnp.where(jnp.any(plausible), jnp.argmax(plausible), otherwise)
        chosen = jax.tree.map(lambda x: x[choice], found)
        # An infinite error is better than none: at least it was a candidate's.
        nearer = usable[choice] | (chosen.error <= best.error)
        better = jnp.where(is_usable(best, tolerance), plausible[choice], nearer)
        better &= ~_are_plausible(target, best, tolerance)
        return jax.tree.map(lambda a, b: jnp.where(better, a, b), chosen, best)

    by_chain = jax.tree.map(lambda x: x.reshape(-1, CANDIDATES, *x.shape[1:]), found)
    best = jax.vmap(one)(best, by_chain)
    return jnp.all(is_usable(best, tolerance)), best


def _are_plausible(target, start: Start, tolerance: Tolerance) -> Bool[Array, "..."]:
    """Whether a start can be used, and its normal inputs are of a size that normals have."""
    size = start.u**2 @ jnp.asarray(target.gaussian, start.u.dtype)
    return is_usable(start, tolerance) & (size <= 4 * np.sum(target.gaussian) + 20)


def is_usable(start: Start, tolerance: Tolerance) -> Bool[Array, "..."]:
    """Whether a point is on the manifold and inside the support."""
    return (start.error <= tolerance.residual) & jnp.isfinite(start.log_density)
