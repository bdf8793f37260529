"""The plan of a run: its kernel, and the warm-up that tunes it.

Warm-up is pooled over chains (`pooled_warmup_for`), or each chain's own (`plan_for`).
"""

import math

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from coarea.adaptation.cost import TransitionCost
from coarea.adaptation.mass import mass_adaptation_for
from coarea.adaptation.pooled import MassKind, PooledWarmup, Situation, no_rescaling
from coarea.adaptation.warmup import Adaptation, AdaptedParameters, Warmup
from coarea.kernels.kernel import AbstractKernel, Tuning
from coarea.manifolds.rescaling import Rescaling
from coarea.manifolds.target import AbstractConstrainedTarget, AbstractTarget
from coarea.xla import jit_fast_compile

# The upper limit of a warm-up whose length was not given.
DEFAULT_WARMUP = 500
# The upper limit where transitions are cheap: as many as cost this many operations, all chains
# together, with trajectories of this many steps.
_LONGEST_WARMUP = 2000
_AFFORDABLE = 2e9
_TYPICAL_STEPS = 4
# Transitions of all chains together for each input whose correlations are estimated.
_TRANSITIONS_FOR_MASS = 40
# The default of `target_acceptance`.
_ACCEPTANCE = 0.8
# The most inputs of a density whose correlations are estimated.
_MOST_DENSE = 64
# The time in which a trajectory crosses a normal density of variance one.
_CROSSING_TIME = 0.5 * math.pi


class Plan(eqx.Module):
    """A kernel, and how it is tuned."""

    kernel: AbstractKernel
    warmup: Warmup
    given_step: Float[Array, ""] | None

    def tuning(self, adaptation: Adaptation, transition: Int[Array, ""]) -> Tuning:
        """The parameters that warm-up has reached, with the user's step size if there is one."""
        tuning = self.warmup.tuning(adaptation, transition)
        return tuning if self.given_step is None else tuning._replace(step_size=self.given_step)

    def adapted(self, adaptation: Adaptation) -> AdaptedParameters:
        """What the draws are made with."""
        found = self.warmup.adapted(adaptation)
        return found if self.given_step is None else found._replace(step_size=self.given_step)


def plan_for(target: AbstractTarget, kernel: AbstractKernel, warmup: int, seed: int = 0) -> Plan:
    """The kernel and its tuning, as they enter the program that is compiled."""
    mass = mass_adaptation_for(target, kernel.mass)
    if mass is not None:
        target = target.rescale(Rescaling(jnp.ones(target.num_inputs)))
    # What may change from call to call is an array, so that it needs no new compilation.
    return Plan(
        AbstractKernel.without_settings(kernel),
        Warmup(
            kernel.target_acceptance or _ACCEPTANCE,
            kernel.longest_step(target),
            jnp.asarray(warmup),
            _position_scale(target),
            jnp.asarray(seed * 0x85EBCA6B % 2**32, jnp.uint32),
            mass,
        ),
        None if kernel.step_size is None else jnp.asarray(kernel.step_size, float),
    )


@jit_fast_compile
def _position_scale(target: AbstractTarget) -> Float[Array, ""]:
    return target.scales.position


def pooled_warmup_for(
    target: AbstractTarget, kernel: AbstractKernel, length: int | None, chains: int, seed: int
) -> PooledWarmup:
    """The warm-up that all chains of a run share; without a `length`, as long as is affordable."""
    mass, is_scaled = _scaling(target, kernel)
    rescaling = no_rescaling(mass, is_scaled)
    moving = target if rescaling.is_identity else target.rescale(rescaling)
    longest = kernel.integrator_for(moving).max_flow_time(moving)
    crosses = _CROSSING_TIME if mass != "none" and is_scaled.all() else longest
    cost = TransitionCost.of(moving, kernel)
    affordable = _AFFORDABLE / (chains * cost.least(_TYPICAL_STEPS))
    if length is None:
        # Few chains need longer to see all correlations.
        for_mass = _TRANSITIONS_FOR_MASS * target.num_inputs / chains if mass == "dense" else 0.0
        length = int(min(max(affordable, for_mass, DEFAULT_WARMUP), _LONGEST_WARMUP))
    about = Situation(
        num_inputs=target.num_inputs,
        longest_step=longest,
        position_scale=float(_position_scale(target)),
        cost=cost,
        crossing_time=crosses if math.isfinite(crosses) else None,
        on_manifold=isinstance(target, AbstractConstrainedTarget),
        mass=mass,
        is_scaled=is_scaled,
        step_size=kernel.step_size,
        num_steps=kernel.given_steps,
        is_cheap=affordable > DEFAULT_WARMUP,
    )
    return PooledWarmup(about, length, chains, seed * 0x85EBCA6B)


def _scaling(target: AbstractTarget, kernel: AbstractKernel) -> tuple[MassKind, np.ndarray]:
    """How inputs are scaled, and which ones."""
    if not isinstance(target, AbstractConstrainedTarget):
        whole = np.ones(target.num_inputs, bool)
        if kernel.mass == "identity":
            return "none", whole
        is_small = target.num_inputs <= _MOST_DENSE and kernel.mass == "auto"
        return ("dense" if is_small else "diagonal"), whole
    if kernel.mass == "diagonal":
        return "diagonal", np.ones(target.num_inputs, bool)
    if target.has_factors and kernel.mass == "auto":
        is_small = target.allows_full_mass and target.num_inputs <= _MOST_DENSE
        return ("dense" if is_small else "diagonal"), np.ones(target.num_inputs, bool)
    # Normal inputs rotate in their own scale, and closed geodesics are those of the given scale.
    others = ~np.asarray(target.gaussian)
    if kernel.mass == "identity" or target.geodesic is not None or not np.any(others):
        return "none", others
    return "diagonal", others
