"""Compare methods on one problem within a time budget; stored runs let a comparison resume."""

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

# The paper's projection: quasi-Newton with the current factor, then a more robust solver.
AS_IN_PAPER = Rattle(solvers=(QuasiNewton(), NewtonLineSearch()))
# Number of draws stored for each run, and number of points of its convergence curve.
_KEPT = 1000
_POINTS = 30
# If R-hat is above this, the ESS is computed from all runs of a method as chains of one run.
_DISAGREE = 1.1


@dataclass(frozen=True)
class Method:
    """A sampling method: `draw(seed, size)` makes `size` draws, simulations or particles.

    `pilot` is the size of a first run, which compiles the program. Two more runs measure the speed.
    The size of all later runs is what their share of the budget allows. If `scales` is false, every
    run has size `pilot`.
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
        """A method that runs one chain, started at one of `starts` if they are given."""

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
        """The name in a form suitable for file names."""
        plain = (c if c.isascii() and c.isalnum() else "-" for c in self.name.lower())
        return "".join(plain).strip("-")


class Outcome(NamedTuple):
    """One run: thinned draws of the parameters, and statistics of all draws.

    A run that accepted nothing has no draws, but has the smallest distance that it saw.
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
    """Runs of several methods, stored in a folder; stored runs are not repeated."""

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
        """All runs of all methods, including those stored by earlier calls."""
        return {method.name: self._run_method(method) for method in methods}

    def size_of(self, method: Method) -> int:
        """The number of draws, simulations or particles in each run of the method."""
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
        """The size of a run, which is stored, and the duration of the first run in seconds."""
        path = self._folder / f"{method.slug}.json"
        began = time.perf_counter()
        self._outcome(method, self._runs, method.pilot)
        first = time.perf_counter() - began
        if path.exists():
            return self.size_of(method), first
        size = method.pilot
        if method.scales:
            # Two sizes separate the time per draw from the fixed time of starting.
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
    """Silence sampling warnings: some methods are known to mix badly, and the tables show it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SamplingWarning)
        yield


def equal_draws(draws: "DataTree") -> "DataTree":
    """Equally weighted draws; weighted draws are resampled to their effective sample size."""
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
    """Write the file atomically, so that an interrupted study can resume."""
    partial = path.with_suffix(".part.npz")
    np.savez(partial, **outcome._asdict())
    partial.rename(path)


def _read(path: Path) -> Outcome:
    with np.load(path) as kept:
        values = {name: kept[name] for name in Outcome._fields}
    return Outcome(**{k: x.item() if x.ndim == 0 else x for k, x in values.items()})


class Row(NamedTuple):
    """A summary of a method's runs, with errors in units of the exact posterior's sd.

    ESS per second is the mean over runs. If the runs disagree, it is computed from all runs as
    chains of one run.
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
    """A row for each method; its errors are standard errors over the runs."""
    return [_row(method, outcomes[method.name], mean, sd) for method in methods]


class Efficiency(NamedTuple):
    """Effective draws per second of each parameter, standard errors over runs, and R-hat.

    The rate is the mean over runs. If the runs disagree, it is computed from all runs as chains of
    one run, and then has no standard error.
    """

    rate: np.ndarray
    error: np.ndarray
    rhat: np.ndarray


def efficiency_of(outcomes: Sequence[Outcome]) -> Efficiency:
    """The sampling efficiency of a method, from its runs."""
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
    # The ESS of a single run is meaningless if that run explored only a part of the posterior.
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
