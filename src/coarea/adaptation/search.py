"""The search for the setting that explores a posterior most efficiently."""

import math
from collections.abc import Callable, Iterable

from coarea.adaptation.cost import TransitionCost
from coarea.adaptation.efficiency import Trial, scores
from coarea.adaptation.schedule import Setting

# The most settings that are tried before the next ones are chosen, and how often they are chosen.
_MOST_AT_ONCE = 8
_ROUNDS = 4
# The best settings are tried once more, because the best of many estimates is too good.
_FINALISTS = 3
# A finalist whose efficiency is below this fraction of the best one's is not tried again.
_WORTH_ANOTHER_TRIAL = 0.6
# Step sizes that differ by less than this, in their logarithm, are the same.
_ALIKE = 0.1
# The longest trajectories that are tried before it is known that long ones pay.
_MOST_STEPS_AT_FIRST = 32


class SettingSearch:
    """Says which settings to try next, and remembers what their trials brought.

    `allowed(step size, steps)` makes the setting that target and user allow, nearest to what is
    asked for. `start` has a step size with a safe acceptance rate.
    """

    def __init__(
        self, start: Setting, allowed: Callable[[float, float], Setting], cost: TransitionCost
    ):
        self._allowed, self._cost = allowed, cost
        self._trials: dict[Setting, list[Trial]] = {}
        self._scores: dict[Setting, float] = {}
        self._proposed = self._first_candidates(start)
        self._rounds, self._has_ended = 0, False
        self._start = start

    @property
    def best(self) -> Setting:
        """The most efficient setting so far."""
        return max(self._scores, key=self._scores.__getitem__, default=self._start)

    @property
    def efficiency(self) -> float | None:
        """Effective draws per operation; None if nothing was tried."""
        return self._scores[self.best] if self._scores else None

    @property
    def trials_of_best(self) -> list[Trial]:
        """What was seen of the most efficient setting."""
        return self._trials.get(self.best, [])

    @property
    def proposals(self) -> list[Setting]:
        """The settings to try next; none if the search is over."""
        return self._proposed

    def record(self, setting: Setting, trial: Trial) -> None:
        """Remember a trial."""
        self._trials.setdefault(setting, []).append(trial)

    def conclude_round(self) -> None:
        """Judge all trials, and choose what to try next."""
        settings = list(self._trials)
        found = scores([self._trials[setting] for setting in settings])
        self._scores = dict(zip(settings, found, strict=True))
        self._rounds += 1
        new = [s for s in self._neighbours(self.best) if self._is_new(s) and self._may_be_best(s)]
        if self._has_ended:
            self._proposed = []
        elif new and self._rounds < _ROUNDS:
            self._proposed = new[:_MOST_AT_ONCE]
        else:
            self._has_ended = True
            self._proposed = self._finalists()

    def _finalists(self) -> list[Setting]:
        ranked = sorted(self._scores, key=self._scores.__getitem__, reverse=True)[:_FINALISTS]
        least = _WORTH_ANOTHER_TRIAL * self._scores[ranked[0]]
        close = [setting for setting in ranked if self._scores[setting] >= least]
        return close if len(close) > 1 else []

    def _first_candidates(self, start: Setting) -> list[Setting]:
        """Trajectories as long as the start's and longer, by several step sizes; single steps."""
        size, steps = start.step_size, start.mean_steps
        pairs = [(size, steps), (2 * size, steps / 2), (size / 2, 2 * steps)]
        pairs += [(size, 4 * steps), (size / 2, 8 * steps)]
        pairs += [(size * 2**k, 1) for k in range(3)]
        capped = [(h, min(n, _MOST_STEPS_AT_FIRST)) for h, n in pairs]
        return self._distinct(capped)[:_MOST_AT_ONCE]

    def _neighbours(self, at: Setting) -> list[Setting]:
        size, steps = at.step_size, at.mean_steps
        root = math.sqrt(2)
        return self._distinct(
            [
                (root * size, steps),
                (size / root, steps),
                (size, 2 * steps),
                (size, steps / 2),
                (root * size, steps / root),
                (size / root, root * steps),
            ]
        )

    def _distinct(self, pairs: Iterable[tuple[float, float]]) -> list[Setting]:
        found: list[Setting] = []
        for size, steps in pairs:
            setting = self._allowed(size, steps)
            if not any(_is_same(setting, other) for other in found):
                found.append(setting)
        return found

    def _is_new(self, setting: Setting) -> bool:
        return not any(_is_same(setting, other) for other in self._trials)

    def _may_be_best(self, setting: Setting) -> bool:
        """Whether it would be better than the best if all of its draws were independent."""
        return 1 / self._cost.least(setting.mean_steps) > (self.efficiency or 0.0)


def _is_same(a: Setting, b: Setting) -> bool:
    return a[1:] == b[1:] and abs(math.log(a.step_size / b.step_size)) < _ALIKE
