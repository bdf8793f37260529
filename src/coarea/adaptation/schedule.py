"""The setting that transitions use: a step size, and a range of numbers of steps."""

from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, UInt32

from coarea.kernels.kernel import Tuning
from coarea.manifolds.rescaling import Rescaling

# A density may be much narrower in its tails than where a step size was found. Leapfrog steps of
# that size then never lead out of them. One transition of so many has steps shorter by this factor.
_SHORT_EVERY = 4
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
        """For people: `4 to 12 steps of 0.1`."""
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

    The numbers of steps are spread evenly by a quasi-random sequence, which is the same for all
    chains: in lockstep each chain would wait for the longest trajectory.
    """

    step_size: Float[Array, ""]
    fewest: Int[Array, ""]
    most: Int[Array, ""]
    offset: UInt32[Array, ""]  # where the quasi-random sequence begins
    rescaling: Rescaling
    has_short_steps: bool = eqx.field(static=True, default=False)

    @classmethod
    def of(
        cls, setting: Setting, offset: int, rescaling: Rescaling, has_short_steps: bool
    ) -> "Schedule":
        """The schedule that uses one setting."""
        return cls(
            jnp.asarray(setting.step_size, float),
            jnp.asarray(setting.fewest, int),
            jnp.asarray(setting.most, int),
            jnp.asarray(offset % 2**32, jnp.uint32),
            rescaling,
            has_short_steps,
        )

    def tuning(self, transition: Int[Array, ""]) -> Tuning:
        """The parameters of a transition."""
        quantile = evenly_spread(transition, self.offset)
        num_steps = self.fewest + (quantile * (self.most + 1 - self.fewest)).astype(int)
        never, step_size = jnp.asarray(jnp.inf), self.step_size
        if self.has_short_steps:
            is_short = transition % _SHORT_EVERY == _SHORT_EVERY - 1
            step_size = jnp.where(is_short, step_size / _SHORTER, step_size)
        return Tuning(step_size, never, jnp.asarray(False), None, jnp.minimum(num_steps, self.most))


def evenly_spread(transition: Int[Array, ""], offset: UInt32[Array, ""]) -> Float[Array, ""]:
    """A number from 0 to 1 for each transition: multiples of the golden ratio, modulo one.

    The sequence fills the interval evenly.
    """
    part = transition.astype(jnp.uint32) * np.uint32(0x9E3779B9) + offset
    return part / jnp.asarray(2.0**32, float)
