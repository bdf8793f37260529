"""What a projection solver is.

A solver finds λ with c(ũ − D J_previousᵀ λ) = 0, where J_previous is the Jacobian at the previous
point of the chain. The weights D say how far the flow carries each element for a unit of its
momentum; they are one unless elements follow different flows. A solver is `init`, `step` and
`terminate`, as in Optimistix, all deterministic functions of their arguments. No solver raises: the
flag `converged` says whether the answer may be used.
"""

from abc import abstractmethod
from typing import ClassVar, NamedTuple, Self, TypeAlias

import equinox as eqx
from jaxtyping import Array, Bool, Float, Int

from coarea.dynamics.projection.tolerance import Tolerance
from coarea.jacobians.structure import AbstractLinearisation, ExecutionHints
from coarea.manifolds.target import AbstractConstrainedTarget

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
