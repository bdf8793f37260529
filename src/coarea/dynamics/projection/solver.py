"""What a projection solver is, and the loop that runs one.

A solver finds λ with c(ũ − D J_previousᵀ λ) = 0, where J_previous is the Jacobian at the previous
point of the chain. The weights D say how far the flow carries each element for a unit of its
momentum; they are one unless elements follow different flows. A solver is `init`, `step` and
`terminate`, as in Optimistix, all deterministic functions of their arguments. No solver raises: the
flag `converged` says whether the answer may be used.
"""

from abc import abstractmethod
from functools import partial
from typing import Any, ClassVar, NamedTuple, Self, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap
from jaxtyping import Array, Bool, Float, Int

from coarea.dynamics.projection.tolerance import Tolerance
from coarea.jacobians.structure import AbstractLinearisation, ExecutionHints
from coarea.manifolds.target import AbstractConstrainedTarget
from coarea.xla import jit_bounded

# What has grown beyond this multiple of its scale will not come back.
_HOPELESS = 1e10

Weights: TypeAlias = Float[Array, " M"] | float


class Problem(NamedTuple):
    """Project onto the target's manifold along the weighted rows of the previous Jacobian."""

    target: AbstractConstrainedTarget
    previous: AbstractLinearisation
    tolerance: Tolerance
    weights: Weights = 1.0

    def judge(self, u, c, step, iterations) -> "Iterate":
        """A point with its residual and the next change of it, compared with the tolerance."""
        bounds = self.tolerance.at(self.target, u)
        error = bounds.error(c, step)
        # Written so that NaN is hopeless too.
        hopeless = ~(error < _HOPELESS / self.tolerance.residual)
        return Iterate(u, step, error, iterations, bounds.is_met(error, u - step), hopeless)


class Iterate(NamedTuple):
    """A point, the change to subtract next, and how many times too large residual and change are.

    Once `is_done`, the change is still to be made, but the point after it is not evaluated.
    """

    u: Float[Array, " M"]
    step: Float[Array, " M"]
    error: Float[Array, ""]
    iterations: Int[Array, ""]
    is_done: Bool[Array, ""]
    is_hopeless: Bool[Array, ""]


class History(NamedTuple):
    """The changes made so far, a row for each iteration, and their squared lengths."""

    steps: Float[Array, "iterations M"]
    squares: Float[Array, " iterations"]
    last: Int[Array, ""]  # the row that was written last


class Projection(NamedTuple):
    """Where a solver ended, after how many iterations, and what they cost.

    Without convergence `u` is where another solver had better begin. The work is counted in
    evaluations of the residual.
    """

    u: Float[Array, " M"]
    converged: Bool[Array, ""]
    iterations: Int[Array, ""]
    work: Int[Array, ""]


class AbstractSolver(eqx.Module):
    """One way to solve for λ."""

    # Whether `step` reads the history. Such a solver improves with each iteration.
    uses_history: ClassVar[bool] = False
    max_iterations: eqx.AbstractVar[int]

    @abstractmethod
    def init(self, problem: Problem, u: Float[Array, " M"]) -> Iterate:
        """The first iterate, at u."""

    def work_per_iteration(self, hints: ExecutionHints) -> int:
        """What an iteration costs, in evaluations of the residual."""
        del hints
        return 1

    @abstractmethod
    def step(self, problem: Problem, last: Iterate, history: History | None) -> Iterate:
        """Make the change that `last` holds, and find the next one."""

    def terminate(self, iterate: Iterate) -> Bool[Array, ""]:
        """Whether the iteration is over."""
        return iterate.is_done | iterate.is_hopeless | (iterate.iterations >= self.max_iterations)

    def for_lockstep(self) -> Self:
        """The solver to use for very many chains in lockstep if another solver comes after it.

        All of them wait for the last one, so it gives up sooner.
        """
        return self

    def solve(
        self,
        target: AbstractConstrainedTarget,
        previous: AbstractLinearisation,
        u: Float[Array, " M"],
        tolerance: Tolerance,
        weights: Weights = 1.0,
        inactive: Bool[Array, ""] | bool = False,
    ) -> Projection:
        """Project u. An `inactive` chain has nothing to do, and no other chain waits for it."""
        problem = Problem(target, previous, tolerance.sized(target, u), weights)
        return run(self, problem, u, inactive)


def run(
    solver: AbstractSolver,
    problem: Problem,
    u: Float[Array, " M"],
    inactive: Bool[Array, ""] | bool,
) -> Projection:
    """Iterate until the solver terminates. Under `vmap`: until it has for every chain.

    `vmap` of a loop copies all that the loop carries in each iteration, and a history is large. So
    the vectorised loop is written out: chains that have terminated keep their iterate, and all
    write to the history.
    """
    arrays, rest = eqx.partition(problem, eqx.is_array)
    cost = solver.work_per_iteration(problem.target.hints)

    def of(arrays) -> Problem:
        return eqx.combine(arrays, rest)

    @custom_vmap
    def alone(arrays, u, inactive):
        init, step = partial(solver.init, of(arrays)), partial(solver.step, of(arrays))
        return _ended(cost, *_iterate(solver, init, step, u, inactive))

    @alone.def_vmap
    def _(num_chains, is_batched, arrays, u, inactive):
        axes = jax.tree.map(lambda yes: 0 if yes else None, is_batched[0])
        u = u if is_batched[1] else jnp.broadcast_to(u, (num_chains, *u.shape))
        inactive = jnp.broadcast_to(inactive, num_chains)
        init = jax.vmap(lambda arrays, u: solver.init(of(arrays), u), in_axes=(axes, 0))
        rows: Any = History(1, 1, None) if solver.uses_history else None  # pyright: ignore
        step = jax.vmap(
            lambda arrays, *args: solver.step(of(arrays), *args), in_axes=(axes, 0, rows)
        )
        ends = _iterate(solver, partial(init, arrays), partial(step, arrays), u, inactive)
        found = jax.vmap(partial(_ended, cost))(*ends)
        return found, jax.tree.map(lambda _: True, found)

    return alone(arrays, u, jnp.asarray(inactive))


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
        is_over = solver.terminate(last)

        def select(a, b):
            return jnp.where(is_over if a.ndim == 1 else is_over[..., None], a, b)

        return jax.tree.map(select, last, later), history

    return first, jax.lax.while_loop(unfinished, body, (first, history))[0]


def _ended(cost: int, first: Iterate, last: Iterate) -> Projection:
    """Make the last change if it is small. An iteration that got no closer is forgotten."""
    best = jnp.where(last.error < first.error, last.u, first.u)
    u = jnp.where(last.is_done, last.u - last.step, best)
    return Projection(u, last.is_done, last.iterations, 1 + cost * last.iterations)


# Called in several places of a step: compiled on its own, it is traced once.
@jit_bounded
def linearise(target: AbstractConstrainedTarget, u: Float[Array, " M"]) -> AbstractLinearisation:
    """The target linearised at u."""
    return target.linearise(u)
