"""Constrained Langevin dynamics: constrained HMC with a single step."""

from blackjax.base import SamplingAlgorithm

from coarea.dynamics import AbstractIntegrator
from coarea.kernels.chmc import CHMC, chmc
from coarea.kernels.kernel import Mass
from coarea.manifolds.target import AbstractTarget


def Langevin(
    step_size: float | None = None,
    target_acceptance: float | None = None,
    mass: Mass = "auto",
    integrator: AbstractIntegrator | None = None,
) -> CHMC:
    """The one-step case of `CHMC`: cheap transitions that explore by diffusion."""
    return CHMC(
        num_steps=1,
        step_size=step_size,
        target_acceptance=target_acceptance,
        mass=mass,
        integrator=integrator,
    )


def langevin(
    target: AbstractTarget, step_size: float, integrator: AbstractIntegrator | None = None
) -> SamplingAlgorithm:
    """Constrained Langevin after BlackJAX's contract."""
    return chmc(target, step_size, num_steps=1, integrator=integrator)
