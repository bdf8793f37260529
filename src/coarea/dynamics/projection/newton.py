"""Solvers that linearise in each iteration: Newton, Newton with a line search, and a dog leg."""

import math
from abc import abstractmethod

import equinox as eqx
import jax
import jax.numpy as jnp
import optimistix as optx
from jaxtyping import Array, Bool, Float
from typing_extensions import override

from coarea.dynamics.projection.solver import (
    AbstractSolver,
    Iterate,
    Problem,
)
from coarea.dynamics.projection.tolerance import largest
from coarea.manifolds.target import linearise


class AbstractNewton(AbstractSolver):
    """λ ← λ + (J J_previousᵀ)⁻¹ c, or a part of that change."""

    @abstractmethod
    def change(
        self, problem: Problem, u: Float[Array, " M"], c: Float[Array, " N"]
    ) -> tuple[Float[Array, " M"], Bool[Array, ""] | bool]:
        """The change to subtract from u, and whether to give up."""

    @override
    def work_per_iteration(self, hints):
        return 1 + math.ceil(hints.linearisation_cost)

    @override
    def init(self, problem, u):
        """No change yet: the program then holds one linearisation only, and compiles faster."""
        none = jnp.zeros_like(u)
        bounds = problem.tolerance.at(problem.target, u)
        error = bounds.error(problem.target.residual(u), none)
        no = jnp.asarray(False)
        return Iterate(u, none, error, jnp.full((), -1), no, no)

    @override
    def step(self, problem, last, history):
        u = last.u - last.step
        c = problem.target.residual(u)
        step, gives_up = self.change(problem, u, c)
        now = problem.judge(u, c, step, last.iterations + 1)
        return now._replace(is_hopeless=now.is_hopeless | gives_up)


class Newton(AbstractNewton):
    """Full Newton steps: quadratic convergence near a root."""

    max_iterations: int = eqx.field(static=True, default=20)

    @override
    def change(self, problem, u, c):
        return _full_change(problem, u, c), False


class NewtonLineSearch(AbstractNewton):
    """Newton with steps halved until the residual falls: slower, and converges from further.

    If a step halved `max_halvings` times is no better it gives up. Most likely the residual then
    has a minimum above zero; few such projections would converge with more iterations.
    """

    max_iterations: int = eqx.field(static=True, default=20)
    max_halvings: int = eqx.field(static=True, default=5)

    @override
    def change(self, problem, u, c):
        target = problem.target
        full = _full_change(problem, u, c)
        size = largest(c)
        # Near convergence rounding decides whether the residual falls: take the full step.
        is_far = size >= problem.tolerance.residual * target.scales.residual

        def unfinished(carry):
            _, is_worse, halvings = carry
            return is_worse & (halvings < self.max_halvings)

        def halve(carry):
            step, _, halvings = carry
            step = 0.5 * step
            is_worse = ~(largest(target.residual(u - step)) < size)
            return step, is_worse, halvings + 1

        begin = jnp.where(is_far, 2 * full, full), is_far, jnp.full((), -1)
        step, is_worse, _ = jax.lax.while_loop(unfinished, halve, begin)
        return step, is_worse


class Hybrid(AbstractNewton):
    """A trust-region method on λ (Powell's dog leg), then Newton steps: the most robust solver.

    It stands for MINPACK's hybrid solver in the paper.
    """

    max_iterations: int = eqx.field(static=True, default=100)
    max_newton_iterations: int = eqx.field(static=True, default=20)

    @override
    def init(self, problem, u):
        """The dog leg's result. Its iterations count."""
        target, previous, _, weights = problem

        def residual(lam, _):
            moved = weights * previous.apply_transpose(lam)
            return target.residual(u - moved) / target.scales.residual

        found = optx.root_find(
            residual,
            optx.Dogleg(rtol=1e-4, atol=1e-4),
            jnp.zeros(target.num_constraints, u.dtype),
            max_steps=self.max_iterations,
            throw=False,
        )
        near = u - weights * previous.apply_transpose(found.value)
        first = super().init(problem, near)
        return first._replace(iterations=first.iterations + found.stats["num_steps"])

    @override
    def terminate(self, iterate):
        most = self.max_iterations + self.max_newton_iterations
        return iterate.is_done | iterate.is_hopeless | (iterate.iterations >= most)

    @override
    def change(self, problem, u, c):
        return _full_change(problem, u, c), False


def _full_change(problem: Problem, u, c):
    previous = problem.previous
    lam = linearise(problem.target, u).solve_newton(previous, c)
    return problem.weights * previous.apply_transpose(lam)
