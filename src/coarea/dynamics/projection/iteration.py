"""The loop that runs a solver: for one chain, or for several in lockstep."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from coarea.dynamics.projection.solver import (
    AbstractSolver,
    History,
    Iterate,
    Problem,
    Projection,
)


class Problems(NamedTuple):
    """The problems of several chains: arrays with or without a row for each chain, and the rest."""

    arrays: Any
    has_rows: Any
    rest: Any

    def vmap(self, function: Callable, in_axes: tuple = (0,)) -> Callable:
        """`function(problem, …)` for all chains; `in_axes` are those of its other arguments."""
        axes = jax.tree.map(lambda yes: 0 if yes else None, self.has_rows)
        mapped = jax.vmap(
            lambda arrays, *args: function(eqx.combine(arrays, self.rest), *args),
            in_axes=(axes, *in_axes),
        )
        return lambda *args: mapped(self.arrays, *args)

    def take(self, take: Callable) -> "Problems":
        """The problems of some of the chains."""
        arrays = jax.tree.map(lambda x, yes: take(x) if yes else x, self.arrays, self.has_rows)
        return self._replace(arrays=arrays)


def solve_alone(
    solver: AbstractSolver, problem: Problem, u: Float[Array, " M"], inactive: Bool[Array, ""]
) -> Projection:
    """Iterate until the solver terminates. An `inactive` chain has nothing to do."""

    def init(u):
        return solver.init(problem, u)

    def step(last, history):
        return solver.step(problem, last, history)

    return _ended(_cost(solver, problem), *_iterate(solver, init, step, u, inactive))


def solve_together(
    solver: AbstractSolver,
    problems: Problems,
    u: Float[Array, "chains M"],
    inactive: Bool[Array, " chains"],
) -> Projection:
    """Iterate until the solver has terminated for every chain. No chain waits for inactive ones.

    `vmap` of a loop copies all that the loop carries in each iteration, and a history is large. So
    the vectorised loop is written out: chains that have terminated keep their iterate, and all
    write to the history.
    """
    rows: Any = History(1, 1, None) if solver.uses_history else None  # pyright: ignore
    ends = _iterate(
        solver, problems.vmap(solver.init), problems.vmap(solver.step, (0, rows)), u, inactive
    )
    cost = _cost(solver, problems.rest)
    return jax.vmap(lambda first, last: _ended(cost, first, last))(*ends)


def _cost(solver: AbstractSolver, problem: Problem) -> int:
    return solver.work_per_iteration(problem.target.hints)


def _iterate(solver: AbstractSolver, init, step, u, inactive) -> tuple[Iterate, Iterate]:
    """The first iterate and the last, of one chain or of several together."""
    first: Iterate = init(u)
    first = first._replace(is_hopeless=first.is_hopeless | inactive)
    history = None
    if solver.uses_history:
        steps = jnp.zeros((solver.max_iterations, *u.shape), u.dtype)
        history = History(steps, jnp.zeros(steps.shape[:-1], u.dtype), jnp.zeros((), int))

    def unfinished(carry):
        return jnp.any(~solver.terminate(carry[0]))

    def body(carry):
        last, history = carry
        if history is not None:
            n = history.last
            history = history._replace(
                steps=history.steps.at[n].set(last.step),
                squares=history.squares.at[n].set(jnp.sum(last.step**2, axis=-1)),
            )
        later = step(last, history)
        if history is not None:
            history = history._replace(last=history.last + 1)
        if inactive.ndim == 0:
            return later, history
        return select(solver.terminate(last), last, later), history

    return first, jax.lax.while_loop(unfinished, body, (first, history))[0]


def select(condition: Bool[Array, "..."], one: Any, other: Any) -> Any:
    """`jnp.where` for trees of arrays with a scalar or a vector for each element of `condition`."""
    return jax.tree.map(
        lambda a, b: jnp.where(
            condition if a.ndim == condition.ndim else condition[..., None], a, b
        ),
        one,
        other,
    )


def _ended(cost: int, first: Iterate, last: Iterate) -> Projection:
    """Make the last change if it is small. An iteration that got no closer is forgotten."""
    best = jnp.where(last.error < first.error, last.u, first.u)
    u = jnp.where(last.is_done, last.u - last.step, best)
    return Projection(u, last.is_done, last.iterations, 1 + cost * last.iterations)
