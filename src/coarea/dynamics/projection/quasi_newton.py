"""Solvers that reuse the previous point's factor: one residual and no derivative an iteration."""

from dataclasses import replace

import equinox as eqx
import jax.numpy as jnp
from typing_extensions import override

from coarea.dynamics.projection.solver import AbstractSolver

# The rate of convergence is judged from this iteration on: before, the residual may well grow.
_FIRST_JUDGED = 2
# The iterations that most of many chains need.
_MOST_IN_LOCKSTEP = 4


class QuasiNewton(AbstractSolver):
    """The paper's symmetric quasi-Newton: λ ← λ + (J_previous J_previousᵀ)⁻¹ c.

    It is cheap and converges linearly. It gives up as soon as its rate of convergence says that it
    will not converge within `max_iterations`.
    """

    max_iterations: int = eqx.field(static=True, default=50)

    @override
    def init(self, problem, u):
        return self._at(problem, u, None, jnp.zeros((), int))

    @override
    def step(self, problem, last, history):
        now = self._at(problem, last.u - last.step, last.step, last.iterations + 1)
        rate = jnp.log(last.error / now.error)
        is_slow = jnp.log(now.error) > (self.max_iterations - last.iterations) * rate
        gives_up = (last.iterations >= _FIRST_JUDGED) & is_slow
        return now._replace(is_hopeless=now.is_hopeless | gives_up)

    @override
    def for_lockstep(self):
        return replace(self, max_iterations=min(self.max_iterations, _MOST_IN_LOCKSTEP))

    def _at(self, problem, u, last_change, iterations):
        c = problem.target.residual(u)
        change = problem.weights * problem.previous.pseudo_inverse(c)
        return problem.judge(u, c, self._corrected(change, last_change), iterations)

    def _corrected(self, change, last):
        """The change to make after the last one (None: there was none)."""
        del last
        return change


class Secant(QuasiNewton):
    """Quasi-Newton with each change corrected by the effect of the one before.

    This is Broyden's method with a memory of one step. It costs two more inner products an
    iteration than `QuasiNewton`, and needs fewer iterations.
    """

    @override
    def _corrected(self, change, last):
        return change if last is None else change / (1 - (last @ change) / (last @ last))
