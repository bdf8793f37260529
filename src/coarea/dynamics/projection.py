"""Projection onto the manifold by several solvers in turn.

The first starts from λ = 0, each later one from where the one before left off: all of it is a
deterministic function of the point that was left and of ũ, which the reverse check relies on.
"""

from dataclasses import replace
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap
from jaxtyping import Array, Bool, Float

from coarea.dynamics.solvers import (
    AbstractSolver,
    Projection,
    QuasiNewton,
    Weights,
)
from coarea.dynamics.tolerance import Tolerance, position_size
from coarea.manifolds import AbstractTarget
from coarea.manifolds.target import AbstractLinearisation

# Where the first solver has failed this part of all chains goes on together, or so many.
_SHARE = 16
_FEW = 8
# Of so many chains or more, which run in step, the first solver makes a few iterations with all,
# and its others with those that need them, of which there are more.
_MANY = 256
_ITERATIONS_OF_ALL = 4
_LARGE_SHARE = 4


# A step projects forward and back: as a program of its own this is traced once.
@eqx.filter_jit
def project_onto(
    solvers: tuple[AbstractSolver, ...],
    target: AbstractTarget,
    older: AbstractLinearisation,
    u: Float[Array, " M"],
    tolerance: Tolerance,
    weights: Weights = 1.0,
    idle: Bool[Array, ""] | bool = False,
    goal: Float[Array, " M"] | None = None,
) -> Projection:
    """Try the solvers in turn until one converges, each from where the one before left off.

    With a `goal`, a point of the manifold, it is enough to see that they lead there. Of the last
    one not: near the goal an earlier one need not arrive, for a later one does; but that the last
    gives up is how a step fails, and must fail in either direction.
    One that is `idle`, having failed before, is not tried again, and has not converged.
    """
    if tolerance.size is None:
        tolerance = replace(tolerance, size=position_size(target, u))
    problem = _Problem(target, older, replace(tolerance, goal=goal), weights)
    stages = tuple(_Stage(solver, sees_goal=True) for solver in solvers)
    stages = *stages[:-1], stages[-1]._replace(sees_goal=False)
    projection = _by_all(stages[0], problem, u)
    if stages[1:]:
        projection = projection._replace(converged=projection.converged | idle)
        share = 1 if target.is_sequential else _SHARE
        projection = _where_needed(stages[1:], problem, projection, share)
    return projection._replace(converged=projection.converged & ~jnp.asarray(idle))


class _Problem(NamedTuple):
    target: AbstractTarget
    older: AbstractLinearisation
    tolerance: Tolerance
    weights: Weights


class _Stage(NamedTuple):
    """One of several solvers, and whether it may end as soon as it sees that it leads to a goal."""

    solver: AbstractSolver
    sees_goal: bool

    def solve(self, problem: _Problem, u: Float[Array, " M"]) -> Projection:
        target, older, tolerance, weights = problem
        if not self.sees_goal:
            tolerance = replace(tolerance, goal=None)
        return self.solver.solve(target, older, u, tolerance, weights)


def _by_all(stage: _Stage, problem: _Problem, u: Float[Array, " M"]) -> Projection:
    """The first solver's answer. Thousands of chains do not wait for the last few of them."""
    arrays, rest = eqx.partition(problem, eqx.is_array)

    @custom_vmap
    def solve(arrays, u):
        return stage.solve(eqx.combine(arrays, rest), u)

    @solve.def_vmap
    def _(num_chains, is_batched, arrays, u):
        def one(arrays, u):
            problem = eqx.combine(arrays, rest)
            all_go_on = num_chains < _MANY or problem.target.is_sequential
            if all_go_on or not isinstance(stage.solver, QuasiNewton):
                return stage.solve(problem, u)
            fewer = replace(stage.solver, max_iterations=_ITERATIONS_OF_ALL)
            begun = stage._replace(solver=fewer).solve(problem, u)
            return _where_needed((stage,), problem, begun, _LARGE_SHARE)

        axes = jax.tree.map(lambda yes: 0 if yes else None, is_batched)
        found = jax.vmap(one, in_axes=axes, axis_size=num_chains)(arrays, u)
        return found, jax.tree.map(lambda _: True, found)

    return solve(arrays, u)


def _where_needed(
    stages: tuple[_Stage, ...], problem: _Problem, earlier: Projection, share: int
) -> Projection:
    """The solvers' answer where the earlier one did not converge, from where that left off.

    Under `vmap` only by the chains that need it, a few at a time: of thousands there are always
    some, and otherwise all would wait for what these do. None costs nothing. Where `share` is one,
    all make it together, and those that need it keep what they find.
    """
    arrays, rest = eqx.partition(problem, eqx.is_array)

    def solved(arrays, earlier) -> Projection:
        problem = eqx.combine(arrays, rest)
        later = stages[0].solve(problem, earlier.u)
        later = later._replace(iterations=earlier.iterations + later.iterations)
        # Of those that only fill up nothing more is asked.
        later = later._replace(converged=later.converged | earlier.converged)
        return _where_needed(stages[1:], problem, later, share) if stages[1:] else later

    def if_needed(arrays, earlier):
        def go(carry):
            return jnp.asarray(False), solved(arrays, carry[1])

        return jax.lax.while_loop(lambda carry: carry[0], go, (~earlier.converged, earlier))[1]

    needed = custom_vmap(if_needed)

    @needed.def_vmap
    def _(num_chains, is_batched, arrays, earlier):
        axes = jax.tree.map(lambda yes: 0 if yes else None, is_batched[0])
        few = min(num_chains, max(_FEW, num_chains // share))
        earlier = jax.tree.map(
            lambda x, yes: x if yes else jnp.broadcast_to(x, (num_chains, *x.shape)),
            earlier,
            is_batched[1],
        )

        def some(carry):
            waits, found = carry
            # Numbers beyond the last fill up: the last chain's work is done again, and dropped.
            chosen = jnp.nonzero(waits, size=few, fill_value=num_chains)[0]

            def take(x):
                return x.at[chosen].get(mode="clip")

            theirs = jax.tree.map(lambda x, yes: take(x) if yes else x, arrays, is_batched[0])
            later = jax.vmap(solved, in_axes=(axes, 0))(theirs, jax.tree.map(take, found))
            found = jax.tree.map(
                lambda all, new: all.at[chosen].set(new, mode="drop"), found, later
            )
            return waits.at[chosen].set(False, mode="drop"), found

        if few == num_chains:
            found = jax.vmap(if_needed, in_axes=(axes, 0))(arrays, earlier)
        else:
            _, found = jax.lax.while_loop(
                lambda carry: jnp.any(carry[0]), some, (~earlier.converged, earlier)
            )
        return found, jax.tree.map(lambda _: True, found)

    return needed(arrays, earlier)
