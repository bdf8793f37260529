"""Searches for a step size: its order of magnitude, and a bearable rate of failures.

The third search, for the wanted acceptance, is BlackJAX's dual averaging.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

# Failed trajectories are rejected and bias nothing. But a chain is slow near places where many
# fail, and the acceptance alone does not show that.
_WANTED_FAILURES = 0.005
# How far a failure sets the step back at first, in logarithms. The rate of failures is a steep
# function of the step: a factor of about one half is enough.
_SETBACK = 0.5
# How much smaller than the average a step is used, in logarithms.
MARGIN = 0.1


class MagnitudeSearch(NamedTuple):
    """Double (direction +1) or halve (−1) a step size until it is too large, or no longer is."""

    step_size: Float[Array, ""]
    direction: Int[Array, ""]
    is_over: Bool[Array, ""]

    @classmethod
    def begin(cls, step_size) -> "MagnitudeSearch":
        """Before the first transition."""
        return cls(step_size, jnp.asarray(0), jnp.asarray(False))

    def update(self, acceptance_rate, failed, target_acceptance, longest) -> "MagnitudeSearch":
        """The search after a transition. A step that fails is too long, whatever it accepts."""
        is_short = ~failed & (acceptance_rate >= target_acceptance)
        direction = jnp.where(is_short, 1, -1)
        is_turn = direction * self.direction < 0
        step_size = jnp.where(is_short, 2.0, 0.5) * self.step_size
        # Coming from below the last good step is the one before; from above, the one just tried.
        step_size = jnp.where(is_turn & is_short, self.step_size, step_size)
        is_over = is_turn | (step_size >= longest)
        found = MagnitudeSearch(jnp.minimum(step_size, longest), direction, is_over)
        return MagnitudeSearch(
            *(jnp.where(self.is_over, a, b) for a, b in zip(self, found, strict=True))
        )


class FailureSearch(NamedTuple):
    """A step with a bearable rate of failures, by stochastic approximation, and its average."""

    log_step_size: Float[Array, ""]
    log_step_size_avg: Float[Array, ""]
    age: Int[Array, ""]

    @property
    def bearable(self) -> Float[Array, ""]:
        """Somewhat less than the average: half of the steps averaged over were too long."""
        return self.log_step_size_avg - MARGIN

    @classmethod
    def begin(cls, step_size) -> "FailureSearch":
        """Before the first transition of a window."""
        return cls(jnp.log(step_size), jnp.log(step_size), jnp.asarray(0))

    def update(self, failed: Bool[Array, ""], used: Float[Array, ""]) -> "FailureSearch":
        """The search after a transition with step size `used`.

        Failures are rare, so that each weighs much more than a success. A failure at a smaller step
        than this search would allow says that the search is too bold.
        """
        age = self.age + 1
        gain = _SETBACK * age ** (-0.4)
        at = jnp.where(failed, jnp.minimum(self.log_step_size, jnp.log(used)), self.log_step_size)
        at = at - gain * (failed - _WANTED_FAILURES)
        weight = age ** (-0.75)
        average = weight * at + (1 - weight) * self.log_step_size_avg
        return FailureSearch(at, average, age)
