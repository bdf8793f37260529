"""The integrator that suits a target."""

from coarea.dynamics.geodesic import Geodesic
from coarea.dynamics.integrator import AbstractIntegrator
from coarea.dynamics.leapfrog import Leapfrog
from coarea.dynamics.rattle import Rattle
from coarea.manifolds.target import (
    AbstractConstrainedTarget,
    AbstractTarget,
    AbstractUnconstrainedTarget,
)


def integrator_for(
    target: AbstractTarget, given: AbstractIntegrator | None = None
) -> AbstractIntegrator:
    """The integrator given, or the one that suits the target."""
    if given is not None:
        given.check(target)
        return given
    if isinstance(target, AbstractUnconstrainedTarget):
        return Leapfrog()
    if isinstance(target, AbstractConstrainedTarget) and target.geodesic is not None:
        return Geodesic()
    return Rattle()
