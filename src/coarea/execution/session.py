"""The frame of every run of chains: places, precision, progress, and the draws with their facts."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from coarea.execution.blocks import AbstractTransition, longest_block
from coarea.execution.memory import check_memory
from coarea.execution.places import Devices, Place, places_for
from coarea.execution.progress import Display
from coarea.execution.run import Group, RunResult, draw
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
        self.longest_block = longest_block(size, len(places[0].chains))
        self._began = time.perf_counter()

    @property
    def on_cpu(self) -> bool:
        """Whether chains run on a CPU."""
        return not self.places[0].is_accelerator

    def run(
        self, transition: AbstractTransition, begin: Callable[[Place], Callable[[], Any]]
    ) -> tuple[RunResult, list[Group]]:
        """Run all chains. `begin` gives for each place a function that makes its chains there."""
        self._display.compiling()
        _, warmup, chains, *_ = self.settings
        draws = self.settings.draws
        groups = [Group(place, begin(place), warmup, draws) for place in self.places]
        report = self._display.update
        return draw(transition, groups, chains, draws, self.settings.precision, report)

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
    total = (settings.warmup + settings.draws) * sum(len(place.chains) for place in places)
    with (
        computing_in(settings.precision),
        one_blas_thread(),
        Display(settings.progress, total) as display,
    ):
        yield Session(settings, places, size, display)
