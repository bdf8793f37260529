"""Warm-up: what a chain learns of its step size, its trajectories' length and its inputs' units.

The step size is the smaller of two: dual averaging finds one of the wanted acceptance, and a search
of its own one with a bearable rate of failures. They begin where doubling or halving has found a
step of the right order.
"""

import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from blackjax.adaptation.step_size import DualAveragingAdaptationState, dual_averaging_adaptation
from jaxtyping import Array, Bool, Float, Int, UInt32

from coarea.adaptation.mass import AbstractUnits
from coarea.kernels.kernel import TransitionInfo, Tuning
from coarea.manifolds import AbstractTarget
from coarea.manifolds.target import Units

# Where the search begins, relative to the size of a position.
_FIRST_STEP = 0.1
# The first trajectories of a kernel that learns their length: this many steps to the turn.
_FIRST_STEPS = 10
# In each window so many are followed until they turn, beyond where they would end.
_TURNS_SEEN = 32
# Failed trajectories are rejected, so that they bias nothing, but near places where many fail the
# chain is slow, which acceptance alone does not show.
_WANTED_FAILURES = 0.005
# How far a failure sets the step back at first, in logarithms. The rate of failures is a steep
# function of the step: half of it or less is enough, where acceptance needs a wider search.
_SETBACK = 0.5
_MARGIN = 0.1
# What each window tries beyond the step that the one before found bearable.
_SECOND_CHANCE = 1.5
# Each window of a warm-up, as fractions of it, begins afresh, so that what was right on the way
# from the start point to where the posterior lies does not weigh on the result.
_WINDOWS = (0.25,)
_WINDOWS_WITH_UNITS = (0.15, 0.3, 0.55, 0.8)


class Search(NamedTuple):
    """Doubling (+1) or halving (−1) a step size until it is too large, or no longer is."""

    step_size: Float[Array, ""]
    direction: Int[Array, ""]
    is_over: Bool[Array, ""]


class FailureSearch(NamedTuple):
    """A step with a bearable rate of failures, by stochastic approximation, and its average."""

    log_step_size: Float[Array, ""]
    log_step_size_avg: Float[Array, ""]
    age: Int[Array, ""]

    @property
    def bearable(self) -> Float[Array, ""]:
        """The average, a little less: half of the steps averaged over were too long."""
        return self.log_step_size_avg - _MARGIN

    @classmethod
    def beginning(cls, step_size) -> "FailureSearch":
        """Before the first transition of a window."""
        return cls(jnp.log(step_size), jnp.log(step_size), jnp.asarray(0))

    def learn(self, failed: Bool[Array, ""], used: Float[Array, ""]) -> "FailureSearch":
        """Failures are rare, so that each counts for much more than a success.

        One at a smaller step than this search would allow says that this search is too bold.
        """
        age = self.age + 1
        gain = _SETBACK * age ** (-0.4)
        at = jnp.where(failed, jnp.minimum(self.log_step_size, jnp.log(used)), self.log_step_size)
        at = at - gain * (failed - _WANTED_FAILURES)
        weight = age ** (-0.75)
        average = weight * at + (1 - weight) * self.log_step_size_avg
        return FailureSearch(at, average, age)


class Adaptation(NamedTuple):
    """All that a chain has learnt.

    Of the two searches for a step size, one by acceptance and one by failures, the smaller is used.
    `units` and what they follow from are None where every input has unit one.
    """

    search: Search
    by_acceptance: DualAveragingAdaptationState
    by_failures: FailureSearch
    u_turn_time: Float[Array, ""]
    age: Int[Array, ""]  # transitions since this window began
    units: Units | None
    known_of_units: Any


class AdaptedParameters(NamedTuple):
    """What is left to know of a warm-up: with it a run can be taken up again without another."""

    step_size: Float[Array, ""]
    u_turn_time: Float[Array, ""]
    units: Units | None


class Warmup(eqx.Module):
    """Adapts one chain during its first `length` transitions."""

    target_acceptance: float
    longest_step: float
    length: Int[Array, ""]
    extent: Float[Array, ""]
    offset: UInt32[Array, ""]  # with which the sequence of lengths begins
    units: AbstractUnits | None

    @property
    def _dual_averaging(self):
        return dual_averaging_adaptation(self.target_acceptance)

    def init(self, target: AbstractTarget, u: Float[Array, " M"]) -> Adaptation:
        """The state before the first transition, at u."""
        first = jnp.minimum(_FIRST_STEP * self.extent, self.longest_step)
        units = None if self.units is None else self.units.first(target, u)
        return self._window(first, _FIRST_STEPS * first, units)

    def resume(self, learnt: AdaptedParameters, num_inputs: int) -> Adaptation:
        """The state with which an earlier run ended, for warm-up to go on from or be over."""
        units = learnt.units
        if self.units is not None:
            units = self.units.like(units, num_inputs)
        state = self._window(learnt.step_size / 10, learnt.u_turn_time, units)
        at = jnp.log(learnt.step_size)
        known = state.by_acceptance._replace(log_step_size=at, log_step_size_avg=at)
        search = Search(learnt.step_size, jnp.asarray(0), jnp.asarray(True))
        by_failures = FailureSearch.beginning(learnt.step_size * math.exp(_MARGIN))
        return state._replace(search=search, by_acceptance=known, by_failures=by_failures)

    def learnt(self, state: Adaptation) -> AdaptedParameters:
        """What the draws are made with."""
        average = jnp.minimum(state.by_acceptance.log_step_size_avg, state.by_failures.bearable)
        step_size = jnp.where(state.search.is_over, jnp.exp(average), state.search.step_size)
        return AdaptedParameters(
            jnp.minimum(step_size, self.longest_step), state.u_turn_time, state.units
        )

    def tuning(self, state: Adaptation, transition: Int[Array, ""]) -> Tuning:
        """What to use for a transition: the current trial, or after warm-up what was learnt."""
        is_warmup = transition < self.length
        trial = jnp.minimum(state.by_acceptance.log_step_size, state.by_failures.log_step_size)
        trial = jnp.where(state.search.is_over, jnp.exp(trial), state.search.step_size)
        trial = jnp.minimum(trial, self.longest_step)
        step_size = jnp.where(is_warmup, trial, self.learnt(state).step_size)
        is_adapting = is_warmup & (state.age < _TURNS_SEEN)
        fraction = _fraction(transition, self.offset)
        return Tuning(step_size, state.u_turn_time, is_adapting, fraction)

    def starts_window(self, transition: Int[Array, ""]) -> Bool[Array, ""]:
        """Whether learning begins afresh after this transition."""
        fractions = _WINDOWS if self.units is None else _WINDOWS_WITH_UNITS
        ends = [(fraction * self.length).astype(int) for fraction in fractions]
        return jnp.any(transition + 1 == jnp.stack(ends))

    def update(
        self,
        target: AbstractTarget,
        state: Adaptation,
        info: TransitionInfo,
        position: Float[Array, " M"],
        transition: Int[Array, ""],
    ) -> Adaptation:
        """Learn from a transition that led to `position`. After warm-up nothing changes."""
        return jax.lax.cond(
            transition < self.length,
            lambda: self._learn(target, state, info, position, transition),
            lambda: state,
        )

    def _learn(self, target, state: Adaptation, info, position, transition) -> Adaptation:
        tuning = self.tuning(state, transition)
        failed = info.convergence_error | info.non_reversible_step
        first, by_acceptance, _ = self._dual_averaging
        search = self._searched(state.search, info.acceptance_rate, failed)
        goes_on = state._replace(
            by_acceptance=self._bounded(by_acceptance(state.by_acceptance, info.acceptance_rate)),
            by_failures=state.by_failures.learn(failed, tuning.step_size),
        )
        begins = state._replace(
            by_acceptance=first(search.step_size),
            # Nothing is known of failures yet: ten times as much, as dual averaging tries too.
            by_failures=FailureSearch.beginning(10 * search.step_size),
        )
        age = state.age + 1
        learnt = _where(state.search.is_over, goes_on, begins)._replace(
            search=search,
            age=age,
            u_turn_time=state.u_turn_time + (info.u_turn_time - state.u_turn_time) / age,
        )
        if self.units is not None:
            known = self.units.learn(state.known_of_units, target, position, transition)
            learnt = learnt._replace(known_of_units=known)
        return jax.lax.cond(
            self.starts_window(transition), lambda: self._next_window(learnt), lambda: learnt
        )

    def _searched(self, search: Search, acceptance_rate, failed) -> Search:
        """One more doubling or halving; a step that fails is too long whatever it was worth."""
        is_short = ~failed & (acceptance_rate >= self.target_acceptance)
        direction = jnp.where(is_short, 1, -1)
        is_turn = direction * search.direction < 0
        step_size = jnp.where(is_short, 2.0, 0.5) * search.step_size
        # Coming from below the last good step is the one before; from above, the one just tried.
        step_size = jnp.where(is_turn & is_short, search.step_size, step_size)
        is_over = is_turn | (step_size >= self.longest_step)
        found = Search(jnp.minimum(step_size, self.longest_step), direction, is_over)
        return _where(search.is_over, search, found)

    def _next_window(self, state: Adaptation) -> Adaptation:
        step_size, u_turn_time, units = self.learnt(state)
        if self.units is None or units is None:
            # Each from where it was itself: the one that did not decide saw the other's steps and
            # may be anywhere above. Divided by ten, near which dual averaging looks first.
            allowed = jnp.exp(state.by_acceptance.log_step_size_avg)
            bearable = jnp.exp(state.by_failures.bearable)
            first, _, _ = self._dual_averaging
            return self._window(step_size, u_turn_time, units)._replace(
                search=state.search,
                by_acceptance=first(jnp.minimum(allowed, 10 * step_size) / 10),
                by_failures=FailureSearch.beginning(_SECOND_CHANCE * bearable),
            )
        measured = self.units.units(state.known_of_units)
        units = jnp.where(jnp.all(jnp.isfinite(measured)), measured, units)
        first = jnp.minimum(_FIRST_STEP, self.longest_step)
        return self._window(first, _FIRST_STEPS * first, units)

    def _window(self, step_size, u_turn_time, units) -> Adaptation:
        first, _, _ = self._dual_averaging
        state = Adaptation(
            Search(step_size, jnp.asarray(0), jnp.asarray(False)),
            first(step_size),
            FailureSearch.beginning(10 * step_size),
            u_turn_time,
            jnp.asarray(0),
            units,
            None if self.units is None else self.units.nothing(units),
        )
        # Weakly typed scalars would make the first block a program of its own.
        return jax.tree.map(lambda x: jnp.asarray(x, jnp.result_type(x)), state)

    def _bounded(self, search: DualAveragingAdaptationState) -> DualAveragingAdaptationState:
        """Beyond the longest step a longer one tells nothing new: do not drift away."""
        longest = jnp.log(self.longest_step)
        return search._replace(log_step_size=jnp.minimum(search.log_step_size, longest))


def _fraction(transition: Int[Array, ""], offset: UInt32[Array, ""]) -> Float[Array, ""]:
    """Evenly spread from 0 to 1, by multiples of the golden ratio.

    The same for all chains: of those that run in step each would wait for the longest.
    """
    part = transition.astype(jnp.uint32) * np.uint32(0x9E3779B9) + offset
    return part / jnp.asarray(2.0**32, float)


def _where(condition, yes, no):
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), yes, no)
