"""Broyden's method: quasi-Newton with a Jacobian updated after each step."""

from dataclasses import replace
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from typing_extensions import override

from coarea.dynamics.projection.solver import AbstractSolver

# The iterations that nearly all of many chains need.
_MOST_IN_LOCKSTEP = 12


class Broyden(AbstractSolver):
    """Update J_previous so that it agrees with the steps made so far (Broyden 1965).

    Each iteration costs one residual, no derivative, and an inner product with each earlier step:
    the inverse is represented by those steps alone (Kelley 1995, section 7.3). It converges faster
    than linearly, and for longer integration steps than quasi-Newton.
    """

    uses_history: ClassVar[bool] = True
    max_iterations: int = eqx.field(static=True, default=25)

    @override
    def for_lockstep(self):
        return replace(self, max_iterations=min(self.max_iterations, _MOST_IN_LOCKSTEP))

    @override
    def init(self, problem, u):
        c, step = _plain_step(problem, u)
        return problem.judge(u, c, step, jnp.zeros((), int))

    @override
    def step(self, problem, last, history):
        assert history is not None
        steps, squares, n = history
        u = last.u - last.step
        c, z = _plain_step(problem, u)

        def learnt(j, z):
            return z + steps[j + 1] * ((steps[j] @ z) / squares[j])

        z = jax.lax.fori_loop(0, n, learnt, z)
        step = z / (1 - (last.step @ z) / squares[n])
        return problem.judge(u, c, step, last.iterations + 1)


def _plain_step(problem, u):
    c = problem.target.residual(u)
    return c, problem.weights * problem.previous.pseudo_inverse(c)
