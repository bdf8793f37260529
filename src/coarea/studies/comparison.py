"""Methods compared on one problem: runs within a budget of time, kept so that they can go on."""

import contextlib
import json
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from rich.console import Console

import coarea as co
from coarea.dynamics import NewtonLineSearch, QuasiNewton, Rattle
from coarea.errors import AcceptanceError, SamplingWarning, SettingError

if TYPE_CHECKING:
    from xarray import DataTree

# How the paper projects: with the factor at hand, and something more robust where that fails.
AS_IN_PAPER = Rattle(solvers=(QuasiNewton(), NewtonLineSearch()))
# Draws of each run that are kept, and points of its way to the result.
_KEPT = 1000
_POINTS = 30
# An R-hat above which a method's runs are taken together.
_DISAGREE = 1.1


@dataclass(frozen=True)
class Method:
    """A way to draw: `draw(seed, size)` makes `size` draws, simulations or particles.

    `pilot` is the size of a first run, which compiles; two more tell the pace, from which follows
    the size that a run's share of the budget allows. A method that `scales` not has its own size.
    """

    name: str
    family: str
    draw: Callable[[int, int], "DataTree"]
    pilot: int = 200
    scales: bool = True

    @classmethod
    def of_chain(
        cls,
        name: str,
        family: str,
        method: Callable[..., "DataTree"],
        *,
        pilot: int = 200,
        starts: Callable[[], np.ndarray] | None = None,
        **options: Any,
    ) -> "Method":
        """A method that runs one chain, from one of `starts` if they are given."""

        def draw(seed: int, size: int) -> "DataTree":
            start = {}
            if starts is not None:
                known = starts()
                start = {"start": known[seed % len(known)][None]}
            return method(draws=size, chains=1, seed=seed, progress=False, **start, **options)

        return cls(name, family, draw, pilot)

    @classmethod
    def of_simulations(
        cls, name: str, method: Callable[..., "DataTree"], pilot: int, **options: Any
    ) -> "Method":
        """A method that makes independent simulations."""

        def draw(seed: int, size: int) -> "DataTree":
            return method(simulations=size, seed=seed, **options)

        return cls(name, "parameters", draw, pilot)

    @property
    def slug(self) -> str:
        """Its name as a file's."""
        plain = (c if c.isascii() and c.isalnum() else "-" for c in self.name.lower())
        return "".join(plain).strip("-")


class Outcome(NamedTuple):
    """One run: draws (thinned) of the parameters, and what is worth keeping of all of them.

    A run that accepted nothing has no draws, and the smallest distance it saw.
    """

    draws: np.ndarray
    seconds: float
    ess: np.ndarray
    acceptance: float
    epsilon: float
    times: np.ndarray
    means: np.ndarray
    sds: np.ndarray
    smallest_distance: float


class Comparison:
    """Methods, run after run, in a folder; what is there already is not run again."""

    def __init__(
        self,
        folder: Path,
        parameters: Callable[["DataTree"], np.ndarray],
        settings: Mapping[str, Any],
        runs: int,
        budget: float,
    ):
        self._folder, self._parameters = folder, parameters
        self._runs, self._budget = runs, budget
        self._console = Console()
        known = {**settings, "runs": runs, "budget": budget}
        path = folder / "settings.json"
        if path.exists() and json.loads(path.read_text()) != known:
            raise SettingError(
                f"the folder {str(folder)!r} holds a study with other settings "
                f"({path.read_text()}): choose another with --out, or the same settings."
            )
        path.write_text(json.dumps(known))

    def run(self, methods: Sequence[Method]) -> dict[str, list[Outcome]]:
        """All runs of all methods, those that earlier calls made included."""
        return {method.name: self._run_method(method) for method in methods}

    def size_of(self, method: Method) -> int:
        """How many draws, simulations or particles each of its runs has."""
        return json.loads((self._folder / f"{method.slug}.json").read_text())["size"]

    def _run_method(self, method: Method) -> list[Outcome]:
        paths = [self._folder / f"{method.slug}-{seed}.npz" for seed in range(self._runs)]
        missing = [path for path in paths if not path.exists()]
        if missing:
            size, compiling = self._size(method)
            self._console.print(
                f"{method.name}: size {size}, first run {compiling:.1f} s, {len(missing)} runs",
                highlight=False,
            )
            for path in missing:
                seed = int(path.stem.rsplit("-", 1)[1])
                _write(path, self._outcome(method, seed, size))
        return [_read(path) for path in paths]

    def _size(self, method: Method) -> tuple[int, float]:
        """How large a run may be, and how long the very first took; both kept for later runs."""
        path = self._folder / f"{method.slug}.json"
        began = time.perf_counter()
        self._outcome(method, self._runs, method.pilot)
        first = time.perf_counter() - began
        if path.exists():
            return self.size_of(method), first
        size = method.pilot
        if method.scales:
            # Starting takes its time, whatever the size.
            short, long = (
                self._outcome(method, self._runs + k, k * method.pilot).seconds for k in (1, 4)
            )
            each = max(long - short, 0.1 * long) / (3 * method.pilot)
            left = self._budget / self._runs - max(short - each * method.pilot, 0.0)
            size = max(method.pilot, int(left / each))
        path.write_text(json.dumps({"name": method.name, "size": size, "first_run": first}))
        return size, first

    def _outcome(self, method: Method, seed: int, size: int) -> Outcome:
        began = time.perf_counter()
        try:
            with unwarned():
                draws = method.draw(seed, size)
        except AcceptanceError as error:
            seconds = time.perf_counter() - began
            nothing, none = np.empty((0, 0)), np.empty(0)
            return Outcome(
                nothing, seconds, none, 0.0, np.nan, none, nothing, nothing, error.smallest_distance
            )
        seconds = time.perf_counter() - began
        return _outcome(draws, self._parameters(draws), seconds, size)


@contextlib.contextmanager
def unwarned():
    """Runs of methods that are known to mix badly need not say so each time: the tables do."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SamplingWarning)
        yield


def equal_draws(draws: "DataTree") -> "DataTree":
    """Draws that all count alike: as many as weighted ones are worth, if they have weights."""
    if "weight" not in draws["sample_stats"].dataset:
        return draws
    return co.approximate.resample(draws, max(1, int(draws.attrs["effective_size"])))


def _outcome(draws: "DataTree", x: np.ndarray, seconds: float, size: int) -> Outcome:
    from arviz_stats.sampling_diagnostics import ess

    stats = draws["sample_stats"].dataset
    count = len(x)
    ends = np.unique(np.geomspace(min(10, count), count, _POINTS).astype(int))
    totals, squares = np.cumsum(x, axis=0), np.cumsum((x - x.mean(axis=0)) ** 2, axis=0)
    warmup = draws.attrs.get("tuning_steps", 0)
    if "history" in draws.children:
        acceptance = float(draws["history"].dataset["acceptance_rate"].values[-1])
    elif "acceptance_rate" in stats:
        acceptance = float(stats["acceptance_rate"].mean())
    else:
        acceptance = draws.attrs["accepted"] / size
    distance = stats["distance"].values if "distance" in stats else np.zeros(1)
    return Outcome(
        draws=x[np.linspace(0, count - 1, min(count, _KEPT)).astype(int)],
        seconds=seconds,
        ess=np.array([float(ess(x[None, :, i])) if count > 4 else 1.0 for i in range(x.shape[1])]),
        acceptance=acceptance,
        epsilon=float(draws.attrs.get("epsilon", 0.0)),
        times=seconds * (warmup + ends) / (warmup + count),
        means=totals[ends - 1] / ends[:, None],
        sds=np.sqrt(squares[ends - 1] / ends[:, None]),
        smallest_distance=float(np.min(distance)),
    )


def _write(path: Path, outcome: Outcome) -> None:
    """All of it or nothing, so that an interrupted study can go on."""
    partial = path.with_suffix(".part.npz")
    np.savez(partial, **outcome._asdict())
    partial.rename(path)


def _read(path: Path) -> Outcome:
    with np.load(path) as kept:
        values = {name: kept[name] for name in Outcome._fields}
    return Outcome(**{k: x.item() if x.ndim == 0 else x for k, x in values.items()})


class Row(NamedTuple):
    """What a method's runs say of the parameters, in units of the exact posterior's sd.

    ESS per second is the mean over runs; where they do not agree, that of all as chains.
    """

    name: str
    family: str
    epsilon: float
    seconds: float
    ess_rate: np.ndarray
    ess_rate_error: np.ndarray
    rhat: float
    acceptance: float
    bias: np.ndarray
    bias_error: np.ndarray
    sd_ratio: np.ndarray
    smallest_distance: float


def summarise(
    methods: Sequence[Method],
    outcomes: Mapping[str, Sequence[Outcome]],
    mean: np.ndarray,
    sd: np.ndarray,
) -> list[Row]:
    """A row for each method; errors are standard errors over its runs."""
    return [_row(method, outcomes[method.name], mean, sd) for method in methods]


class Efficiency(NamedTuple):
    """Effective draws per second of each parameter, standard errors over runs, and R-hat.

    The mean over runs; where they do not agree, that of all as chains, which has no error.
    """

    rate: np.ndarray
    error: np.ndarray
    rhat: np.ndarray


def efficiency_of(outcomes: Sequence[Outcome]) -> Efficiency:
    """Of the runs of a method."""
    from arviz_stats.sampling_diagnostics import ess, rhat

    rates = np.array([outcome.ess / outcome.seconds for outcome in outcomes])
    shortest = min(len(outcome.draws) for outcome in outcomes)
    together = np.stack([outcome.draws[:shortest] for outcome in outcomes])
    each = range(rates.shape[1])
    if shortest <= 4 or len(outcomes) < 2:
        return Efficiency(rates.mean(axis=0), standard_error(rates), np.full(len(each), np.nan))
    rhats = np.array([float(rhat(together[..., i])) for i in each])
    if np.max(rhats) <= _DISAGREE:
        return Efficiency(rates.mean(axis=0), standard_error(rates), rhats)
    # Within a run that has seen but a part of the posterior, its ESS says nothing.
    pooled = np.array([float(ess(together[..., i])) for i in each])
    seconds = np.sum([outcome.seconds for outcome in outcomes])
    return Efficiency(pooled / seconds, np.full(len(each), np.nan), rhats)


def _row(method: Method, outcomes: Sequence[Outcome], mean, sd) -> Row:
    drawn = [outcome for outcome in outcomes if outcome.draws.size]
    seconds = float(np.mean([outcome.seconds for outcome in outcomes]))
    smallest = min(outcome.smallest_distance for outcome in outcomes)
    if not drawn:
        nothing = np.full(mean.shape, np.nan)
        return Row(
            method.name,
            method.family,
            np.nan,
            seconds,
            np.zeros(mean.shape),
            np.zeros(mean.shape),
            np.nan,
            0.0,
            nothing,
            nothing,
            nothing,
            smallest,
        )
    rate, error, rhats = efficiency_of(drawn)
    biases = np.array([(outcome.means[-1] - mean) / sd for outcome in drawn])
    spreads = np.array([outcome.sds[-1] / sd for outcome in drawn])
    return Row(
        method.name,
        method.family,
        float(np.max([outcome.epsilon for outcome in drawn])),
        seconds,
        rate,
        error,
        float(np.max(rhats)),
        float(np.mean([outcome.acceptance for outcome in drawn])),
        biases.mean(axis=0),
        standard_error(biases),
        spreads.mean(axis=0),
        smallest,
    )


def standard_error(values: np.ndarray) -> np.ndarray:
    """The standard error of the mean over runs, the first axis."""
    if len(values) < 2:
        return np.full(values.shape[1:], np.nan)
    return np.std(values, axis=0, ddof=1) / np.sqrt(len(values))
