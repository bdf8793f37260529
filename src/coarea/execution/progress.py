"""The progress display: draws per second, acceptance rate and solver failures of a run."""

import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from rich.progress import Progress


class BlockReport(NamedTuple):
    """Statistics of a finished block, over all of its chains."""

    is_warmup: bool
    transitions: int
    accepted: float
    failures: int


class Display:
    """One progress bar for all chains, shown only in a terminal or a notebook.

    Both numbers are of transitions of all chains. Warm-up may take fewer or more than expected.
    """

    def __init__(self, wanted: bool, warmup: int, draws: int):
        self._bar = _bar() if wanted else None
        self._done, self._expected, self._draws = 0, warmup + draws, draws
        if self._bar is not None:
            self._task = self._bar.add_task("starting", total=self._expected, health="")
        self._begin("starting")

    def __enter__(self):
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_):
        if self._bar is not None:
            self._bar.stop()

    def _begin(self, phase: str) -> None:
        self._phase, self._since = phase, time.perf_counter()
        self._transitions, self._accepted, self._failures = 0, 0.0, 0

    def compiling(self) -> None:
        """Show that the start points are found and the sampler is being compiled."""
        self._begin("compiling")
        if self._bar is not None:
            self._bar.update(self._task, description="compiling")

    def update(self, report: BlockReport) -> None:
        """Add the statistics of a block."""
        if self._bar is None:
            return
        phase = "warm-up" if report.is_warmup else "sampling"
        if phase == "sampling" and phase != self._phase:
            self._expected = self._done + self._draws
        if phase != self._phase:
            self._begin(phase)
        self._done += report.transitions
        if report.is_warmup:
            self._expected = max(self._expected, self._done + self._draws)
        self._transitions += report.transitions
        self._accepted += report.accepted
        self._failures += report.failures
        rate = self._transitions / max(time.perf_counter() - self._since, 1e-9)
        self._bar.update(
            self._task,
            completed=self._done,
            total=self._expected,
            description=phase,
            health=f"{rate:,.0f} draws/s, accept {self._accepted / self._transitions:.2f}, "
            f"failed {self._failures / self._transitions:.1%}",
        )


def _bar() -> "Progress | None":
    """A bar on the standard error stream, or None unless that is a terminal or a notebook."""
    # Import rich only if a bar is needed, because the import is slow.
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if not (console.is_terminal or console.is_jupyter):
        return None
    return Progress(
        TextColumn("{task.description:9}"),
        BarColumn(bar_width=12),  # the whole line fits into 80 columns
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
        TextColumn("{task.fields[health]}"),
        TimeRemainingColumn(),
        console=console,
    )
