"""Delayed rejection: where a trajectory is rejected, a second one with shorter steps is tried.

A density may be much narrower in its tails than elsewhere. Steps that suit the rest never lead out
of them; shorter steps do, and a chain whose first trajectory is accepted makes none of them. (Under
`vmap` it waits for the chains that do.)

Let S₁ and S₂ be the maps from the start of a trajectory to its end with the momentum reversed. They
are their own inverses. The second proposal z = S₂(x) is accepted with probability
min{1, π(z)(1 − a₁(z)) / [π(x)(1 − a₁(x))]}, where a₁(x) = min{1, π(S₁(x))/π(x)} is the probability
with which the first is accepted. So a third trajectory is needed, S₁(z): from z back by the longer
steps (Tierney & Mira 1999; Modi, Barnett & Carpenter 2023).
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from coarea.dynamics.integrator import PhaseState


class Outcome(NamedTuple):
    """What became of the first trajectory, and of the second if there was one."""

    chosen: PhaseState
    first: PhaseState
    error: Float[Array, ""]  # in energy, of the first trajectory
    is_accepted: Bool[Array, ""]
    num_steps: Int[Array, ""]
    work: Int[Array, ""]


def accept_or_retry(
    follow: Callable[[PhaseState, Float[Array, ""]], tuple[PhaseState, Int[Array, ""]]],
    start: PhaseState,
    step_size: Float[Array, ""],
    shorter: Float[Array, ""],
    levels: Float[Array, "2"],
) -> Outcome:
    """Follow a trajectory with a step size; if it is rejected, one with a `shorter` step size.

    `follow(state, step size)` returns the end of a trajectory and its number of steps. If `shorter`
    is zero there is no second try. `levels` are uniform random numbers.
    """

    def unfinished(carry):
        return carry.number < _OVER

    # One loop for all three trajectories, so that a step is compiled once.
    def next_trajectory(now: _Trajectories) -> _Trajectories:
        end, count = follow(now.at, now.step_size)
        is_first, is_second = now.number == 0, now.number == 1
        first, second = _where(is_first, end, now.first), _where(is_second, end, now.second)
        retries = (levels[0] >= acceptance(start, first)) & (shorter > 0)
        return _Trajectories(
            number=jnp.where(is_first & ~retries, _OVER, now.number + 1),
            at=_where(is_first, start, end),
            step_size=jnp.where(is_first, shorter, -step_size),
            first=first,
            second=second,
            third=_where(is_first, start, end),
            num_steps=now.num_steps + count,
        )

    zero = jnp.zeros((), int)
    begin = _Trajectories(zero, start, step_size, start, start, start, zero)
    found = jax.lax.while_loop(unfinished, next_trajectory, begin)
    first, second, third = found.first, found.second, found.third
    is_first_accepted = levels[0] < acceptance(start, first)
    # Here −H is the logarithm of π.
    log_ratio = _rejected(second, third) - _rejected(start, first) - energy_error(start, second)
    ratio = jnp.exp(jnp.minimum(0.0, log_ratio))
    is_second_accepted = ~is_first_accepted & (shorter > 0) & (levels[1] < ratio)
    chosen = _where(is_first_accepted, first, _where(is_second_accepted, second, start))
    return Outcome(
        chosen,
        first,
        energy_error(start, first),
        is_first_accepted | is_second_accepted,
        found.num_steps,
        first.work + third.work,
    )


class _Trajectories(NamedTuple):
    """The number of the next trajectory, where and with which step it begins, and earlier ends."""

    number: Int[Array, ""]
    at: PhaseState
    step_size: Float[Array, ""]
    first: PhaseState
    second: PhaseState
    third: PhaseState
    num_steps: Int[Array, ""]


_OVER = 3


def energy_error(start: PhaseState, end: PhaseState) -> Float[Array, ""]:
    """The change of energy; infinite for a trajectory that failed."""
    error = end.energy - start.energy
    return jnp.where(end.failed | jnp.isnan(error), jnp.inf, error)


def acceptance(start: PhaseState, end: PhaseState) -> Float[Array, ""]:
    """The probability with which the end of a trajectory is accepted."""
    return jnp.exp(jnp.minimum(0.0, -energy_error(start, end)))


def _rejected(start: PhaseState, end: PhaseState) -> Float[Array, ""]:
    """The logarithm of the probability that a trajectory is rejected."""
    return jnp.log1p(-acceptance(start, end))


def _where(condition: Bool[Array, ""], one: PhaseState, other: PhaseState) -> PhaseState:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), one, other)
