"""The plan of a run: its kernel, and the warm-up that tunes it."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from coarea.adaptation.mass import mass_adaptation_for
from coarea.adaptation.warmup import Adaptation, AdaptedParameters, Warmup
from coarea.kernels.kernel import AbstractKernel, Tuning
from coarea.manifolds.rescaling import Rescaling
from coarea.manifolds.target import AbstractTarget
from coarea.xla import jit_fast_compile


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
        eqx.tree_at(lambda k: k.step_size, kernel, None, is_leaf=lambda x: x is None),
        Warmup(
            kernel.target_acceptance,
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
