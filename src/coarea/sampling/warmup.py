"""Step-size warm-up: dual averaging towards a wanted acceptance rate, failures counted as zero."""

import equinox as eqx
import jax
import jax.numpy as jnp
from blackjax.adaptation.step_size import DualAveragingAdaptationState, dual_averaging_adaptation
from jaxtyping import Array, Float, Int

from coarea.kernels.kernel import TransitionInfo

# Where the search begins. Failures shrink it fast, acceptances let it grow.
_FIRST_STEP = 0.1


class StepSizeWarmup(eqx.Module):
    """Adapts one chain's step size during its first `length` transitions.

    The average restarts once, after a quarter of them, so that what was right on the way from the
    start point to where the posterior lies does not weigh on the result.
    """

    target_acceptance: float
    longest_step: float
    length: Int[Array, ""]

    def init(self) -> DualAveragingAdaptationState:
        """The state before the first transition."""
        start, _, _ = dual_averaging_adaptation(self.target_acceptance)
        first = start(jnp.asarray(min(_FIRST_STEP, self.longest_step), float))
        # Weakly typed scalars would make the first block a program of its own.
        return jax.tree.map(lambda x: jnp.asarray(x, jnp.result_type(x)), first)

    def step_size(
        self, state: DualAveragingAdaptationState, transition: Int[Array, ""]
    ) -> Float[Array, ""]:
        """What to use for a transition: the current trial, or after warm-up the average."""
        trial = jnp.where(transition < self.length, state.log_step_size, state.log_step_size_avg)
        return jnp.minimum(jnp.exp(trial), self.longest_step)

    def update(
        self,
        state: DualAveragingAdaptationState,
        info: TransitionInfo,
        transition: Int[Array, ""],
    ) -> DualAveragingAdaptationState:
        """Learn from a transition. After warm-up nothing changes."""
        start, update, _ = dual_averaging_adaptation(self.target_acceptance)
        restart = transition == self.length // 4
        fresh = start(jnp.minimum(jnp.exp(state.log_step_size_avg), self.longest_step) / 10)
        learnt = update(state, info.acceptance_rate)
        # Beyond the longest step a longer one tells nothing new: do not drift away.
        ceiling = jnp.log(self.longest_step)
        learnt = learnt._replace(log_step_size=jnp.minimum(learnt.log_step_size, ceiling))
        learnt = jax.tree.map(lambda a, b: jnp.where(restart, a, b), fresh, learnt)
        adapting = transition < self.length
        return jax.tree.map(lambda a, b: jnp.where(adapting, a, b), learnt, state)
