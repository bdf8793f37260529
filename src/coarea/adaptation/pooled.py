"""Warm-up pooled over all chains: scales, then the step size and length that explore best.

It is a coroutine: it asks for rounds of transitions, is sent what they brought, and ends with the
schedule that the draws are made with. It ends when it is done; `length` is an upper limit.
"""

import math
from collections.abc import Generator, Sequence
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from coarea.adaptation.cost import TransitionCost
from coarea.adaptation.efficiency import Trial
from coarea.adaptation.fisher import DRAWS_PER_DIMENSION, matrix_from, scales_from
from coarea.adaptation.schedule import Schedule, Setting, spread_about
from coarea.adaptation.search import SettingSearch
from coarea.manifolds.rescaling import Rescaling

# Of the first step, relative to the size of a position, and of the first step after scaling.
_FIRST_STEP = 0.1
_FIRST_SCALED_STEP = 0.3
# The acceptance rate from whose step size the search for the best setting starts.
_SAFE_ACCEPTANCE = 0.8
# This fraction of chains may hardly move before the steps are shortened for them.
_LOW_CHAINS = 0.1
# Transitions of a chain between two changes of the step size, in a warm-up of the usual length.
_SHORT_ROUND = 5
# The steps of a trajectory while nothing is known of its best length, and the most before that is
# searched for.
_FIRST_STEPS = 8
_MOST_STEPS_AT_FIRST = 32
_MOST_STEPS = 1024
# The transitions of a trial, over all chains, and the fewest and the most of each chain, in a
# warm-up of the usual length. In a longer one they are more.
_USUAL_LENGTH = 500
_JUMPS = 100
_SHORT_TRIAL, _LONG_TRIAL = 16, 40
# If there is time for shorter trials only, they are left out; each round takes at most a share of
# what is left.
_SHORTEST_TRIAL = 8
_SHARE = 0.7
# The transitions of each window after which scales are estimated, relative to the longest warm-up;
# and the transitions without scales to estimate.
_WINDOWS = (0.03, 0.05, 0.08, 0.12)
_SETTLING = 0.1
# Scales of inputs on a manifold that differ by less than this factor are left alone.
_ALIKE = 3.0

MassKind = Literal["none", "diagonal", "dense"]


class Round(NamedTuple):
    """How many transitions each chain makes next."""

    schedule: Schedule
    length: int


class Records(NamedTuple):
    """What a round brought. Axes are (chain, draw, …)."""

    values: np.ndarray
    acceptance_rate: np.ndarray
    diverged: np.ndarray  # in energy
    num_steps: np.ndarray
    projections: np.ndarray  # what they cost, in evaluations of the residual
    positions: np.ndarray | None = None
    gradients: np.ndarray | None = None


class Tuned(NamedTuple):
    """The result: what the draws are made with, after how many transitions, and how good it is."""

    schedule: Schedule
    setting: Setting
    transitions: int
    trials: Sequence[Trial]
    """What was seen of it; none if it was not compared with others."""
    efficiency: float | None
    """Effective draws per operation; None if it was not measured."""


class Situation(NamedTuple):
    """What the warm-up must know of target and kernel."""

    num_inputs: int
    longest_step: float
    position_scale: float
    cost: TransitionCost
    crossing_time: float | None  # of a trajectory; None if it is not known
    on_manifold: bool
    mass: MassKind
    is_scaled: np.ndarray  # which inputs a diagonal mass scales
    step_size: float | None  # given by the user
    num_steps: tuple[int, int] | None  # likewise
    is_cheap: bool  # whether a warm-up of the usual length costs next to nothing


class _OutOfTransitions(Exception):
    """The warm-up may make no more transitions."""


class PooledWarmup:
    """The warm-up of one run."""

    def __init__(self, about: Situation, length: int, chains: int, offset: int):
        self._about, self._length, self._chains, self._offset = about, length, chains, offset
        self._used = 0
        self._rescaling = no_rescaling(about.mass, about.is_scaled)
        self._last: np.ndarray | None = None  # the values of each chain's last draw
        self._step_size = _FIRST_STEP  # of the last round

    @property
    def reads_positions(self) -> bool:
        """Whether rounds must bring positions and gradients."""
        return self._about.mass != "none"

    @property
    def starts_anywhere(self) -> bool:
        """Whether warm-up is cheap enough to begin at prior draws.

        On a manifold it never is: chains that begin where steps fail have no second try.
        """
        about = self._about
        return about.is_cheap and not about.on_manifold and self._length >= _USUAL_LENGTH

    def cost_of(self, setting: Setting) -> float:
        """About how many operations a transition with this setting takes."""
        return self._about.cost.least(setting.mean_steps)

    def first(self) -> Schedule:
        """The schedule that chains begin with."""
        return self._schedule(Setting(_FIRST_STEP, 1, 1))

    def rounds(
        self, known: tuple[Setting, Rescaling] | None = None
    ) -> Generator[Round, Records, Tuned]:
        """The rounds of this warm-up. `known` is what an earlier run found."""
        setting = None
        if known is not None:
            setting, self._rescaling = known
        if setting is None:
            try:
                step_size = self._about.step_size
                if step_size is None or self._about.mass != "none":
                    step_size = yield from self._settled()
            except _OutOfTransitions:
                step_size = self._step_size
            setting = self._allowed(step_size, self._typical_steps(step_size))
        return (yield from self._compared(setting))

    # Before the comparison: a safe step size, and scales.

    def _settled(self) -> Generator[Round, Records, float]:
        """Reach the bulk of the posterior with a safe step size, and scale the inputs."""
        about = self._about
        first = about.step_size or min(_FIRST_STEP * about.position_scale, about.longest_step / 4)
        step_size = yield from self._doubled_or_halved(first)
        if about.mass == "none":
            _, step_size = yield from self._settling(step_size, self._portion(_SETTLING))
            return step_size
        for portion in _WINDOWS:
            count = self._portion(portion)
            if about.mass == "dense":  # enough draws for the estimate, if there is time
                enough = math.ceil(1.5 * DRAWS_PER_DIMENSION * about.num_inputs / self._chains)
                count = min(max(count, enough), self._portion(2 * portion))
            records, step_size = yield from self._settling(step_size, count)
            rescaling = self._estimated(records)
            if rescaling is not None:
                self._rescaling = rescaling
                first = about.step_size or min(_FIRST_SCALED_STEP, about.longest_step / 2)
                self._step_size = first  # earlier ones were those of other scales
                step_size = yield from self._doubled_or_halved(first)
        _, step_size = yield from self._settling(step_size, self._portion(_SETTLING / 2))
        return step_size

    def _doubled_or_halved(self, step_size: float) -> Generator[Round, Records, float]:
        """Double a step size while it is accepted, or halve it until it is."""
        if self._about.step_size is not None:
            return step_size
        was_accepted = None
        for _ in range(self._length // 8):
            setting = self._allowed(step_size, 2)
            records = yield from self._run(setting, 2)
            is_accepted = self._bearable(records) >= _SAFE_ACCEPTANCE - 0.1
            if was_accepted is not None and is_accepted != was_accepted:
                return step_size if is_accepted else step_size / 2
            if is_accepted and step_size >= self._about.longest_step:
                return step_size
            step_size = min(step_size * (2 if is_accepted else 0.5), self._about.longest_step)
            was_accepted = is_accepted
        return step_size

    def _settling(
        self, step_size: float, count: int
    ) -> Generator[Round, Records, tuple[list[Records], float]]:
        """Transitions with a step size that approaches the safe acceptance rate.

        Returns what they brought, and the mean of the later steps.
        """
        found, log_step = [], math.log(step_size)
        later = []
        length = max(_SHORT_ROUND, round(_SHORT_ROUND * self._length / _USUAL_LENGTH))
        for number in range(max(1, round(count / length))):
            size = math.exp(log_step)
            setting = self._allowed(size, min(self._typical_steps(size), _MOST_STEPS_AT_FIRST))
            found.append((yield from self._run(setting, length)))
            if self._about.step_size is None:
                rate = self._bearable(found[-1])
                log_step += 1.5 * (rate - _SAFE_ACCEPTANCE) / (1 + number) ** 0.5
                log_step = min(log_step, math.log(self._about.longest_step))
            later.append(log_step)
        return found, math.exp(np.mean(later[len(later) // 2 :]))

    def _bearable(self, records: Records) -> float:
        """The mean acceptance rate; less if some chains on a density hardly move.

        Chains that begin where a density is narrow need shorter steps than others to leave.
        """
        rates = np.nan_to_num(records.acceptance_rate)
        mean = float(np.mean(rates))
        if self._about.on_manifold:
            return mean
        low = float(np.quantile(np.mean(rates, axis=1), _LOW_CHAINS, method="lower"))
        return min(mean, _SAFE_ACCEPTANCE - 0.5 + 2 * low)

    def _estimated(self, records: list[Records]) -> Rescaling | None:
        """Scales from a window's draws; None if they say nothing new."""
        if not self._about.on_manifold:
            records = _that_moved(records)
        x = np.concatenate([_rows(r.positions) for r in records])
        about = self._about
        if about.on_manifold and about.mass == "diagonal":
            return self._on_manifold(x)
        # In sampler space gradients on a manifold are tangent to it, as differences of draws are.
        g = np.concatenate([_rows(r.gradients) for r in records])
        R = np.asarray(self._rescaling.matrix)
        if about.mass == "diagonal":
            scales = scales_from(x / R, g)
            return None if scales is None else Rescaling(jnp.asarray(R * scales))
        matrix = matrix_from(np.linalg.solve(R, x.T).T, g)
        return None if matrix is None else Rescaling(jnp.asarray(R @ matrix))

    def _on_manifold(self, x: np.ndarray) -> Rescaling | None:
        """Standard deviations, if they differ much. Normal inputs keep their scale, one."""
        is_scaled = self._about.is_scaled
        spread = np.std(x[np.all(np.isfinite(x), axis=1)], axis=0)
        middle = np.exp(np.mean(np.log(spread[is_scaled]))) if is_scaled.all() else 1.0
        ratio = spread / middle
        if not np.all(np.isfinite(ratio) & (ratio > 0)):
            return None
        if np.all((ratio < _ALIKE) & (ratio > 1 / _ALIKE) | ~is_scaled):
            return None
        scales = np.where(is_scaled, spread, 1.0)
        return Rescaling(jnp.asarray(scales), keeps_normals=not is_scaled.all())

    # The comparison.

    def _compared(self, start: Setting) -> Generator[Round, Records, Tuned]:
        """Try settings near the start, then near the best of them, and so on."""
        search = SettingSearch(start, self._allowed, self._about.cost)
        longer = max(1.0, self._length / _USUAL_LENGTH)
        wanted = min(max(longer * _JUMPS / self._chains, _SHORT_TRIAL), longer * _LONG_TRIAL)
        wanted = math.ceil(wanted)
        while search.proposals:
            if len(search.proposals) == 1 and search.efficiency is None:
                break  # the user and the target leave no choice
            left = int(_SHARE * (self._length - self._used)) // len(search.proposals)
            if min(wanted, left) < _SHORTEST_TRIAL:
                break
            for setting in search.proposals:
                search.record(setting, (yield from self._trial(setting, min(wanted, left))))
            search.conclude_round()
        return self._tuned(search.best, search.trials_of_best, search.efficiency)

    def _trial(self, setting: Setting, count: int) -> Generator[Round, Records, Trial]:
        before = self._last
        records = yield from self._run(setting, count)
        work = self._about.cost.total(records.num_steps, records.projections)
        values, rates, diverged = records.values, records.acceptance_rate, records.diverged
        if before is None:
            return Trial(values, work[:, 1:], rates[:, 1:], diverged[:, 1:])
        return Trial(np.concatenate([before[:, None], values], axis=1), work, rates, diverged)

    # What all of them use.

    def _run(self, setting: Setting, count: int) -> Generator[Round, Records, Records]:
        count = min(count, self._length - self._used)
        if count <= 0:
            raise _OutOfTransitions
        records = yield Round(self._schedule(setting), count)
        self._used += count
        self._step_size = setting.step_size
        self._last = records.values[:, -1]
        return records

    def _tuned(self, setting: Setting, trials: Sequence[Trial], efficiency: float | None) -> Tuned:
        return Tuned(self._schedule(setting), setting, self._used, trials, efficiency)

    def _schedule(self, setting: Setting) -> Schedule:
        retries = not self._about.on_manifold
        return Schedule.of(setting, self._offset, self._rescaling, retries)

    def _allowed(self, step_size: float, num_steps: float) -> Setting:
        """The setting with what the user gave, and no longer step than makes sense."""
        about = self._about
        step_size = min(step_size, about.longest_step)
        step_size = step_size if about.step_size is None else about.step_size
        if about.num_steps is not None:
            return Setting(step_size, *about.num_steps)
        return spread_about(step_size, min(max(num_steps, 1), _MOST_STEPS / 2))

    def _typical_steps(self, step_size: float) -> float:
        time = self._about.crossing_time
        return _FIRST_STEPS if time is None else time / step_size

    def _portion(self, fraction: float) -> int:
        return max(_SHORT_ROUND, round(fraction * self._length))


def no_rescaling(mass: MassKind, is_scaled: np.ndarray) -> Rescaling:
    """What warm-up begins with, in the form of what it may find."""
    if mass == "none":
        return Rescaling()
    if mass == "dense":
        return Rescaling(jnp.eye(len(is_scaled)))
    return Rescaling(jnp.ones(len(is_scaled)), keeps_normals=not is_scaled.all())


def _that_moved(records: Sequence[Records]) -> list[Records]:
    """The records of the chains that moved; of all if none did."""
    moved = np.any([np.ptp(r.values, axis=1).any(axis=1) for r in records], axis=0)
    if not np.any(moved):
        return list(records)
    return [jax.tree.map(lambda x: x[moved], r) for r in records]


def _rows(x: np.ndarray | None) -> np.ndarray:
    assert x is not None
    return x.reshape(-1, x.shape[-1])
