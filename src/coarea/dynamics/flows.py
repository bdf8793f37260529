"""Exact flows of the ambient space, which the projection then bends onto the manifold.

A flow solves part of the Hamiltonian exactly; the kicks of the integrator solve the rest.
"""

import math
from abc import abstractmethod

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float
from typing_extensions import override


class AbstractFlow(eqx.Module):
    """An exact flow for a time τ and its part in the constrained step."""

    @property
    @abstractmethod
    def max_flow_time(self) -> float:
        """The time (just less than) in which the flow alone turns a position into a momentum.

        `momentum` is well defined below it, and a trajectory of this length has moved furthest.
        """

    @abstractmethod
    def bends(self, u: Float[Array, " M"]) -> Float[Array, " M"] | None:
        """The elements that do not move straight on, the others zero. None if all do."""

    @abstractmethod
    def position(
        self,
        u: Float[Array, " M"],
        tangential: Float[Array, " M"] | None,
        p: Float[Array, " M"],
        tau: Float[Array, ""],
    ) -> Float[Array, " M"]:
        """Where the flow leads from (u, p), up to a multiple of the weighted rows of J at u.

        The projection moves along those, so any multiple has the same projection: the best is the
        one that lies nearest to the manifold. `tangential` is what of `bends(u)` is tangent to it.
        """

    @abstractmethod
    def weights(self, tau: Float[Array, ""]) -> Float[Array, " M"] | float:
        """How far a unit of momentum carries each element, relative to one another.

        The constraint acts on the momentum, along the rows of J, and the flow carries that on to
        the position. Were the position corrected along the rows themselves where elements follow
        different flows, the way back would be another one.
        """

    @abstractmethod
    def momentum(
        self, u: Float[Array, " M"], end: Float[Array, " M"], tau: Float[Array, ""]
    ) -> Float[Array, " M"]:
        """The momentum with which the flow from u arrives at `end`."""

    @abstractmethod
    def force(self, u: Float[Array, " M"], gradient: Float[Array, " M"]) -> Float[Array, " M"]:
        """What the kicks must add: the log density's gradient, less what the flow accounts for."""


class Straight(AbstractFlow):
    """Uniform motion, the flow of ½|p|²: right for any density."""

    @property
    @override
    def max_flow_time(self):
        return math.inf

    @override
    def bends(self, u):
        return None

    @override
    def position(self, u, tangential, p, tau):
        return u + tau * p

    @override
    def weights(self, tau):
        return 1.0

    @override
    def momentum(self, u, end, tau):
        return (end - u) / tau

    @override
    def force(self, u, gradient):
        return gradient


class Rotation(AbstractFlow):
    """Rotation, the flow of ½|u|² + ½|p|²: for inputs that are standard normal.

    Those that `normals` leaves out move straight on.
    """

    normals: Bool[np.ndarray, " M"] | None = None

    @property
    @override
    def max_flow_time(self):
        return 0.499 * math.pi

    @override
    def bends(self, u):
        return u if self.normals is None else jnp.where(self.normals, u, 0.0)

    @override
    def position(self, u, tangential, p, tau):
        # cos τ u + sin τ p, with the component of u along the rows of J left alone: rotating it
        # too would leave the manifold by |u| τ²/2 before the projection begins.
        assert tangential is not None
        if self.normals is not None:
            turned = self.bends(u)
            tangential = turned - self.weights(tau) * (turned - tangential)
        return u - (1 - jnp.cos(tau)) * tangential + self._or_straight(jnp.sin(tau), tau) * p

    @override
    def weights(self, tau):
        return self._or_straight(1.0, tau / jnp.sin(tau))

    @override
    def momentum(self, u, end, tau):
        cos, sin = self._or_straight(jnp.cos(tau), 1.0), self._or_straight(jnp.sin(tau), tau)
        return (cos * end - u) / sin

    @override
    def force(self, u, gradient):
        return gradient + self.bends(u)

    def _or_straight(self, turning, straight):
        return turning if self.normals is None else jnp.where(self.normals, turning, straight)
