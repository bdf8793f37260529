"""The leapfrog step: Hamiltonian dynamics without constraints."""

import math

import jax
import jax.numpy as jnp
from typing_extensions import override

from coarea.dynamics.integrator import (
    AbstractIntegrator,
    StepOperations,
    at_rest,
    flat,
    half_kick,
)
from coarea.errors import SettingError
from coarea.manifolds.target import AbstractUnconstrainedTarget
from coarea.tracing import operations
from coarea.xla import jit_bounded


class Leapfrog(AbstractIntegrator):
    """Straight motion between the kicks."""

    @property
    @override
    def is_iterative(self):
        return False

    @override
    def check(self, target):
        if not isinstance(target, AbstractUnconstrainedTarget):
            raise SettingError(
                "integrator=Leapfrog() moves without constraints, but this target is a manifold: "
                "leave integrator out."
            )

    @override
    def max_flow_time(self, target):
        return math.inf

    @override
    def operations(self, target, geodesic_steps=1):
        assert isinstance(target, AbstractUnconstrainedTarget)
        gradient = jax.value_and_grad(lambda u: target.log_density(u))
        return StepOperations(operations(gradient, flat(target.num_inputs)), 0.0)

    @override
    def init(self, target, u):
        assert isinstance(target, AbstractUnconstrainedTarget)
        return at_rest(u, *jax.value_and_grad(target.log_density)(u))

    @override
    def draw_momentum(self, key, state):
        u = state.position
        return jax.random.normal(key, u.shape, u.dtype)

    @override
    @jit_bounded
    def step(self, target, state, h, geodesic_steps=1):
        assert isinstance(target, AbstractUnconstrainedTarget)
        left = half_kick(state, h)
        u = left.position + h * left.momentum
        log_density, gradient = jax.value_and_grad(target.log_density)(u)
        # An overflow is a divergence like any other.
        is_lost = ~jnp.all(jnp.isfinite(u))
        log_density = jnp.where(is_lost, -jnp.inf, log_density)
        return half_kick(left._replace(position=u, logdensity=log_density, force=gradient), h)
