"""The geodesic RATTLE step: constrained Hamiltonian dynamics for one time step (Algorithm 1)."""

from dataclasses import replace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key
from typing_extensions import override

from coarea.arguments import checked_number
from coarea.dynamics.flows import AbstractFlow, Rotation, Straight
from coarea.dynamics.projection import project_onto
from coarea.dynamics.solvers import (
    AbstractSolver,
    Broyden,
    NewtonLineSearch,
    Secant,
    linearise,
)
from coarea.dynamics.tolerance import Tolerance, position_size
from coarea.errors import SettingError
from coarea.jacobians.structure import AbstractLinearisation, AbstractTangentSpace
from coarea.manifolds import AbstractTarget
from coarea.manifolds.target import AbstractGeodesic
from coarea.xla import jit_bounded


class Tangent(AbstractTangentSpace):
    """The tangent space at a point of a manifold with geodesics in closed form."""

    geodesic: AbstractGeodesic
    u: Float[Array, " M"]

    @override
    def project(self, p):
        return self.geodesic.project(self.u, p)


class PhaseState(NamedTuple):
    """A point of phase space with all that the next step needs of it, and how it was reached."""

    position: Float[Array, " M"]
    momentum: Float[Array, " M"]
    logdensity: Float[Array, ""]
    force: Float[Array, " M"]  # what the kicks follow, and
    bend: Float[Array, " M"] | None  # what the flow bends, as far as tangent to the manifold
    linearisation: AbstractTangentSpace
    convergence_error: Bool[Array, ""]
    non_reversible_step: Bool[Array, ""]
    iterations: Int[Array, ""]

    @property
    def failed(self) -> Bool[Array, ""]:
        """Whether the last step ended in a failure, so that its trajectory must be rejected."""
        return self.convergence_error | self.non_reversible_step

    @property
    def energy(self) -> Float[Array, ""]:
        """The Hamiltonian H = ½|p|² − log π(u)."""
        return 0.5 * self.momentum @ self.momentum - self.logdensity


class Rattle(eqx.Module):
    """The integrator: half a kick, projected sub-steps of a flow, half a kick.

    `tolerance` bounds the residual relative to the size of the data, and ten times it the last
    change of position relative to the position. It defaults to 1e-9 (float64) or 1e-4 (float32).
    The reverse check is over when the way back leads to within 1e-5 of where it must. `solvers` are
    tried in turn; by default the cheapest, which gives up as soon as it will not arrive in a few
    iterations, then Broyden's unless linearising is as light as that, then Newton's.
    `flow` defaults to the rotation of the inputs that are standard normal; others move straight on.
    On a manifold with geodesics in closed form it defaults to them, and nothing is solved (Geodesic
    Monte Carlo, Byrne & Girolami 2013); `flow=Straight()` projects there too.
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

    def flow_for(self, target: AbstractTarget) -> AbstractFlow | AbstractGeodesic:
        """The flow given, or the one that suits the target."""
        if target.closed_form is not None and (self.flow is None or not target.num_constraints):
            return target.closed_form
        normals = target.normals
        if self.flow is None and not np.any(normals):
            return Straight()
        if isinstance(self.flow, Straight):
            return self.flow
        if not np.any(normals):
            raise SettingError(
                "flow=Rotation() suits inputs that are standard normal, of which there are none "
                "here. Leave flow out, or give Straight()."
            )
        return Rotation(None if np.all(normals) else normals)

    def solvers_for(self, target: AbstractTarget) -> tuple[AbstractSolver, ...]:
        """The solvers given, or those that suit the target."""
        if self.solvers is not None:
            return self.solvers
        between = () if target.is_light else (Broyden(),)
        return Secant(8), *between, NewtonLineSearch()

    def tolerance_for(self, dtype) -> Tolerance:
        """The tolerance given, or what the precision allows."""
        default = 1e-9 if dtype == jnp.float64 else 1e-4
        return Tolerance.following(default if self.tolerance is None else self.tolerance)

    def init(self, target: AbstractTarget, u: Float[Array, " M"]) -> PhaseState:
        """The state at u, at rest."""
        flow = self.flow_for(target)
        linearisation, log_density, gradient = target.evaluate(u)
        no, none, rest = jnp.asarray(False), jnp.zeros((), int), jnp.zeros_like(u)
        if isinstance(flow, AbstractGeodesic):
            at = Tangent(flow, u)
            force = at.project(gradient)
            return PhaseState(u, rest, log_density, force, None, at, no, no, none)
        force, bend = _project(linearisation, flow.force(u, gradient), flow.bends(u))
        return PhaseState(u, rest, log_density, force, bend, linearisation, no, no, none)

    def refresh(self, key: Key[Array, ""], state: PhaseState) -> PhaseState:
        """A new momentum: a normal draw from the tangent space."""
        no = jnp.asarray(False)
        return state._replace(
            momentum=state.linearisation.draw(key, state.position),
            convergence_error=no,
            non_reversible_step=no,
            iterations=jnp.zeros((), int),
        )

    @jit_bounded
    def step(
        self,
        target: AbstractTarget,
        state: PhaseState,
        h: Float[Array, ""],
        geodesic_steps: int = 1,
    ) -> PhaseState:
        """One step of size h, negative to go back. A failed one keeps its flags.

        With several geodesic steps the position is projected after each, which allows a larger h
        where the manifold's curvature, not the density's, is the limit.
        """
        flow = self.flow_for(target)
        if isinstance(flow, AbstractGeodesic):
            return _step_exactly(target, flow, state, h)
        tau = h / geodesic_steps
        at = _kick(state, h)

        def go_on(carry):
            count, at = carry
            return (count < geodesic_steps - 1) & ~at.failed

        def sub_step(carry):
            count, at = carry
            moved = self._move(target, flow, at, tau)
            linearisation = linearise(target, moved.position)
            return count + 1, self._arrive(target, flow, at, moved, linearisation, None, tau)

        if geodesic_steps > 1:
            _, at = jax.lax.while_loop(go_on, sub_step, (0, at))
        moved = self._move(target, flow, at, tau)
        linearisation, log_density, gradient = target.evaluate(moved.position)
        moved = moved._replace(logdensity=log_density)
        end = self._arrive(target, flow, at, moved, linearisation, gradient, tau)
        return _kick(end, h)

    def _move(self, target, flow, state: PhaseState, tau, known_root=None):
        """Flow from the state's position, by whose size changes are judged, and project.

        The momentum is still that of the start.
        """
        assert isinstance(state.linearisation, AbstractLinearisation)
        ahead = flow.position(state.position, state.bend, state.momentum, tau)
        projection = project_onto(
            self.solvers_for(target),
            target,
            state.linearisation,
            ahead,
            replace(self.tolerance_for(ahead.dtype), size=position_size(target, state.position)),
            flow.weights(tau),
            inactive=state.failed,
            known_root=known_root,
        )
        return state._replace(
            position=jnp.where(projection.converged, projection.u, state.position),
            convergence_error=state.convergence_error | ~projection.converged,
            iterations=state.iterations + projection.iterations,
        )

    def _arrive(
        self, target, flow, left: PhaseState, moved: PhaseState, linearisation, gradient, tau
    ):
        """The momentum on arrival, and whether the way back leads to where it came from.

        Without a `gradient` the force stays that of the start.
        """
        u = moved.position
        p, bend, force = _project(
            linearisation,
            flow.momentum(left.position, u, tau),
            flow.bends(u),
            None if gradient is None else flow.force(u, gradient),
        )
        force = moved.force if force is None else force
        moved = moved._replace(momentum=p, force=force, bend=bend, linearisation=linearisation)
        # A Gram matrix that is singular here leaves nothing to go on with.
        broken = ~jnp.all(jnp.isfinite(p))
        moved = moved._replace(convergence_error=moved.convergence_error | broken)
        if not self.reverse_check:
            return moved
        back = self._move(target, flow, moved, -tau, known_root=left.position)
        distance = jnp.max(jnp.abs(back.position - left.position))
        allowed = self.tolerance_for(p.dtype).root_tolerance * position_size(target, u)
        returned = ~back.convergence_error & (distance <= allowed)
        return moved._replace(
            non_reversible_step=~moved.convergence_error & ~returned | moved.non_reversible_step,
            iterations=back.iterations,
        )


def _step_exactly(target, flow: AbstractGeodesic, state: PhaseState, h) -> PhaseState:
    """A step whose free motion has a closed form: there is nothing to project, nothing to check."""
    left = _kick(state, h)
    u, p = flow.move(left.position, left.momentum, h)
    _, log_density, gradient = target.evaluate(u)
    at = Tangent(flow, u)
    lost = ~jnp.all(jnp.isfinite(u))
    # Where there is no manifold to lose, this is a divergence like others.
    failed = lost if target.num_constraints else jnp.asarray(False)
    moved = left._replace(
        position=u,
        momentum=p,
        logdensity=jnp.where(lost, -jnp.inf, log_density),
        force=at.project(gradient),
        linearisation=at,
        convergence_error=left.convergence_error | failed,
    )
    return _kick(moved, h)


def _kick(state: PhaseState, h):
    """Half a kick: of tangential parts the sum is tangential."""
    return state._replace(momentum=state.momentum + 0.5 * h * state.force)


def _project(linearisation: AbstractLinearisation, *vectors) -> list[Any]:
    """The tangential part of each vector that there is."""
    return [None if x is None else linearisation.project(x) for x in vectors]
