"""The frame of every run of chains: places, precision, progress, and the draws with their facts."""

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from coarea.adaptation.pooled import Records, Round, Tuned
from coarea.execution.blocks import AbstractTransition, longest_block
from coarea.execution.memory import check_memory
from coarea.execution.places import Devices, Place, places_for
from coarea.execution.progress import Display
from coarea.execution.rounds import run_rounds
from coarea.execution.run import Group, RunResult, draw
from coarea.execution.scheduled import ScheduledTransition
from coarea.precision import Precision, computing_in
from coarea.xla import one_blas_thread


class RunSettings(NamedTuple):
    """What every run of chains is told."""

    draws: int
    warmup: int
    chains: int
    seed: int
    devices: Devices = None
    precision: Precision = "float64"
    progress: bool = True


class Session:
    """A run of chains under way."""

    def __init__(self, settings: RunSettings, places: list[Place], size: int, display: Display):
        self.settings, self.places, self._display = settings, places, display
        self._size = size
        self.longest_block = longest_block(size, len(places[0].chains))
        self._began = time.perf_counter()

    def with_width(self, vmap_width: int) -> "Session":
        """The same run with another number of chains vectorised on a CPU."""
        places = places_for(self.settings.chains, vmap_width, self.settings.devices)
        other = Session(self.settings, places, self._size, self._display)
        other._began = self._began
        return other

    @property
    def on_cpu(self) -> bool:
        """Whether chains run on a CPU."""
        return not self.places[0].is_accelerator

    def run(
        self,
        transition: AbstractTransition,
        begin: Callable[[Place], Callable[[], Any]],
    ) -> tuple[RunResult, list[Group]]:
        """Run all chains: the transitions of warm-up, and the draws.

        `begin` gives for each place a function that makes its chains there.
        """
        return self.draw(transition, self.groups(begin, self.settings.warmup))

    def groups(self, begin: Callable[[Place], Callable[[], Any]], warmup: int) -> list[Group]:
        """The chains of each place, which make `warmup` transitions before their first draw."""
        self._display.compiling()
        return [Group(place, begin(place), warmup, self.settings.draws) for place in self.places]

    def warm_up(
        self,
        transition: ScheduledTransition,
        groups: Sequence[Group],
        rounds: Generator[Round, Records, Tuned],
    ) -> tuple[ScheduledTransition, Tuned]:
        """Make the rounds of a warm-up that all chains share; the transition for the draws."""
        _, _, chains, *_, precision, _ = self.settings
        return run_rounds(transition, groups, rounds, chains, precision, self._display.update)

    def draw(
        self, transition: AbstractTransition, groups: Sequence[Group]
    ) -> tuple[RunResult, list[Group]]:
        """All draws, and the groups that made some."""
        draws, _, chains, *_, precision, _ = self.settings
        return draw(transition, groups, chains, draws, precision, self._display.update)

    def facts(self) -> dict[str, Any]:
        """The attributes of the result that every run has."""
        return {
            "seed": self.settings.seed,
            "tuning_steps": self.settings.warmup,
            "sampling_time": time.perf_counter() - self._began,
        }


@contextmanager
def session(settings: RunSettings, vmap_width: int, size: int) -> Iterator[Session]:
    """A context in which chains run: in the precision, with progress shown.

    On a CPU at most `vmap_width` chains are vectorised; each draw keeps `size` numbers.
    """
    check_memory(size, settings.chains, settings.draws)
    places = places_for(settings.chains, vmap_width, settings.devices)
    running = sum(len(place.chains) for place in places)
    with (
        computing_in(settings.precision),
        one_blas_thread(),
        Display(settings.progress, settings.warmup * running, settings.draws * running) as display,
    ):
        yield Session(settings, places, size, display)
