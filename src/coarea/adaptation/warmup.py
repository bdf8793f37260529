"""Warm-up: adapt step size, trajectory length and mass, one chain at a time.

The step size is the smaller of two: dual averaging finds one with the wanted acceptance, and a
search of its own one with a bearable rate of failures. Both begin where doubling or halving has
found a step of the right order of magnitude.
"""

import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from blackjax.adaptation.step_size import DualAveragingAdaptationState, dual_averaging_adaptation
from jaxtyping import Array, Bool, Float, Int, UInt32

from coarea.adaptation.mass import DiagonalMass, Matrix
from coarea.adaptation.schedule import evenly_spread
from coarea.adaptation.step_size import MARGIN, FailureSearch, MagnitudeSearch
from coarea.kernels.kernel import TransitionInfo, Tuning
from coarea.manifolds.rescaling import Rescaling

# Where the search begins, relative to the size of a position.
_FIRST_STEP = 0.1
# The first trajectories of a kernel that adapts their length: this many steps to the U-turn.
_FIRST_STEPS = 10
# In each window this many trajectories are followed until they turn, beyond where they would end.
_TURNS_SEEN = 32
# What each window tries beyond the step that the one before found bearable.
_SECOND_CHANCE = 1.5
# Where a window ends and the next begins, as fractions of the warm-up. Each begins afresh: what was
# right on the way from the start to the bulk of the posterior must not weigh on the result.
_WINDOWS = (0.25,)
_WINDOWS_WITH_MASS = (0.15, 0.3, 0.55, 0.8)


class Adaptation(NamedTuple):
    """The state of one chain's warm-up.

    Of the two searches for a step size, by acceptance and by failures, the smaller result is used.
    """

    magnitude: MagnitudeSearch
    by_acceptance: DualAveragingAdaptationState
    by_failures: FailureSearch
    u_turn_time: Float[Array, ""]
    age: Int[Array, ""]  # transitions since this window began
    rescaling: Rescaling
    mass: Any  # the state of the mass adaptation; None if there is none


class AdaptedParameters(NamedTuple):
    """The result of a warm-up: enough to take up a run again without another.

    `scale` is the matrix of the rescaling, None without one. A pooled warm-up finds the range of
    the number of steps, and no U-turn time.
    """

    step_size: Float[Array, ""]
    u_turn_time: Float[Array, ""] | None
    scale: Matrix | None
    fewest_steps: Int[Array, ""] | None = None
    most_steps: Int[Array, ""] | None = None


class Warmup(eqx.Module):
    """Adapts one chain during its first `length` transitions."""

    target_acceptance: float
    longest_step: float
    length: Int[Array, ""]
    position_scale: Float[Array, ""]
    offset: UInt32[Array, ""]  # with which the sequence of trajectory lengths begins
    mass: DiagonalMass | None

    @property
    def _dual_averaging(self):
        return dual_averaging_adaptation(self.target_acceptance)

    def init(self, u: Float[Array, " M"]) -> Adaptation:
        """The state before the first transition, at u."""
        first = jnp.minimum(_FIRST_STEP * self.position_scale, self.longest_step)
        matrix = None if self.mass is None else jnp.ones_like(u)
        return self._window(first, _FIRST_STEPS * first, matrix)

    def resume(self, adapted: AdaptedParameters, num_inputs: int) -> Adaptation:
        """The state at the end of an earlier run, for warm-up to go on from or be over."""
        matrix = adapted.scale
        if self.mass is not None:
            matrix = self.mass.convert(matrix, num_inputs)
        u_turn_time = adapted.u_turn_time
        if u_turn_time is None:  # of a pooled warm-up: trajectories are half of it in the mean
            assert adapted.fewest_steps is not None
            assert adapted.most_steps is not None
            u_turn_time = adapted.step_size * (adapted.fewest_steps + adapted.most_steps)
        state = self._window(adapted.step_size / 10, u_turn_time, matrix)
        at = jnp.log(adapted.step_size)
        by_acceptance = state.by_acceptance._replace(log_step_size=at, log_step_size_avg=at)
        magnitude = MagnitudeSearch(adapted.step_size, jnp.asarray(0), jnp.asarray(True))
        by_failures = FailureSearch.begin(adapted.step_size * math.exp(MARGIN))
        return state._replace(
            magnitude=magnitude, by_acceptance=by_acceptance, by_failures=by_failures
        )

    def adapted(self, state: Adaptation) -> AdaptedParameters:
        """What the draws are made with."""
        average = jnp.minimum(state.by_acceptance.log_step_size_avg, state.by_failures.bearable)
        searched = state.magnitude
        step_size = jnp.where(searched.is_over, jnp.exp(average), searched.step_size)
        step_size = jnp.minimum(step_size, self.longest_step)
        return AdaptedParameters(step_size, state.u_turn_time, state.rescaling.matrix)

    def tuning(self, state: Adaptation, transition: Int[Array, ""]) -> Tuning:
        """The parameters of a transition: the current trial, or after warm-up the result."""
        is_warmup = transition < self.length
        trial = jnp.minimum(state.by_acceptance.log_step_size, state.by_failures.log_step_size)
        trial = jnp.where(state.magnitude.is_over, jnp.exp(trial), state.magnitude.step_size)
        trial = jnp.minimum(trial, self.longest_step)
        step_size = jnp.where(is_warmup, trial, self.adapted(state).step_size)
        is_adapting = is_warmup & (state.age < _TURNS_SEEN)
        quantile = evenly_spread(transition, self.offset)
        return Tuning(step_size, state.u_turn_time, is_adapting, quantile)

    def starts_window(self, transition: Int[Array, ""]) -> Bool[Array, ""]:
        """Whether a window begins after this transition."""
        fractions = _WINDOWS if self.mass is None else _WINDOWS_WITH_MASS
        ends = [(fraction * self.length).astype(int) for fraction in fractions]
        return jnp.any(transition + 1 == jnp.stack(ends))

    def update(
        self,
        state: Adaptation,
        info: TransitionInfo,
        position: Float[Array, " M"],
        transition: Int[Array, ""],
    ) -> Adaptation:
        """The state after a transition that led to `position`. After warm-up nothing changes."""
        return jax.lax.cond(
            transition < self.length,
            lambda: self._update(state, info, position, transition),
            lambda: state,
        )

    def _update(self, state: Adaptation, info, position, transition) -> Adaptation:
        tuning = self.tuning(state, transition)
        failed = info.convergence_error | info.non_reversible_step
        first, by_acceptance, _ = self._dual_averaging
        magnitude = state.magnitude.update(
            info.acceptance_rate, failed, self.target_acceptance, self.longest_step
        )
        goes_on = state._replace(
            by_acceptance=self._bounded(by_acceptance(state.by_acceptance, info.acceptance_rate)),
            by_failures=state.by_failures.update(failed, tuning.step_size),
        )
        begins = state._replace(
            by_acceptance=first(magnitude.step_size),
            # Nothing is known of failures yet: ten times as much, which dual averaging tries too.
            by_failures=FailureSearch.begin(10 * magnitude.step_size),
        )
        age = state.age + 1
        state = jax.tree.map(
            lambda a, b: jnp.where(state.magnitude.is_over, a, b), goes_on, begins
        )._replace(
            magnitude=magnitude,
            age=age,
            u_turn_time=state.u_turn_time + (info.u_turn_time - state.u_turn_time) / age,
        )
        if self.mass is not None:
            mass = self.mass.update(state.mass, position)
            state = state._replace(mass=mass)
        return jax.lax.cond(
            self.starts_window(transition), lambda: self._next_window(state), lambda: state
        )

    def _next_window(self, state: Adaptation) -> Adaptation:
        step_size, u_turn_time, matrix, *_ = self.adapted(state)
        if self.mass is None or matrix is None:
            # Each search begins where it was itself: the one that did not decide saw the other's
            # steps and may be anywhere above. Dual averaging looks first near ten times its start.
            allowed = jnp.exp(state.by_acceptance.log_step_size_avg)
            bearable = jnp.exp(state.by_failures.bearable)
            first, _, _ = self._dual_averaging
            return self._window(step_size, u_turn_time, matrix)._replace(
                magnitude=state.magnitude,
                by_acceptance=first(jnp.minimum(allowed, 10 * step_size) / 10),
                by_failures=FailureSearch.begin(_SECOND_CHANCE * bearable),
            )
        estimate = self.mass.final(state.mass)
        matrix = jnp.where(jnp.all(jnp.isfinite(estimate)), estimate, matrix)
        first = jnp.minimum(_FIRST_STEP, self.longest_step)
        return self._window(first, _FIRST_STEPS * first, matrix)

    def _window(self, step_size, u_turn_time, matrix) -> Adaptation:
        first, _, _ = self._dual_averaging
        state = Adaptation(
            MagnitudeSearch.begin(step_size),
            first(step_size),
            FailureSearch.begin(10 * step_size),
            u_turn_time,
            jnp.asarray(0),
            Rescaling(matrix),
            None if self.mass is None else self.mass.initial_state(matrix),
        )
        # Weakly typed scalars would make the first block a program of its own.
        return jax.tree.map(lambda x: jnp.asarray(x, jnp.result_type(x)), state)

    def _bounded(self, search: DualAveragingAdaptationState) -> DualAveragingAdaptationState:
        """Beyond the longest step a longer one says nothing new: do not drift away."""
        longest = jnp.log(self.longest_step)
        return search._replace(log_step_size=jnp.minimum(search.log_step_size, longest))
