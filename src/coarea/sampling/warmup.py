"""Step-size warm-up: dual averaging towards a wanted acceptance and a bearable rate of failures."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from blackjax.adaptation.step_size import DualAveragingAdaptationState, dual_averaging_adaptation
from jaxtyping import Array, Float, Int

from coarea.kernels.kernel import TransitionInfo

# Where the search begins, relative to the size of a position. Failures shrink it fast, acceptances
# let it grow.
_FIRST_STEP = 0.1
# Failed trajectories are rejected, so that they bias nothing, but near places where many fail the
# chain is slow, which acceptance alone does not show.
_WANTED_SUCCESS = 0.995


class Adaptation(NamedTuple):
    """Two searches for a step size, one by acceptance and one by failures. The smaller is used."""

    by_acceptance: DualAveragingAdaptationState
    by_failures: DualAveragingAdaptationState


class StepSizeWarmup(eqx.Module):
    """Adapts one chain's step size during its first `length` transitions.

    The searches restart once, after a quarter of them, so that what was right on the way from the
    start point to where the posterior lies does not weigh on the result.
    """

    target_acceptance: float
    longest_step: float
    length: Int[Array, ""]
    extent: Float[Array, ""]

    @property
    def _searches(self):
        acceptance = dual_averaging_adaptation(self.target_acceptance)
        # Failures are rare events: a slower search (larger gamma) averages over more of them.
        return acceptance, dual_averaging_adaptation(_WANTED_SUCCESS, gamma=0.2)

    def init(self) -> Adaptation:
        """The state before the first transition."""
        first = self._start(jnp.minimum(_FIRST_STEP * self.extent, self.longest_step))
        # Weakly typed scalars would make the first block a program of its own.
        return jax.tree.map(lambda x: jnp.asarray(x, jnp.result_type(x)), first)

    def step_size(self, state: Adaptation, transition: Int[Array, ""]) -> Float[Array, ""]:
        """What to use for a transition: the current trial, or after warm-up the average."""
        trial = jnp.minimum(state.by_acceptance.log_step_size, state.by_failures.log_step_size)
        average = jnp.minimum(
            state.by_acceptance.log_step_size_avg, state.by_failures.log_step_size_avg
        )
        chosen = jnp.where(transition < self.length, trial, average)
        return jnp.minimum(jnp.exp(chosen), self.longest_step)

    def update(
        self, state: Adaptation, info: TransitionInfo, transition: Int[Array, ""]
    ) -> Adaptation:
        """Learn from a transition. After warm-up nothing changes."""
        (_, by_acceptance, _), (_, by_failures, _) = self._searches
        failed = info.convergence_error | info.non_reversible_step
        learnt = Adaptation(
            self._bounded(by_acceptance(state.by_acceptance, info.acceptance_rate)),
            by_failures(state.by_failures, 1.0 - failed.astype(info.acceptance_rate.dtype)),
        )
        restarted = self._start(self.step_size(state, self.length) / 10)
        learnt = _where(transition == self.length // 4, restarted, learnt)
        return _where(transition < self.length, learnt, state)

    def _start(self, step_size) -> Adaptation:
        (by_acceptance, _, _), (by_failures, _, _) = self._searches
        return Adaptation(by_acceptance(step_size), by_failures(step_size))

    def _bounded(self, search: DualAveragingAdaptationState) -> DualAveragingAdaptationState:
        """Beyond the longest step a longer one tells nothing new: do not drift away."""
        longest = jnp.log(self.longest_step)
        return search._replace(log_step_size=jnp.minimum(search.log_step_size, longest))


def _where(condition, yes, no):
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), yes, no)
