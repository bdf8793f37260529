"""The geodesic RATTLE step: constrained Hamiltonian dynamics for one time step (Algorithm 1)."""

from dataclasses import replace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from typing_extensions import override

from coarea.arguments import checked_number
from coarea.dynamics.flows import AbstractFlow, Rotation, Straight
from coarea.dynamics.integrator import (
    AbstractIntegrator,
    PhaseState,
    StepOperations,
    at_rest,
    flat,
    half_kick,
)
from coarea.dynamics.projection import (
    AbstractSolver,
    Broyden,
    NewtonLineSearch,
    Secant,
    Tolerance,
    position_size,
    project_onto,
)
from coarea.errors import SettingError
from coarea.jacobians.structure import AbstractLinearisation
from coarea.manifolds.target import (
    AbstractConstrainedTarget,
    AbstractTarget,
    evaluate,
    linearise,
    residual,
)
from coarea.tracing import operations
from coarea.xla import jit_bounded


class Cache(NamedTuple):
    """The constraint linearised at a position, and the tangential part of what the flow bends."""

    linearisation: AbstractLinearisation
    bend: Float[Array, " M"] | None


class Rattle(AbstractIntegrator):
    """Half a kick, projected sub-steps of a flow, half a kick.

    `tolerance` bounds the residual relative to the size of the data, and ten times it the last
    change of position relative to the position. It defaults to 1e-9 (float64) or 1e-4 (float32).
    The reverse check passes if the reversed step returns to within 1e-5 of its start (2e-3 in
    float32), relative to the size of positions. `solvers` is a cascade: each is tried only if the
    one before it failed. Default: secant, which gives up early; Broyden, if linearising needs
    LAPACK or a long loop; Newton with a line search.
    `flow` defaults to a rotation of the inputs that are standard normal; others move straight.
    Without `reverse_check` the stationary distribution is not the target: for experiments only.
    """

    solvers: tuple[AbstractSolver, ...] | None = None
    flow: AbstractFlow | None = None
    tolerance: float | None = None
    reverse_check: bool = eqx.field(static=True, default=True)

    def __check_init__(self):
        if self.tolerance is not None:
            checked_number("tolerance", self.tolerance, example=1e-9)
        if self.flow is not None and not isinstance(self.flow, AbstractFlow):
            raise SettingError(
                f"flow={self.flow!r}: leave it out, or give coarea.dynamics.Straight() or "
                "Rotation()."
            )
        if not isinstance(self.reverse_check, bool):
            raise SettingError(f"reverse_check={self.reverse_check!r}: choose True or False.")
        solvers = self.solvers
        if solvers is not None and not (
            isinstance(solvers, tuple)
            and solvers
            and all(isinstance(solver, AbstractSolver) for solver in solvers)
        ):
            raise SettingError(
                f"solvers={solvers!r}: leave it out, or give a tuple of solvers of coarea.dynamics."
            )

    @property
    @override
    def is_iterative(self):
        return True

    @override
    def check(self, target):
        if not isinstance(target, AbstractConstrainedTarget):
            raise SettingError(
                "integrator=Rattle(…) projects onto a manifold, but a chart has no constraints: "
                "leave integrator out."
            )

    @override
    def max_flow_time(self, target):
        return self.flow_for(target).max_flow_time

    def flow_for(self, target: AbstractTarget) -> AbstractFlow:
        """The flow given, or the one that suits the target."""
        assert isinstance(target, AbstractConstrainedTarget)
        gaussian, flow = target.gaussian, self.flow
        if flow is not None and not (isinstance(flow, Rotation) and flow.normals is None):
            return flow
        if flow is None and not np.any(gaussian):
            return Straight()
        if not np.any(gaussian):
            raise SettingError(
                "flow=Rotation() suits inputs that are standard normal, of which there are none "
                "here. Leave flow out, or give Straight()."
            )
        return Rotation(None if np.all(gaussian) else gaussian)

    def solvers_for(self, target: AbstractTarget) -> tuple[AbstractSolver, ...]:
        """The solvers given, or those that suit the target."""
        if self.solvers is not None:
            return self.solvers
        between = () if target.hints.can_repeat else (Broyden(),)
        return Secant(8), *between, NewtonLineSearch()

    @override
    def tolerance_for(self, dtype):
        """The tolerance given, or what the precision allows."""
        given = self.tolerance
        return super().tolerance_for(dtype) if given is None else Tolerance.following(given)

    @override
    def operations(self, target, geodesic_steps=1):
        assert isinstance(target, AbstractConstrainedTarget)
        u = flat(target.num_inputs)
        step = operations(lambda u: evaluate(target, u), u)
        if geodesic_steps > 1:
            step += (geodesic_steps - 1) * operations(lambda u: linearise(target, u), u)
        return StepOperations(step, operations(lambda u: residual(target, u), u))

    @override
    def init(self, target, u):
        assert isinstance(target, AbstractConstrainedTarget)
        flow = self.flow_for(target)
        linearisation, log_density, gradient = evaluate(target, u)
        force, bend = _tangential(linearisation, flow.force(u, gradient), flow.bends(u))
        return at_rest(u, log_density, force, Cache(linearisation, bend))

    @override
    def draw_momentum(self, key, state):
        return state.cache.linearisation.draw(key, state.position)

    @jit_bounded
    def step(self, target, state, h, geodesic_steps=1):
        """One step of size h. The position is projected after each of the geodesic steps.

        Several of them allow a larger h where the manifold's curvature, not the density's, is the
        limit.
        """
        assert isinstance(target, AbstractConstrainedTarget)
        flow = self.flow_for(target)
        tau = h / geodesic_steps
        at = half_kick(state, h)

        def unfinished(carry):
            count, at = carry
            return (count < geodesic_steps - 1) & ~at.failed

        def sub_step(carry):
            count, at = carry
            moved = self._move(target, flow, at, tau)
            linearisation = linearise(target, moved.position)
            return count + 1, self._arrive(target, flow, at, moved, linearisation, None, tau)

        if geodesic_steps > 1:
            _, at = jax.lax.while_loop(unfinished, sub_step, (0, at))
        moved = self._move(target, flow, at, tau)
        linearisation, log_density, gradient = evaluate(target, moved.position)
        moved = moved._replace(logdensity=log_density)
        end = self._arrive(target, flow, at, moved, linearisation, gradient, tau)
        return half_kick(end, h)

    def _move(self, target, flow, state: PhaseState, tau, known_root=None):
        """Follow the flow and project. The momentum is still that of the start.

        Changes are judged relative to the size of the state's position.
        """
        linearisation, bend = state.cache
        ahead = flow.position(state.position, bend, state.momentum, tau)
        projection = project_onto(
            self.solvers_for(target),
            target,
            linearisation,
            ahead,
            replace(self.tolerance_for(ahead.dtype), size=position_size(target, state.position)),
            flow.weights(tau),
            inactive=state.failed,
            known_root=known_root,
        )
        return state._replace(
            position=jnp.where(projection.converged, projection.u, state.position),
            convergence_error=state.convergence_error | ~projection.converged,
            work=state.work + projection.work,
        )

    def _arrive(
        self, target, flow, left: PhaseState, moved: PhaseState, linearisation, gradient, tau
    ):
        """The momentum at the new position, and the reverse check.

        Without a `gradient` the force stays that of the start.
        """
        u = moved.position
        p, bend, force = _tangential(
            linearisation,
            flow.momentum(left.position, u, tau),
            flow.bends(u),
            None if gradient is None else flow.force(u, gradient),
        )
        force = moved.force if force is None else force
        moved = moved._replace(momentum=p, force=force, cache=Cache(linearisation, bend))
        # A singular Gram matrix leaves no momentum to go on with.
        is_lost = ~jnp.all(jnp.isfinite(p))
        moved = moved._replace(convergence_error=moved.convergence_error | is_lost)
        return self._reverse_check(target, flow, left, moved, tau) if self.reverse_check else moved

    def _reverse_check(self, target, flow, left: PhaseState, moved: PhaseState, tau):
        """Flag a sub-step that does not return: without this the sampler is biased.

        (Zappa, Holmes-Cerfon & Goodman 2018; Lelièvre, Rousset & Stoltz 2019.)
        """
        back = self._move(target, flow, moved, -tau, known_root=left.position)
        distance = jnp.max(jnp.abs(back.position - left.position))
        allowed = self.tolerance_for(moved.position.dtype).root_tolerance
        allowed = allowed * position_size(target, moved.position)
        returned = ~back.convergence_error & (distance <= allowed)
        return moved._replace(
            non_reversible_step=~moved.convergence_error & ~returned | moved.non_reversible_step,
            work=back.work,
        )


def _tangential(linearisation: AbstractLinearisation, *vectors) -> list[Any]:
    """The tangential part of each vector that is not None."""
    return [None if x is None else linearisation.project(x) for x in vectors]
