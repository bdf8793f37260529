"""Chains under another library's driver: starts on the manifold, and one transition at a time."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jax.core import Tracer
from jaxtyping import Array, Float, Int, Key

from coarea.adaptation.plan import Plan, plan_for
from coarea.execution.transitions import ChainState, TransitionStats, begin, transition
from coarea.initialisation.approach import improve
from coarea.initialisation.checks import check_starts
from coarea.initialisation.search import search
from coarea.kernels.kernel import AbstractKernel
from coarea.manifolds.target import AbstractTarget


class Stepper(eqx.Module):
    """A target and a kernel with its warm-up. Made by `stepper_for`."""

    target: AbstractTarget
    plan: Plan

    def start(self, keys: Key[Array, " chains"], u: Any = None) -> ChainState:
        """A chain for each key: from points near the manifold if `u` has them, else searched for.

        Chains without a start are refused, unless JAX traces this call.
        """
        tolerance = self.plan.kernel.tolerance_for(jnp.zeros(()).dtype)
        found = (
            search(self.target, keys, tolerance)
            if u is None
            else improve(self.target, u, tolerance)
        )
        if not isinstance(found.u, Tracer):
            check_starts(self.target, found, tolerance)
        return begin(self.plan, self.target, keys, found.u, None)

    def step(
        self, chain: ChainState, number: Int[Array, ""]
    ) -> tuple[ChainState, Float[Array, " M"], TransitionStats]:
        """The chain after its next transition, its draw in model space, and how it went."""
        return transition(self.plan, self.target, chain, number)

    def position(self, chain: ChainState) -> Float[Array, " M"]:
        """Where a chain is, in model space."""
        return chain.adaptation.rescaling.to_model_space(chain.state.position)

    def first_stats(self, chain: ChainState) -> TransitionStats:
        """The record of a chain that has made no transition yet."""
        zero, no, none = jnp.zeros(()), jnp.asarray(False), jnp.asarray(0)
        return TransitionStats(
            acceptance_rate=zero,
            diverging=no,
            energy=chain.state.energy,
            lp=chain.state.logdensity,
            n_steps=none,
            tree_depth=none,
            step_size=zero,
            convergence_error=no,
            non_reversible_step=no,
            constraint_error=zero,
        )

    def phase_age(self, number: Int[Array, ""]) -> Int[Array, ""]:
        """How many transitions this phase, warm-up or sampling, has had after this one."""
        length = self.plan.warmup.length
        return jnp.where(number < length, number, number - length) + 1


def stepper_for(target: AbstractTarget, kernel: AbstractKernel, warmup: int) -> Stepper:
    """Chains on a target by a kernel that is tuned in its first transitions."""
    return Stepper(target, plan_for(target, kernel, warmup))
