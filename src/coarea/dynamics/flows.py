"""Exact flows in the ambient space; the integrator projects their end points onto the manifold.

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
    """An exact flow for a time τ, and what the constrained step needs from it."""

    @property
    @abstractmethod
    def max_flow_time(self) -> float:
        """Just less than the time in which the flow turns a position into a momentum.

        `momentum` is well defined for shorter times. A trajectory of this length moves farthest.
        """

    @abstractmethod
    def bends(self, u: Float[Array, " M"]) -> Float[Array, " M"] | None:
        """u with zeros for the elements that move straight; None if all elements do."""

    @abstractmethod
    def position(
        self,
        u: Float[Array, " M"],
        tangential: Float[Array, " M"] | None,
        p: Float[Array, " M"],
        tau: Float[Array, ""],
    ) -> Float[Array, " M"]:
        """The end point of the flow from (u, p), up to a combination of the weighted rows of J.

        The projection moves along the weighted rows of J at u, so that adding them does not change
        the projected point. The best choice is the one nearest to the manifold. `tangential` is the
        part of `bends(u)` that is tangent to the manifold.
        """

    @abstractmethod
    def weights(self, tau: Float[Array, ""]) -> Float[Array, " M"] | float:
        """The displacement of each element per unit of momentum, up to a common factor.

        The constraint changes the momentum along the rows of J, and the flow carries this change to
        the position. If elements follow different flows, correcting the position along the
        unweighted rows would make the step irreversible.
        """

    @abstractmethod
    def momentum(
        self, u: Float[Array, " M"], end: Float[Array, " M"], tau: Float[Array, ""]
    ) -> Float[Array, " M"]:
        """The momentum with which the flow from u arrives at `end`."""

    @abstractmethod
    def force(self, u: Float[Array, " M"], gradient: Float[Array, " M"]) -> Float[Array, " M"]:
        """The force of the kicks: the log density's gradient, less the part in the flow."""


class Straight(AbstractFlow):
    """Uniform motion, the flow of ½|p|², which is valid for any density."""

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
    """Rotation, the flow of ½|u|² + ½|p|², for inputs that are standard normal.

    If `normals` marks the normal inputs, the others move straight.
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
        # cos τ u + sin τ p, but the component of u along the rows of J is not rotated. Rotating it
        # would move the point off the manifold by |u| τ²/2 before the projection begins.
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
