"""The tables and figures of a comparison of methods."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from coarea.studies.comparison import Outcome, Row
from coarea.studies.report import BLUE, GREEN, ORANGE, SKY

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PURPLE, BLACK, YELLOW = "#CC79A7", "#000000", "#E69F00"
FAMILIES = {
    "exact": BLUE,
    "given the likelihood": BLACK,
    "slice": ORANGE,
    "gradient": GREEN,
    "parameters": PURPLE,
}
_MARKERS = "osD^v"


def write_report(
    rows: Sequence[Row],
    outcomes: Mapping[str, Sequence[Outcome]],
    names: Sequence[str],
    exact: tuple[np.ndarray, np.ndarray],
    published: Mapping[str, Mapping[str, str]],
    published_rates: Mapping[str, Sequence[float]],
    folder: Path,
) -> None:
    """Write the tables and the figures of a comparison, and print a short table."""
    write_tables(rows, [f"z{i + 1}" for i in range(len(names))], published, folder)
    Console().print(short_table(rows))
    efficiency(rows, names, published_rates).savefig(folder / "efficiency.png", dpi=130)
    families = {row.name: row.family for row in rows}
    errors(families, outcomes, *exact).savefig(folder / "errors.png", dpi=130)


def short_table(rows: Sequence[Row]) -> Table:
    """A table that fits a terminal, with the worst value over all parameters."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("", no_wrap=True)
    for heading in ("ESS/s", "R-hat", "accepts", "bias in sds", "sd"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        if row.acceptance == 0:
            table.add_row(row.name, "none", "", "0", f"nearest {row.smallest_distance:.3g}", "")
            continue
        bias, ratio = np.argmax(np.abs(row.bias)), np.argmax(np.abs(np.log(row.sd_ratio)))
        table.add_row(
            row.name,
            short(row.ess_rate.min()),
            _rhat(row.rhat),
            short(row.acceptance),
            f"{row.bias[bias]:+.2f} ± {row.bias_error[bias]:.2f}",
            f"× {row.sd_ratio[ratio]:.2f}",
        )
    return table


def write_tables(
    rows: Sequence[Row],
    names: Sequence[str],
    published: Mapping[str, Mapping[str, str]],
    folder: Path,
) -> None:
    """Write `study.md` and `study.csv`: a line for each method, with published results."""
    sources = list(dict.fromkeys(source for known in published.values() for source in known))
    lines = [
        [
            row.name,
            "" if np.isnan(row.epsilon) else short(row.epsilon),
            " / ".join(short(rate) for rate in row.ess_rate)
            if row.acceptance
            else f"none (nearest: {row.smallest_distance:.3g})",
            _rhat(row.rhat),
            short(row.acceptance),
            _with_errors(row.bias, row.bias_error),
            " / ".join(f"{ratio:.2f}" for ratio in row.sd_ratio) if row.acceptance else "",
            short(row.seconds),
            *(published.get(row.name, {}).get(source, "") for source in sources),
        ]
        for row in rows
    ]
    of_each = f"({' / '.join(names)})"
    heading = [
        "method",
        "ε",
        f"ESS/s {of_each}",
        "R-hat",
        "acceptance",
        "bias in exact sds ± s.e.",
        "sd / exact sd",
        "s a run",
        *sources,
    ]
    (folder / "study.md").write_text(markdown(heading, lines))
    with (folder / "study.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        each = [
            f"{what}_{i + 1}"
            for what in ("ess_per_s", "ess_per_s_se", "bias", "bias_se", "sd_ratio")
            for i in range(len(names))
        ]
        writer.writerow(
            ["method", "epsilon", "rhat", "acceptance", "seconds", "smallest_distance", *each]
        )
        for row in rows:
            numbers = np.concatenate(
                [row.ess_rate, row.ess_rate_error, row.bias, row.bias_error, row.sd_ratio]
            )
            start = (row.epsilon, row.rhat, row.acceptance, row.seconds, row.smallest_distance)
            writer.writerow([row.name, *(f"{x:.6g}" for x in (*start, *numbers))])


def write_lines(heading: Sequence[str], lines: Sequence[Sequence[str]], folder: Path) -> None:
    """Write a table as `study.md` and as `study.csv`."""
    (folder / "study.md").write_text(markdown(heading, lines))
    with (folder / "study.csv").open("w", newline="") as file:
        csv.writer(file).writerows([heading, *lines])


def markdown(heading: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    rows = [heading, ["---"] * len(heading), *lines]
    cells = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return "".join(f"| {' | '.join(row)} |\n" for row in cells)


def short(x: float) -> str:
    """Format a number with two significant digits, or as an integer from 100 on."""
    return f"{x:.0f}" if x >= 100 else f"{x:.2g}" if x else "0"


def _rhat(x: float) -> str:
    return "" if np.isnan(x) else f"{x:.2f}"


def _with_errors(values, errors) -> str:
    if np.any(np.isnan(values)):
        return ""
    return " / ".join(f"{x:+.2f} ± {e:.2f}" for x, e in zip(values, errors, strict=True))


def efficiency(rows: Sequence[Row], names: Sequence[str], published: Mapping[str, Any]) -> "Figure":
    """Plot effective draws per second of each parameter, with ±3 standard errors over runs."""
    from matplotlib.figure import Figure

    rows = [row for row in rows if np.any(row.ess_rate > 0)]
    figure = Figure(figsize=(8.5, 1.2 + 0.36 * len(rows)), layout="constrained")
    axes = figure.subplots()
    for i, row in enumerate(rows):
        for j, (rate, error) in enumerate(zip(row.ess_rate, row.ess_rate_error, strict=True)):
            low = min(3 * np.nan_to_num(error), 0.95 * rate)
            axes.errorbar(
                rate,
                i + 0.16 * (j - 1.5),
                xerr=[[low], [3 * np.nan_to_num(error)]],
                fmt=_MARKERS[j],
                ms=4,
                color=FAMILIES[row.family],
                capsize=1.5,
                lw=0.8,
            )
        for rate in published.get(row.name, ()):
            axes.plot(rate, i, "|", color="grey", ms=13, mew=1.5)
    for j, name in enumerate(names):
        axes.plot([], [], _MARKERS[j], color="grey", label=name)
    axes.plot([], [], "|", color="grey", ms=11, mew=1.5, label="published (2017)")
    axes.set(xscale="log", xlabel="effective draws per second (±3 standard errors over runs)")
    axes.set_yticks(range(len(rows)), [row.name for row in rows])
    axes.invert_yaxis()
    axes.grid(axis="x", alpha=0.3)
    figure.legend(loc="outside lower center", ncols=5, frameon=False, fontsize="small")
    return figure


def marginals(
    shown: Sequence[tuple[str, np.ndarray]],
    names: Sequence[str],
    truth: np.ndarray,
    prior,
    limits: Sequence[tuple[float, float]],
) -> "Figure":
    """Histograms of each parameter with prior and truth: a row for each method, shared axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(2.5 * len(names), 0.95 * len(shown) + 1.0), layout="constrained")
    grid = figure.subplots(len(shown), len(names), sharex="col", squeeze=False)
    for line, (name, draws) in zip(grid, shown, strict=True):
        for i, axes in enumerate(line):
            low, high = limits[i]
            inside = draws[(draws[:, i] >= low) & (draws[:, i] <= high), i]
            heights, edges = np.histogram(inside, bins=np.linspace(low, high, 61))
            heights = heights / max(heights.max(), 1)
            axes.stairs(heights, edges, fill=True, color=SKY)
            points = np.linspace(low, high, 200)
            axes.plot(points, prior[i](points) / prior[i](points).max(), color=GREEN, lw=1)
            axes.axvline(truth[i], color="black", ls="--", lw=1)
            axes.set(yticks=[], ylim=(0, 1.08))
        line[0].set_ylabel(name, rotation=0, ha="right", va="center", fontsize="small")
    for axes, name in zip(grid[-1], names, strict=True):
        axes.set_xlabel(name)
    handles = [
        grid[0, 0].plot([], [], color=colour, ls=style, lw=lw)[0]
        for colour, style, lw in ((SKY, "-", 6), (GREEN, "-", 1), ("black", "--", 1))
    ]
    figure.legend(
        handles,
        ["posterior draws", "prior", "truth"],
        loc="outside upper center",
        ncols=3,
        frameon=False,
    )
    return figure


def errors(
    families: Mapping[str, str],
    outcomes: Mapping[str, Sequence[Outcome]],
    mean: np.ndarray,
    sd: np.ndarray,
) -> "Figure":
    """Plot the errors of each method's mean and sd against time, over all runs."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 5.2), layout="constrained")
    left, right = figure.subplots(1, 2, sharex=True)
    dashes = ["-", "--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 4))]
    styles = {family: iter(dashes) for family in FAMILIES}
    for name, family in families.items():
        drawn = [outcome for outcome in outcomes[name] if outcome.draws.size]
        if not drawn:
            continue
        points = min(len(outcome.times) for outcome in drawn)
        times = np.mean([outcome.times[-points:] for outcome in drawn], axis=0)
        off = np.array([(outcome.means[-points:] - mean) / sd for outcome in drawn])
        wide = np.array([outcome.sds[-points:] / sd for outcome in drawn])
        style = {"color": FAMILIES[family], "ls": next(styles[family]), "lw": 1.4, "label": name}
        left.plot(times, np.sqrt(np.mean(off**2, axis=(0, 2))), **style)
        right.plot(times, np.sqrt(np.mean((wide - 1) ** 2, axis=(0, 2))), **style)
    left.set(ylabel="error of the posterior mean, in exact sds")
    right.set(ylabel="relative error of the posterior sd")
    for axes in (left, right):
        axes.set(xscale="log", yscale="log", xlabel="seconds")
        axes.grid(alpha=0.3)
    figure.legend(
        *left.get_legend_handles_labels(),
        loc="outside right center",
        frameon=False,
        fontsize="small",
    )
    return figure
