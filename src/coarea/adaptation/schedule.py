"""The setting that transitions use: a step size, and a range of numbers of steps."""

from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, UInt32

from coarea.kernels.kernel import Tuning
from coarea.manifolds.rescaling import Rescaling

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

    The numbers of steps are spread evenly by a quasi-random sequence, which is the same for all
    chains: in lockstep each chain would wait for the longest trajectory.
    """

    step_size: Float[Array, ""]
    fewest: Int[Array, ""]
    most: Int[Array, ""]
    offset: UInt32[Array, ""]  # where the quasi-random sequence begins
    rescaling: Rescaling
    retries: bool = eqx.field(static=True, default=False)

    @classmethod
    def of(cls, setting: Setting, offset: int, rescaling: Rescaling, retries: bool) -> "Schedule":
        """The schedule that uses one setting."""
        return cls(
            jnp.asarray(setting.step_size, float),
            jnp.asarray(setting.fewest, int),
            jnp.asarray(setting.most, int),
            jnp.asarray(offset % 2**32, jnp.uint32),
            rescaling,
            retries,
        )

    def tuning(self, transition: Int[Array, ""]) -> Tuning:
        """The parameters of a transition."""
        quantile = evenly_spread(transition, self.offset)
        num_steps = self.fewest + (quantile * (self.most + 1 - self.fewest)).astype(int)
        retry = None
        if self.retries:
            often, rarely = (
                (transition + 1) % every == 0 for every in (_RETRY_EVERY, _RETRY_EVERY**2)
            )
            shorter = jnp.where(rarely, _SHORTER**-2, 1 / _SHORTER)
            retry = jnp.where(often, self.step_size * shorter, 0.0)
        return Tuning(
            self.step_size,
            jnp.asarray(jnp.inf),
            jnp.asarray(False),
            num_steps=jnp.minimum(num_steps, self.most),
            retry_step_size=retry,
        )


def evenly_spread(transition: Int[Array, ""], offset: UInt32[Array, ""]) -> Float[Array, ""]:
    """A number from 0 to 1 for each transition: multiples of the golden ratio, modulo one.

    The sequence fills the interval evenly.
    """
    part = transition.astype(jnp.uint32) * np.uint32(0x9E3779B9) + offset
    return part / jnp.asarray(2.0**32, float)
