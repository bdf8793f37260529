"""Move a point onto the manifold by Gauss–Newton, adding constraints progressively.

A simulator that steps through time may overflow for most prior draws. All outputs together then
give no information about where to move, but the first outputs alone do. Constraints are therefore
sorted by the number of inputs that they depend on, which is the order of time for such a simulator.
All of them are tried first. After a failure half as many are tried; after a success more are added.

Each step is the smallest change of the inputs that meets the linearised constraints. The point
found is therefore near the prior draw that the search started from.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.linalg import cho_solve
from jaxtyping import Array, Bool, Float, Int

from coarea.dynamics.projection import Tolerance
from coarea.jacobians.dense import Dense
from coarea.jacobians.linalg.gauss_newton import gauss_newton
from coarea.manifolds.target import (
    AbstractConstrainedTarget,
    AbstractTarget,
    AbstractUnconstrainedTarget,
    evaluate,
    linearise,
    residual,
)
from coarea.xla import calls_lapack, jit_fast_compile, sequential_vmap_on_cpu

_MAX_LINEARISATIONS = 500
# Most Gauss–Newton iterations before fewer constraints are tried. A single constraint gets more
# iterations, because there are no fewer to try.
_MAX_ITERATIONS = 10
_MAX_ITERATIONS_FOR_ONE = 50


class Start(NamedTuple):
    """A point, its distance from the manifold, and the log density there.

    The error is max|c| relative to the size of the data. It is infinite if the next Gauss–Newton
    step would still be long, because a small residual alone does not mean that the manifold is
    near.
    """

    u: Float[Array, " M"]
    error: Float[Array, ""]
    log_density: Float[Array, ""]


def improve(target: AbstractTarget, u: Float[Array, "chains M"], tolerance: Tolerance) -> Start:
    """Move each given point onto the manifold, if there is one."""
    if isinstance(target, AbstractUnconstrainedTarget):
        return _evaluated(target, u)
    assert isinstance(target, AbstractConstrainedTarget)
    compiled = _approach_compiled_fast if _solves_all_at_once(target) else _approach_optimised
    return compiled(target, u, tolerance)


@jit_fast_compile
def _evaluated(target: AbstractUnconstrainedTarget, u: Float[Array, "chains M"]) -> Start:
    """Points as they are. Where the density or its gradient is not finite no chain can start."""

    def one(u):
        log_density, gradient = jax.value_and_grad(lambda u: target.log_density(u))(u)
        is_fine = jnp.isfinite(log_density) & jnp.all(jnp.isfinite(gradient))
        return Start(u, jnp.where(is_fine, 0.0, jnp.inf), log_density)

    needs_lapack = calls_lapack(lambda u: target.log_density(u), u[0])
    return (sequential_vmap_on_cpu if needs_lapack else jax.vmap)(one)(u)


class _Progress(NamedTuple):
    """A point u that meets the first `met` constraints; `more` constraints are added next."""

    u: Float[Array, " M"]
    met: Int[Array, ""]
    more: Int[Array, ""]
    linearisations: Int[Array, ""]
    stuck: Bool[Array, ""]


def _solves_all_at_once(target: AbstractConstrainedTarget) -> bool:
    """Whether linearising costs so little that all constraints are solved for together.

    It then costs no more evaluations than there are constraints.
    """
    return target.hints.linearisation_cost <= target.num_constraints


def _approach(
    target: AbstractConstrainedTarget, u: Float[Array, "chains M"], tolerance: Tolerance
) -> Start:
    """Move each point onto the manifold."""
    approach = _approach_at_once if _solves_all_at_once(target) else _approach_progressively

    def one(u):
        return approach(target, u, tolerance)

    needs_lapack = not target.hints.can_repeat or calls_lapack(lambda u: evaluate(target, u), u[0])
    return (sequential_vmap_on_cpu if needs_lapack else jax.vmap)(one)(u)


# If linearising is expensive, the better code is worth a slower compilation.
_approach_compiled_fast = jit_fast_compile(_approach)
_approach_optimised = jit_fast_compile(_approach, level=1)


def _approach_at_once(target, u, tolerance) -> Start:
    """Gauss–Newton on all constraints together; each step costs one linearisation."""

    def full_step(u):
        return linearise(target, u).pseudo_inverse(residual(target, u))

    is_met = partial(tolerance.is_met, target)
    end = gauss_newton(u, partial(residual, target), full_step, is_met, _MAX_LINEARISATIONS)
    met = is_met(end.u, end.error, end.step)
    return _judged(target, end.u, end.error / target.scales.residual, met, tolerance)


def _judged(target, u, error, met, tolerance) -> Start:
    """The result; its error is infinite if the residual is small but a constraint is not met."""
    small = (error <= tolerance.residual) & ~met
    return Start(u, jnp.where(small, jnp.inf, error), evaluate(target, u).log_density)


def _approach_progressively(target, u, tolerance) -> Start:
    """Gauss–Newton that adds constraints once earlier ones are met."""
    N = target.num_constraints
    jacobian = Dense(N, target.num_inputs).jacobian(target.residual)
    # Sort constraints by the number of inputs they depend on. An overflow counts as dependence.
    responses = jnp.sum(jacobian(u) != 0, axis=1)
    rank = jnp.argsort(jnp.argsort(responses))
    is_met = partial(tolerance.is_met, target)

    def missed(u, wanted):
        return jnp.where(wanted, residual(target, u), 0.0)

    def full_step(u, wanted):
        J = jnp.where(wanted[:, None], jacobian(u), 0.0)
        gram = J @ J.T + jnp.diag(jnp.where(wanted, 0.0, 1.0))
        return J.T @ cho_solve((jnp.linalg.cholesky(gram), True), missed(u, wanted))

    def unfinished(at: _Progress):
        return (at.met < N) & ~at.stuck & (at.linearisations < _MAX_LINEARISATIONS)

    def extend(at: _Progress):
        aim = jnp.minimum(at.met + at.more, N)
        most = jnp.where(at.more == 1, _MAX_ITERATIONS_FOR_ONE, _MAX_ITERATIONS)
        wanted = rank < aim
        tried = gauss_newton(
            at.u,
            lambda u: missed(u, wanted),
            lambda u: full_step(u, wanted),
            is_met,
            most,
        )
        success = is_met(tried.u, tried.error, tried.step)
        return _Progress(
            jnp.where(success, tried.u, at.u),
            jnp.where(success, aim, at.met),
            jnp.where(success, 2 * at.more, jnp.maximum(at.more // 2, 1)),
            at.linearisations + tried.iterations,
            ~success & (at.more == 1),
        )

    zero = jnp.asarray(0)
    end = jax.lax.while_loop(
        unfinished, extend, _Progress(u, zero, jnp.asarray(N), zero, jnp.asarray(False))
    )
    left = jnp.max(jnp.abs(residual(target, end.u))) / target.scales.residual
    left = jnp.where(jnp.isnan(left), jnp.inf, left)
    return _judged(target, end.u, left, end.met == N, tolerance)
