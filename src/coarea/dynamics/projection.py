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
    Weights,
)
from coarea.dynamics.tolerance import Tolerance, position_size
from coarea.manifolds import AbstractTarget
from coarea.manifolds.target import AbstractLinearisation

# A solver that no more than this part of all chains need is tried by these alone, of which a
# smaller part goes on together, or so many.
_MOST = 4
_SHARE = 16
_FEW = 8
# So many chains or more that run in step leave a solver sooner, if another comes after it.
_MANY = 256


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
    *stages, last = (_Stage(solver) for solver in solvers)
    first, *later = *stages, last._replace(is_last=True)
    projection = _by_all(first, problem, u, goes_on=not (later and later[0].solver.learns))
    if later:
        projection = projection._replace(converged=projection.converged | idle)
        projection = _where_needed(tuple(later), problem, projection)
    return projection._replace(converged=projection.converged & ~jnp.asarray(idle))


class _Problem(NamedTuple):
    target: AbstractTarget
    older: AbstractLinearisation
    tolerance: Tolerance
    weights: Weights


class _Stage(NamedTuple):
    """One of several solvers. But the last may end as soon as it sees that it leads to a goal."""

    solver: AbstractSolver
    is_last: bool = False

    def of(self, num_chains: int) -> "_Stage":
        """For so many chains that run in step."""
        if self.is_last or num_chains < _MANY:
            return self
        return self._replace(solver=self.solver.for_many())

    def solve(self, problem: _Problem, u: Float[Array, " M"]) -> Projection:
        target, older, tolerance, weights = problem
        if self.is_last:
            tolerance = replace(tolerance, goal=None)
        return self.solver.solve(target, older, u, tolerance, weights)

    def go_on(self, problem: _Problem, earlier: Projection) -> Projection:
        """The answer where an earlier one did not converge, from where that left off."""
        # Where it did there is nothing to solve: what is no number ends a solver at once, so that
        # none that goes on beside it waits for it.
        later = self.solve(problem, jnp.where(earlier.converged, jnp.nan, earlier.u))
        later = later._replace(iterations=earlier.iterations + later.iterations)
        return jax.tree.map(lambda a, b: jnp.where(earlier.converged, a, b), earlier, later)


def _by_all(stage: _Stage, problem: _Problem, u: Float[Array, " M"], goes_on: bool) -> Projection:
    """The first solver's answer.

    Of very many chains most need few of its iterations. With the others it `goes_on`, or leaves
    them to the next solver.
    """
    arrays, rest = eqx.partition(problem, eqx.is_array)

    @custom_vmap
    def solve(arrays, u):
        return stage.solve(eqx.combine(arrays, rest), u)

    @solve.def_vmap
    def _(num_chains, is_batched, arrays, u):
        def one(arrays, u):
            return shorter.solve(eqx.combine(arrays, rest), u)

        shorter = stage.of(num_chains)
        axes = jax.tree.map(lambda yes: 0 if yes else None, is_batched)
        found = jax.vmap(one, in_axes=axes, axis_size=num_chains)(arrays, u)
        if goes_on and shorter != stage:
            found = _by_those_in_need(stage, arrays, rest, is_batched[0], found, _MOST)
        return found, jax.tree.map(lambda _: True, found)

    return solve(arrays, u)


def _where_needed(stages: tuple[_Stage, ...], problem: _Problem, earlier: Projection) -> Projection:
    """The solvers' answer where the earlier one did not converge, from where that left off.

    None costs nothing. Under `vmap` each is tried by the chains that need it, if they are few, a
    few at a time: of thousands there are always some, and otherwise all would wait for what these
    do. Where rounds are short and many, all make them together at no cost.
    """
    arrays, rest = eqx.partition(problem, eqx.is_array)

    def if_needed(arrays, earlier):
        def go(carry):
            _, earlier = carry
            problem = eqx.combine(arrays, rest)
            later = stages[0].solve(problem, earlier.u)
            later = later._replace(iterations=earlier.iterations + later.iterations)
            later = _where_needed(stages[1:], problem, later) if stages[1:] else later
            return jnp.asarray(False), later

        return jax.lax.while_loop(lambda carry: carry[0], go, (~earlier.converged, earlier))[1]

    needed = custom_vmap(if_needed)

    @needed.def_vmap
    def _(num_chains, is_batched, arrays, earlier):
        found = jax.tree.map(
            lambda x, yes: x if yes else jnp.broadcast_to(x, (num_chains, *x.shape)),
            earlier,
            is_batched[1],
        )
        for stage in stages:
            found = _by_those_in_need(stage.of(num_chains), arrays, rest, is_batched[0], found)
        return found, jax.tree.map(lambda _: True, found)

    return needed(arrays, earlier)


def _by_those_in_need(
    stage: _Stage, arrays, rest, is_batched, earlier: Projection, share: int = _SHARE
) -> Projection:
    """One solver's answer for several chains where the earlier one did not converge."""
    num_chains = earlier.converged.size
    axes = jax.tree.map(lambda yes: 0 if yes else None, is_batched)
    go_on = jax.vmap(
        lambda arrays, earlier: stage.go_on(eqx.combine(arrays, rest), earlier), in_axes=(axes, 0)
    )
    few = max(_FEW, num_chains // share)

    def all_together(found):
        def go(carry):
            return jnp.asarray(False), go_on(arrays, carry[1])

        begin = jnp.any(~found.converged), found
        return jax.lax.while_loop(lambda carry: carry[0], go, begin)[1]

    def few_at_a_time(found):
        def some(carry):
            waits, found = carry
            # Numbers beyond the last fill up: the last chain's work is done again, and dropped.
            chosen = jnp.nonzero(waits, size=few, fill_value=num_chains)[0]

            def take(x):
                return x.at[chosen].get(mode="clip")

            theirs = jax.tree.map(lambda x, yes: take(x) if yes else x, arrays, is_batched)
            later = go_on(theirs, jax.tree.map(take, found))
            found = jax.tree.map(
                lambda all, new: all.at[chosen].set(new, mode="drop"), found, later
            )
            return waits.at[chosen].set(False, mode="drop"), found

        begin = ~found.converged, found
        return jax.lax.while_loop(lambda carry: jnp.any(carry[0]), some, begin)[1]

    if few >= num_chains or rest.target.is_sequential:
        return all_together(earlier)
    are_many = jnp.sum(~earlier.converged) > num_chains // _MOST
    return jax.lax.cond(are_many, all_together, few_at_a_time, earlier)
