"""The geodesic step: free motion on the manifold in closed form, so that nothing is solved."""

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
from coarea.manifolds.target import AbstractConstrainedTarget, AbstractGeodesicFlow
from coarea.tracing import operations
from coarea.xla import jit_bounded


class Geodesic(AbstractIntegrator):
    """Geodesic Monte Carlo (Byrne & Girolami 2013), for manifolds that have a `geodesic`."""

    @property
    @override
    def is_iterative(self):
        return False

    @override
    def check(self, target):
        _geodesic_of(target)

    @override
    def max_flow_time(self, target):
        return _geodesic_of(target).max_flow_time

    @override
    def operations(self, target, geodesic_steps=1):
        assert isinstance(target, AbstractConstrainedTarget)
        evaluating = operations(lambda u: target.evaluate(u), flat(target.num_inputs))
        return StepOperations(evaluating, 0.0)

    @override
    def init(self, target, u):
        assert isinstance(target, AbstractConstrainedTarget)
        geodesic = _geodesic_of(target)
        _, log_density, gradient = target.evaluate(u)
        return at_rest(u, log_density, geodesic.project(u, gradient), geodesic)

    @override
    def draw_momentum(self, key, state):
        u, geodesic = state.position, state.cache
        return geodesic.project(u, jax.random.normal(key, u.shape, u.dtype))

    @override
    @jit_bounded
    def step(self, target, state, h, geodesic_steps=1):
        assert isinstance(target, AbstractConstrainedTarget)
        geodesic = _geodesic_of(target)
        left = half_kick(state, h)
        u, p = geodesic.move(left.position, left.momentum, h)
        _, log_density, gradient = target.evaluate(u)
        is_lost = ~jnp.all(jnp.isfinite(u))
        moved = left._replace(
            position=u,
            momentum=p,
            logdensity=jnp.where(is_lost, -jnp.inf, log_density),
            force=geodesic.project(u, gradient),
            convergence_error=left.convergence_error | is_lost,
        )
        return half_kick(moved, h)


def _geodesic_of(target) -> AbstractGeodesicFlow:
    geodesic = target.geodesic if isinstance(target, AbstractConstrainedTarget) else None
    if geodesic is None:
        raise SettingError(
            "integrator=Geodesic() needs a manifold whose geodesics have a closed form "
            "(coarea.manifolds.Sphere, coarea.manifolds.Stiefel) and is not rescaled: leave "
            "integrator out."
        )
    return geodesic
