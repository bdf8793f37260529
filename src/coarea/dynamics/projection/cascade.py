"""Projection by a cascade of solvers: each is tried only if the one before it failed.

A later solver starts where the earlier one ended. The result is a deterministic function of the
previous point, of the point to project and of how many chains run in lockstep. The reverse check
relies on that: forth and back are projected alike.

Here is where chains are vectorised: `vmap` of a projection runs the stages for all chains together.
"""

from dataclasses import replace
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap
from jaxtyping import Array, Bool, Float

from coarea.dynamics.projection.iteration import (
    Problems,
    select,
    solve_alone,
    solve_together,
)
from coarea.dynamics.projection.solver import AbstractSolver, Problem, Projection, Weights
from coarea.dynamics.projection.tolerance import Tolerance
from coarea.jacobians.structure import AbstractLinearisation
from coarea.manifolds.target import AbstractConstrainedTarget
from coarea.xla import jit_bounded

# If more than this fraction of all chains needs a solver, all chains run it. If fewer do, only they
# run it, compacted to groups of this fraction of all chains, or of this number.
_MOST_COMPACTED = 1 / 4
_GROUP_FRACTION = 1 / 16
_SMALLEST_GROUP = 8
# From this number of chains in lockstep on, a solver gives up sooner if another comes after it.
_MANY_CHAINS = 256


# A step projects forth and back: compiled on its own, the cascade is traced once.
@jit_bounded
def project_onto(
    solvers: tuple[AbstractSolver, ...],
    target: AbstractConstrainedTarget,
    previous: AbstractLinearisation,
    u: Float[Array, " M"],
    tolerance: Tolerance,
    weights: Weights = 1.0,
    inactive: Bool[Array, ""] | bool = False,
    known_root: Float[Array, " M"] | None = None,
) -> Projection:
    """Project u onto the target's manifold along the weighted rows of the previous Jacobian.

    With a `known_root`, a point of the manifold, a solver may stop as soon as it can only converge
    to that root. The last solver may not: how it gives up decides whether a step fails, and a step
    must fail in both directions or in neither. An `inactive` chain has failed before. It is not
    projected, and counts as not converged.
    """
    tolerance = replace(tolerance.sized(target, u), known_root=known_root)
    *stages, last = (_Stage(solver) for solver in solvers)
    inactive = jnp.asarray(inactive)
    found = _cascade(
        (*stages, last._replace(is_last=True)),
        Problem(target, previous, tolerance, weights),
        Projection(u, inactive, jnp.zeros((), int), jnp.zeros((), int)),
    )
    return found._replace(converged=found.converged & ~inactive)


class _Stage(NamedTuple):
    """One solver of a cascade. It goes on from where an earlier one ended.

    Of a chain that had converged the result means nothing.
    """

    solver: AbstractSolver
    is_last: bool = False
    group_fraction: float = _GROUP_FRACTION

    def solve(self, problem: Problem, earlier: Projection) -> Projection:
        """The result for one chain."""
        problem = _without_root(problem) if self.is_last else problem
        return _added(earlier, solve_alone(self.solver, problem, earlier.u, earlier.converged))

    def solve_together(self, problems: Problems, earlier: Projection) -> Projection:
        """The results for several chains."""
        problems = Problems(*map(_without_root, problems)) if self.is_last else problems
        return _added(earlier, solve_together(self.solver, problems, earlier.u, earlier.converged))


def _without_root(problem: Problem) -> Problem:
    return problem._replace(tolerance=replace(problem.tolerance, known_root=None))


def _added(earlier: Projection, later: Projection) -> Projection:
    """The later result, with the cost of both."""
    return Projection(
        later.u,
        earlier.converged | later.converged,
        earlier.iterations + later.iterations,
        earlier.work + later.work,
    )


def _for_lockstep(stages: tuple[_Stage, ...], num_chains: int) -> tuple[_Stage, ...]:
    """The stages for this number of chains in lockstep.

    Most of very many chains need few iterations of the first solver. The rest go on with it, unless
    the next solver converges faster at no more cost.
    """
    first, *later = stages
    if num_chains < _MANY_CHAINS or not later:
        return stages
    shorter = first._replace(solver=first.solver.for_lockstep())
    next_is_better = later[0].solver.uses_history
    again = () if next_is_better else (first._replace(group_fraction=_MOST_COMPACTED),)
    between = (stage._replace(solver=stage.solver.for_lockstep()) for stage in later[:-1])
    return shorter, *again, *between, later[-1]


def _cascade(stages: tuple[_Stage, ...], problem: Problem, begin: Projection) -> Projection:
    """Run the stages. A stage that is not needed costs nothing.

    Under `vmap` a stage that few chains need runs on these chains only: of thousands some always
    need it, and all would wait for them.
    """
    arrays, rest = eqx.partition(problem, eqx.is_array)

    @custom_vmap
    def cascade(arrays, begin):
        problem = eqx.combine(arrays, rest)
        return _go_on(stages[1:], problem, stages[0].solve(problem, begin))

    @cascade.def_vmap
    def _(num_chains, is_batched, arrays, begin):
        found = jax.tree.map(
            lambda x, yes: x if yes else jnp.broadcast_to(x, (num_chains, *jnp.shape(x))),
            begin,
            is_batched[1],
        )
        first, *later = _for_lockstep(stages, num_chains)
        problems = Problems(arrays, is_batched[0], rest)
        found = first.solve_together(problems, found)
        for stage in later:
            found = _solve_where_needed(stage, problems, found)
        return found, jax.tree.map(lambda _: True, found)

    return cascade(arrays, begin)


def _go_on(stages: tuple[_Stage, ...], problem: Problem, found: Projection) -> Projection:
    """The remaining stages for one chain, if it has not converged."""
    if not stages:
        return found

    def later(carry):
        return jnp.asarray(False), _go_on(stages[1:], problem, stages[0].solve(problem, carry[1]))

    return jax.lax.while_loop(lambda carry: carry[0], later, (~found.converged, found))[1]


def _solve_where_needed(stage: _Stage, problems: Problems, found: Projection) -> Projection:
    """Run a stage on all chains, or compacted to those that have not converged."""
    num_chains = found.converged.size
    group = max(_SMALLEST_GROUP, int(num_chains * stage.group_fraction))
    if group >= num_chains or problems.rest.target.hints.latency_bound:
        return _on_all(stage, problems, found)
    are_many = jnp.sum(~found.converged) > num_chains * _MOST_COMPACTED
    return jax.lax.cond(
        are_many,
        lambda found: _on_all(stage, problems, found),
        lambda found: _compacted(stage, problems, found, group),
        found,
    )


def _on_all(stage: _Stage, problems: Problems, found: Projection) -> Projection:
    """Run a stage on all chains at once, if any needs it."""

    def go(carry):
        found = carry[1]
        return jnp.asarray(False), _kept(found, stage.solve_together(problems, found))

    begin = jnp.any(~found.converged), found
    return jax.lax.while_loop(lambda carry: carry[0], go, begin)[1]


def _compacted(stage: _Stage, problems: Problems, found: Projection, group: int) -> Projection:
    """Run a stage on the chains that need it, a group of them at a time."""
    num_chains = found.converged.size

    def solve_some(carry):
        waits, found = carry
        # Padded with a number beyond the last, which stands for the last and is inactive.
        chosen = jnp.nonzero(waits, size=group, fill_value=num_chains)[0]

        def take(x):
            return x.at[chosen].get(mode="clip")

        theirs = jax.tree.map(take, found)
        theirs = theirs._replace(converged=theirs.converged | (chosen == num_chains))
        later = _kept(theirs, stage.solve_together(problems.take(take), theirs))
        found = jax.tree.map(lambda all, new: all.at[chosen].set(new, mode="drop"), found, later)
        return waits.at[chosen].set(False, mode="drop"), found

    begin = ~found.converged, found
    return jax.lax.while_loop(lambda carry: jnp.any(carry[0]), solve_some, begin)[1]


def _kept(earlier: Projection, later: Projection) -> Projection:
    """The later results, except for chains that had converged."""
    return select(earlier.converged, earlier, later)
