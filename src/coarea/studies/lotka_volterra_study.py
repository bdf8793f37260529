"""The paper's full first study: compare exact conditioning with approximate methods.

The likelihood of this model is known, so that every method can be compared with the exact
posterior.
"""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import jax
import numpy as np
from rich.console import Console

import coarea as co
from coarea.dynamics import Rattle
from coarea.studies.comparison import (
    Comparison,
    Outcome,
    equal_draws,
    summarise,
    unwarned,
)
from coarea.studies.lotka_volterra import (
    NAMES,
    NUM_STEPS,
    START,
    TRUTH,
    dataset,
    generator,
)
from coarea.studies.lotka_volterra_methods import PAPER, exact_moments, methods
from coarea.studies.report import BLUE, GREEN, ORANGE, normal_density, writable_folder
from coarea.studies.study_report import marginals, write_report

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from xarray import DataTree

# Published ESS/s of z₁–z₄ on an Intel i5-2400: from the paper's figure, and from the thesis of its
# first author (chapter 4) with R-hats.
_PAPER = {
    "CHMC, paper's settings": (2.70, 2.74, 2.76, 2.77),
    "slice, uniform, ε = 100": (1.09, 1.13, 1.08, 1.30),
    "slice, uniform, ε = 10": (0.025, 0.024, 0.007, 0.009),
}
_THESIS = {
    "CHMC, paper's settings": "3.14–3.24 (1.00)",
    "NUTS, 9 summary statistics": "1.99–2.51 (1.00), CHMC",
    "slice, uniform, ε = 100": "0.99–1.20 (1.01)",
    "slice, Gaussian, ε = 10": "0.21–0.27 (1.01)",
    "ABC-HMC, ε = 10": "0.07–0.10 (1.33)",
    "slice, uniform, ε = 10": "0.01–0.02 (1.89)",
}
_SHOWN = (
    "NUTS given the likelihood",
    "NUTS, co.Markov",
    "slice, uniform, ε = 10",
    "slice, Gaussian, ε = 10",
    "slice, uniform, ε = 100",
    "ABC-SMC, ε = 100",
    "Hamiltonian ABC, ε = 10",
    "NUTS, 9 summary statistics",
    "ABC-MCMC, ε = 1000",
)
_TOLERANCES = tuple(10.0**-k for k in range(2, 13, 2))


def log_rates(draws: "DataTree") -> np.ndarray:
    """The logarithms (draw, 4) of the rates in one chain."""
    return np.log(equal_draws(draws).posterior["z"].values[0])


def run(
    runs: int = 10,
    budget: float = 20.0,
    seed: int = 0,
    out: Path = Path("out/lotka-volterra/study"),
) -> None:
    """Make all missing runs of all methods; write tables and figures to `out`."""
    folder, y = writable_folder(out), dataset(seed)
    comparison = Comparison(
        folder, log_rates, {"study": "lotka-volterra", "seed": seed}, runs, budget
    )
    compared = methods(y)
    outcomes = comparison.run(compared)
    mean, sd = exact_moments(y, num=1_000_000)
    rows = summarise(compared, outcomes, mean, sd)
    published = {
        name: {
            "paper": " / ".join(f"{x:g}" for x in _PAPER[name]) if name in _PAPER else "",
            "thesis (R-hat)": _THESIS.get(name, ""),
        }
        for name in {**_PAPER, **_THESIS}
    }
    write_report(rows, outcomes, NAMES, (mean, sd), published, _PAPER, folder)
    with unwarned():
        figures = {
            "trajectories": trajectories(y, seed),
            "marginals": _marginals(outcomes, mean, sd),
            "tolerance": _tolerance_figure(tolerance_table(y, folder), mean, sd),
        }
    for name, figure in figures.items():
        figure.savefig(folder / f"{name}.png", dpi=130)
    Console().print(f"Wrote study.md, study.csv, tolerance.csv and figures to {folder}.")


def _marginals(outcomes: dict[str, list[Outcome]], mean, sd) -> "Figure":
    shown = [
        (name, np.concatenate([outcome.draws for outcome in outcomes[name] if outcome.draws.size]))
        for name in _SHOWN
        if any(outcome.draws.size for outcome in outcomes[name])
    ]
    widest = 12 * np.maximum(sd, 0.03)
    limits = [(m - w, m + w) for m, w in zip(mean, widest, strict=True)]
    names = [f"log {name}" for name in NAMES]
    return marginals(shown, names, np.log(TRUTH), [normal_density(-2.0)] * 4, limits)


def trajectories(y: np.ndarray, seed: int) -> "Figure":
    """Observed populations, and posterior simulations for exact and for softened data."""
    from matplotlib.figure import Figure

    model, data = generator(), {"y": y}
    options = {"draws": 2000, "warmup": 4000, "chains": 2, "seed": seed, "keep": "inputs"}
    shown = {
        "exact": co.sample(co.condition(model, data), draws=200, keep="inputs", progress=False)
    }
    for epsilon in (10.0, 100.0):
        shown[f"ABC, ε = {epsilon:.0f}"] = co.approximate.elliptical_slice(
            model, data, epsilon=epsilon, progress=False, **options
        )
    figure = Figure(figsize=(11, 3.8), layout="constrained")
    times = np.arange(NUM_STEPS + 1)
    for axes, (name, draws) in zip(figure.subplots(1, 3, sharey=True), shown.items(), strict=True):
        every = max(1, draws.posterior.sizes["draw"] // 20)
        some = draws.isel(draw=slice(None, None, every), missing_dims="ignore")
        simulated = co.predictive(model, some, jax.random.key(0)).posterior_predictive["y"].values
        for species, (label, colour) in enumerate((("prey", BLUE), ("predators", ORANGE))):
            for path in simulated[..., species].reshape(-1, NUM_STEPS):
                axes.plot(times, [START[species], *path], color=colour, alpha=0.25, lw=0.7)
            axes.plot(times[1:], y[:, species], "o", color=colour, ms=3, label=f"{label}, observed")
        axes.set(title=name, xlabel="time")
    figure.axes[0].set_ylabel("population")
    figure.axes[0].legend(fontsize="small")
    return figure


def tolerance_table(y: np.ndarray, folder: Path) -> np.ndarray:
    """The effect of the projection's tolerance on the estimates and the cost: `tolerance.csv`.

    All other settings are the paper's. The columns are: tolerance, means and sds of log z, standard
    errors of the means, acceptance, failed trajectories, and seconds per effective draw.
    """
    from arviz_stats.sampling_diagnostics import ess

    path = folder / "tolerance.csv"
    names = [
        "tolerance",
        *(f"{what}_{i}" for what in ("mean", "sd", "error") for i in range(1, 5)),
        "acceptance",
        "failed",
        "seconds_per_effective_draw",
    ]
    if path.exists():
        return np.loadtxt(path, delimiter=",", skiprows=1)
    posterior, lines = co.condition(generator(), {"y": y}), []
    for tolerance in _TOLERANCES:
        kernel = replace(PAPER, integrator=Rattle(tolerance=tolerance))
        options = {"warmup": 200, "kernel": kernel, "progress": False}
        co.sample(posterior, draws=10, **options)  # compiles
        draws = co.sample(posterior, draws=500, **options)
        x, stats = np.log(draws.posterior["z"].values), draws.sample_stats
        size = np.array([float(ess(x[..., i])) for i in range(4)])
        lines.append(
            [
                tolerance,
                *x.mean(axis=(0, 1)),
                *x.std(axis=(0, 1)),
                *(x.std(axis=(0, 1)) / np.sqrt(size)),
                float(stats["acceptance_rate"].mean()),
                float((stats["convergence_error"] | stats["non_reversible_step"]).mean()),
                draws.attrs["sampling_time"] / size.min(),
            ]
        )
    np.savetxt(path, lines, delimiter=",", header=",".join(names), comments="", fmt="%.6g")
    return np.array(lines)


def _tolerance_figure(table: np.ndarray, mean, sd) -> "Figure":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.4), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    tolerance = table[:, 0]
    for i, (name, marker) in enumerate(zip(NAMES, "osD^", strict=True)):
        shift = tolerance * 10 ** (0.12 * (i - 1.5))
        left.errorbar(
            shift,
            (table[:, 1 + i] - mean[i]) / sd[i],
            3 * table[:, 9 + i] / sd[i],
            fmt=marker,
            ms=4,
            color=(BLUE, ORANGE, GREEN, "black")[i],
            label=name,
        )
    left.axhline(0, color="grey", lw=0.8)
    left.set(ylabel="error of the mean, sds (±3 s.e.)")
    middle.plot(tolerance, table[:, 13], "o-", color=BLUE, label="acceptance")
    middle.plot(tolerance, table[:, 14], "s--", color=ORANGE, label="failed trajectories")
    middle.set(ylim=(-0.03, 1.03))
    middle.legend(fontsize="small")
    right.plot(tolerance, 1e3 * table[:, 15], "o-", color=BLUE)
    right.set(ylabel="milliseconds per effective draw", ylim=(0, None))
    for axes in (left, middle, right):
        axes.set(xscale="log", xlabel="tolerance of the projection")
        axes.grid(alpha=0.3)
    handles = left.get_legend_handles_labels()
    figure.legend(*handles, loc="outside upper left", ncols=4, frameon=False, fontsize="small")
    return figure
