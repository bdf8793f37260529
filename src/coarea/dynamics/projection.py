"""Projection onto the manifold by several solvers in turn.

The first starts from λ = 0, each later one from where the one before left off: all of it is a
deterministic function of the point that was left and of ũ, which the reverse check relies on, and
of how many chains run together, which is the same there and back.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap
from jaxtyping import Array, Bool, Float

from coarea.dynamics.solvers import (
    AbstractSolver,
    Projection,
    Weights,
)
from coarea.dynamics.tolerance import Tolerance
from coarea.jacobians.structure import AbstractLinearisation
from coarea.manifolds import AbstractTarget
from coarea.xla import jit_bounded

# A solver that more than this part of all chains need is tried by all of them together; if they are
# fewer, by this part of all at a time, or by so many.
_MANY_NEED_IT = 1 / 4
_AT_A_TIME = 1 / 16
_FEWEST_AT_A_TIME = 8
# So many chains or more that run in step leave a solver sooner, if another comes after it.
_MANY_CHAINS = 256


# A step projects forward and back: as a program of its own this is traced once.
@jit_bounded
def project_onto(
    solvers: tuple[AbstractSolver, ...],
    target: AbstractTarget,
    previous: AbstractLinearisation,
    u: Float[Array, " M"],
    tolerance: Tolerance,
    weights: Weights = 1.0,
    inactive: Bool[Array, ""] | bool = False,
    known_root: Float[Array, " M"] | None = None,
) -> Projection:
    """Try the solvers in turn until one converges, each from where the one before left off.

    With a `known_root`, a point of the manifold, it is enough to see that they lead there. Of the last
    one not: root_tolerance the known_root an earlier one need not arrive, for a later one does; but that the last
    gives up is how a step fails, and must fail in either direction.
    One that is `inactive`, having failed before, is not tried again, and has not converged.
    """
    problem = _Problem(
        target, previous, replace(tolerance.sized(target, u), known_root=known_root), weights
    )
    *stages, last = (_Stage(solver) for solver in solvers)
    stages = *stages, last._replace(is_last=True)
    inactive = jnp.asarray(inactive)
    found = _tried_in_turn(stages, problem, Projection(u, inactive, jnp.zeros((), int)))
    return found._replace(converged=found.converged & ~inactive)


class _Problem(NamedTuple):
    target: AbstractTarget
    previous: AbstractLinearisation
    tolerance: Tolerance
    weights: Weights


class _Stage(NamedTuple):
    """One of several solvers. All but the last may end when they see that they lead to a known_root."""

    solver: AbstractSolver
    is_last: bool = False
    at_a_time: float = _AT_A_TIME

    def solve(self, problem: _Problem, earlier: Projection) -> Projection:
        """From where an earlier one left off; anything where that has converged."""
        target, previous, tolerance, weights = problem
        if self.is_last:
            tolerance = replace(tolerance, known_root=None)
        later = self.solver.solve(
            target, previous, earlier.u, tolerance, weights, inactive=earlier.converged
        )
        return Projection(
            later.u, earlier.converged | later.converged, earlier.iterations + later.iterations
        )

    def solve_where_needed(self, problem: _Problem, earlier: Projection) -> Projection:
        """The same; what has converged stays as it is."""
        later = self.solve(problem, earlier)
        return jax.tree.map(lambda a, b: jnp.where(earlier.converged, a, b), earlier, later)


def _for_chains(stages: tuple[_Stage, ...], num_chains: int) -> tuple[_Stage, ...]:
    """The same for so many chains that run in step.

    Of very many most need few iterations of the first solver. The others go on with it, unless the
    next one does better at no more cost.
    """
    first, *later = stages
    if num_chains < _MANY_CHAINS or not later:
        return stages
    shorter = first._replace(solver=first.solver.for_many())
    again = () if later[0].solver.learns else (first._replace(at_a_time=_MANY_NEED_IT),)
    between = (stage._replace(solver=stage.solver.for_many()) for stage in later[:-1])
    return shorter, *again, *between, later[-1]


def _tried_in_turn(stages: tuple[_Stage, ...], problem: _Problem, begun: Projection) -> Projection:
    """What the solvers find. One that is not needed costs nothing.

    Under `vmap` each is tried by the chains that need it, if they are few, a few at a time: of
    thousands there are always some, and otherwise all would wait for what these do.
    """
    arrays, rest = eqx.partition(problem, eqx.is_array)

    @custom_vmap
    def tried(arrays, begun):
        problem = eqx.combine(arrays, rest)
        return _where_needed(stages[1:], problem, stages[0].solve(problem, begun))

    @tried.def_vmap
    def _(num_chains, is_batched, arrays, begun):
        found = jax.tree.map(
            lambda x, yes: x if yes else jnp.broadcast_to(x, (num_chains, *jnp.shape(x))),
            begun,
            is_batched[1],
        )
        first, *later = _for_chains(stages, num_chains)
        together = _Together(arrays, is_batched[0], rest)
        found = together.solve(first.solve, found)
        for stage in later:
            found = together.solve_where_needed(stage, found)
        return found, jax.tree.map(lambda _: True, found)

    return tried(arrays, begun)


def _where_needed(stages: tuple[_Stage, ...], problem: _Problem, found: Projection) -> Projection:
    """The solvers' answer for one chain, if what was found has not converged."""
    if not stages:
        return found

    def go(carry):
        return jnp.asarray(False), _where_needed(
            stages[1:], problem, stages[0].solve(problem, carry[1])
        )

    return jax.lax.while_loop(lambda carry: carry[0], go, (~found.converged, found))[1]


class _Together(NamedTuple):
    """The problems of several chains: arrays, which each chain has of its own, and the rest."""

    arrays: Any
    is_own: Any
    rest: Any

    def solve(self, solve: Callable, found: Projection) -> Projection:
        axes = jax.tree.map(lambda yes: 0 if yes else None, self.is_own)
        return jax.vmap(
            lambda arrays, found: solve(eqx.combine(arrays, self.rest), found), in_axes=(axes, 0)
        )(self.arrays, found)

    def of(self, take: Callable) -> "_Together":
        """Of some of the chains."""
        own = jax.tree.map(lambda x, yes: take(x) if yes else x, self.arrays, self.is_own)
        return self._replace(arrays=own)

    def solve_where_needed(self, stage: _Stage, found: Projection) -> Projection:
        """By all or by a few at a time, as so many need it. Where rounds are short, by all."""
        num_chains = found.converged.size
        few = max(_FEWEST_AT_A_TIME, int(num_chains * stage.at_a_time))
        if few >= num_chains or self.rest.target.is_sequential:
            return self._by_all(stage, found)
        are_many = jnp.sum(~found.converged) > num_chains * _MANY_NEED_IT
        return jax.lax.cond(
            are_many,
            lambda found: self._by_all(stage, found),
            lambda found: self._by_few_at_a_time(stage, found, few),
            found,
        )

    def _by_all(self, stage: _Stage, found: Projection) -> Projection:
        def go(carry):
            return jnp.asarray(False), self.solve(stage.solve_where_needed, carry[1])

        begin = jnp.any(~found.converged), found
        return jax.lax.while_loop(lambda carry: carry[0], go, begin)[1]

    def _by_few_at_a_time(self, stage: _Stage, found: Projection, few: int) -> Projection:
        num_chains = found.converged.size

        def some(carry):
            waits, found = carry
            # Numbers beyond the last fill up, and stand for the last, of which nothing is asked.
            chosen = jnp.nonzero(waits, size=few, fill_value=num_chains)[0]

            def take(x):
                return x.at[chosen].get(mode="clip")

            theirs = jax.tree.map(take, found)
            theirs = theirs._replace(converged=theirs.converged | (chosen == num_chains))
            later = self.of(take).solve(stage.solve_where_needed, theirs)
            found = jax.tree.map(
                lambda all, new: all.at[chosen].set(new, mode="drop"), found, later
            )
            return waits.at[chosen].set(False, mode="drop"), found

        begin = ~found.converged, found
        return jax.lax.while_loop(lambda carry: jnp.any(carry[0]), some, begin)[1]
