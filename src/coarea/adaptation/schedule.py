"""The setting that transitions use: a step size, and a range of numbers of steps."""

from collections.abc import Sequence
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, UInt32

from coarea.kernels.kernel import Tuning
from coarea.manifolds.rescaling import Rescaling

# The most settings of a schedule.
MOST_SEGMENTS = 8
# Every 4th transition that is rejected is tried again with steps 5 times shorter, every 16th with
# steps 25 times shorter. They lead out of places narrower than where the step size was found.
_RETRY_EVERY = 4
_SHORTER = 5.0


class Setting(NamedTuple):
    """A step size, and the range from which the number of steps is taken."""

    step_size: float
    fewest: int
    most: int

    @property
    def mean_steps(self) -> float:
        """The mean number of steps."""
        return 0.5 * (self.fewest + self.most)

    def in_words(self) -> str:
        """For people: `4 to 12 steps of size 0.1`."""
        size, fewest, most = self
        steps = f"{fewest} to {most} steps" if most > fewest else f"{most} step{'s'[: most > 1]}"
        return f"{steps} of size {size:.3g}"


def spread_about(step_size: float, num_steps: float) -> Setting:
    """A number of steps with this mean, from half of it to one and a half times it.

    Trajectories of one length may resonate with the target: they would return to where they began.
    """
    middle = max(1, round(num_steps))
    half = middle // 2
    return Setting(step_size, middle - half, middle + half)


class Schedule(eqx.Module):
    """What transitions use. All chains of a run share it, and it changes between blocks only.

    It has a fixed number of segments, so that several settings are tried in one block. The numbers
    of steps are spread evenly by a quasi-random sequence, which is the same for all chains: in
    lockstep each chain would wait for the longest trajectory.
    """

    ends: Int[Array, " segments"]  # the number of the first transition after each segment
    step_size: Float[Array, " segments"]
    fewest: Int[Array, " segments"]
    most: Int[Array, " segments"]
    offset: UInt32[Array, ""]  # where the quasi-random sequence begins
    rescaling: Rescaling
    retries: bool = eqx.field(static=True, default=False)

    @classmethod
    def of(
        cls,
        segments: Sequence[tuple[Setting, int]],
        first: int,
        offset: int,
        rescaling: Rescaling,
        retries: bool,
    ) -> "Schedule":
        """Settings with the numbers of transitions that use them, the last from then on.

        `first` is the number of the first transition, and there are at most `MOST_SEGMENTS`.
        """
        settings = [setting for setting, _ in segments]
        counts = [count for _, count in segments]
        padded = settings + settings[-1:] * (MOST_SEGMENTS - len(settings))
        ends = first + np.cumsum(counts + [0] * (MOST_SEGMENTS - len(settings)))
        return cls(
            jnp.asarray(ends, int),
            jnp.asarray([setting.step_size for setting in padded], float),
            jnp.asarray([setting.fewest for setting in padded], int),
            jnp.asarray([setting.most for setting in padded], int),
            jnp.asarray(offset % 2**32, jnp.uint32),
            rescaling,
            retries,
        )

    def tuning(self, transition: Int[Array, ""]) -> Tuning:
        """The parameters of a transition."""
        number = jnp.sum(transition >= self.ends[:-1])
        is_current = jnp.arange(MOST_SEGMENTS) == number
        step_size, fewest, most = (
            jnp.sum(jnp.where(is_current, x, 0)) for x in (self.step_size, self.fewest, self.most)
        )
        quantile = evenly_spread(transition, self.offset)
        num_steps = fewest + (quantile * (most + 1 - fewest)).astype(int)
        retry = None
        if self.retries:
            often, rarely = (
                (transition + 1) % every == 0 for every in (_RETRY_EVERY, _RETRY_EVERY**2)
            )
            shorter = jnp.where(rarely, _SHORTER**-2, 1 / _SHORTER)
            retry = jnp.where(often, step_size * shorter, 0.0)
        return Tuning(
            step_size,
            jnp.asarray(jnp.inf),
            jnp.asarray(False),
            num_steps=jnp.minimum(num_steps, most),
            retry_step_size=retry,
        )


def evenly_spread(transition: Int[Array, ""], offset: UInt32[Array, ""]) -> Float[Array, ""]:
    """A number from 0 to 1 for each transition: multiples of the golden ratio, modulo one.

    The sequence fills the interval evenly.
    """
    part = transition.astype(jnp.uint32) * np.uint32(0x9E3779B9) + offset
    return part / jnp.asarray(2.0**32, float)
