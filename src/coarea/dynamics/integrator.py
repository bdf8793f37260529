"""What an integrator is: a point of phase space, and a step of the dynamics from it."""

from abc import abstractmethod
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from coarea.dynamics.projection.tolerance import Tolerance
from coarea.manifolds.target import AbstractTarget


class PhaseState(NamedTuple):
    """A point of phase space with all that the next step needs, and how it was reached."""

    position: Float[Array, " M"]
    momentum: Float[Array, " M"]
    logdensity: Float[Array, ""]
    force: Float[Array, " M"]
    """What the kicks add to the momentum, tangent to the manifold."""
    cache: Any
    """What the integrator needs beside."""
    convergence_error: Bool[Array, ""]
    non_reversible_step: Bool[Array, ""]
    work: Int[Array, ""]
    """What projections cost since the momentum was drawn, in evaluations of the residual."""

    @property
    def failed(self) -> Bool[Array, ""]:
        """Whether a step failed, so that its trajectory must be rejected."""
        return self.convergence_error | self.non_reversible_step

    @property
    def energy(self) -> Float[Array, ""]:
        """The Hamiltonian H = ½|p|² − log π(u)."""
        return 0.5 * self.momentum @ self.momentum - self.logdensity


class StepOperations(NamedTuple):
    """What a step costs, in arithmetic operations."""

    step: float
    """Of a step beside its projections."""
    projection: float
    """Of each evaluation of the residual that a projection makes."""


class AbstractIntegrator(eqx.Module):
    """Splits the Hamiltonian: half a kick by the force, free motion, half a kick."""

    @property
    @abstractmethod
    def is_iterative(self) -> bool:
        """Whether free motion solves equations, in a number of iterations that varies."""

    @abstractmethod
    def check(self, target: AbstractTarget) -> None:
        """Refuse a target that this integrator cannot move on."""

    @abstractmethod
    def max_flow_time(self, target: AbstractTarget) -> float:
        """The time after which free motion has moved furthest. No step should be longer."""

    @abstractmethod
    def init(self, target: AbstractTarget, u: Float[Array, " M"]) -> PhaseState:
        """The state at u, at rest."""

    @abstractmethod
    def draw_momentum(self, key: Key[Array, ""], state: PhaseState) -> Float[Array, " M"]:
        """A normal draw from the tangent space."""

    @abstractmethod
    def step(
        self,
        target: AbstractTarget,
        state: PhaseState,
        h: Float[Array, ""],
        geodesic_steps: int = 1,
    ) -> PhaseState:
        """One step of size h, negative to go back. A failed state keeps its flags."""

    @abstractmethod
    def operations(self, target: AbstractTarget, geodesic_steps: int = 1) -> "StepOperations":
        """About how many arithmetic operations a step takes."""

    def tolerance_for(self, dtype) -> Tolerance:
        """The tolerance with which points count as on the manifold."""
        return Tolerance.default(dtype)

    def refresh(self, key: Key[Array, ""], state: PhaseState) -> PhaseState:
        """The state with a new momentum."""
        no = jnp.asarray(False)
        return state._replace(
            momentum=self.draw_momentum(key, state),
            convergence_error=no,
            non_reversible_step=no,
            work=jnp.zeros((), int),
        )


def at_rest(u: Float[Array, " M"], logdensity, force, cache: Any = None) -> PhaseState:
    """A state without momentum."""
    no = jnp.asarray(False)
    return PhaseState(u, jnp.zeros_like(u), logdensity, force, cache, no, no, jnp.zeros((), int))


def flat(size: int) -> jax.ShapeDtypeStruct:
    """The shape of a position, for tracing."""
    return jax.ShapeDtypeStruct((size,), jnp.zeros(()).dtype)


def half_kick(state: PhaseState, h: Float[Array, ""]) -> PhaseState:
    """Half a kick. The sum of tangential vectors is tangential."""
    return state._replace(momentum=state.momentum + 0.5 * h * state.force)
