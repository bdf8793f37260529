"""Shared by all cases: measure a run, and format its results."""

import json
import os
import platform
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
from arviz_stats.base.array import array_stats

from coarea.studies.study_report import markdown, short

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PACKAGES = ("coarea", "jax", "jaxlib", "blackjax", "numpyro", "nutpie", "pymc", "mici", "numpy")
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_MARKERS = "osD^vP*"


class Measured(NamedTuple):
    """A run with initialisation and warm-up, and the time of a first run that also compiled."""

    least: float
    least_square: float
    rhat: float
    seconds: float
    first: float

    @property
    def ess(self) -> float:
        """The smaller of the ESS of means and of squares, of the element with the smallest."""
        return min(self.least, self.least_square)

    @property
    def rate(self) -> float:
        """ESS per second without compilation."""
        return self.ess / self.seconds

    @property
    def first_rate(self) -> float:
        """ESS per second of a first run, compilation included."""
        return self.ess / self.first

    @property
    def has_mixed(self) -> bool:
        """Whether the effective sample size is meaningful."""
        return self.rhat <= 1.05


def measured(draw: Callable[[int], np.ndarray]) -> Measured:
    """Run `draw(seed)` with two seeds and measure the second; it returns (chain, draw, element)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        began = time.perf_counter()
        draw(0)
        first = time.perf_counter() - began
        began = time.perf_counter()
        x = draw(1)
        seconds = time.perf_counter() - began
    return Measured(*quality(x), seconds, first)


def quality(x: np.ndarray) -> tuple[float, float, float]:
    """Smallest ESS of mean and variance, and largest R-hat, of draws (chain, draw, element).

    With antithetic draws the ESS of the mean can exceed the number of draws; that of the variance
    does not.
    """
    x = np.asarray(x)
    axes = {"chain_axis": 0, "draw_axis": 1}
    squares = (x - x.mean(axis=(0, 1))) ** 2
    least, least_square = (float(np.min(array_stats.ess(y, **axes))) for y in (x, squares))
    if len(x) == 1:  # split it into halves
        half = x.shape[1] // 2
        x = np.concatenate([x[:, :half], x[:, half : 2 * half]])
    return least, least_square, float(np.max(array_stats.rhat(x, **axes)))


@dataclass
class Report:
    """Results of a case: tables of text, the underlying numbers, and a figure."""

    title: str
    about: str
    tables: list[tuple[list[str], list[list[str]]]]
    numbers: dict[str, Any] = field(default_factory=dict)
    figure: "Figure | None" = None


def against(
    rows: Mapping[str, Measured], peers: Sequence[str]
) -> tuple[list[str], list[list[str]]]:
    """A table of runs, with the ratio of each rate to the rates of some peers."""
    heading = ["", "R-hat", "first run, s", "run, s", "min ESS/s"]
    heading += [f"× {peer}" for peer in peers]
    lines = [
        [
            name,
            f"{row.rhat:.3f}",
            f"{row.first:.1f}",
            f"{row.seconds:.2f}",
            shown_rate(row),
            *(short(row.rate / rows[peer].rate) if row.has_mixed else "" for peer in peers),
        ]
        for name, row in rows.items()
    ]
    return heading, lines


def shown_rate(row: Measured) -> str:
    """A rate; in brackets with its R-hat if the chains have not mixed."""
    return short(row.rate) if row.has_mixed else f"[{short(row.rate)}, R-hat {row.rhat:.2f}]"


def ratio(row: Measured, peer: Measured) -> str:
    """The ratio of two rates; empty unless both runs have mixed."""
    return short(row.rate / peer.rate) if row.has_mixed and peer.has_mixed else ""


def numbers_of(rows: Mapping[Any, Measured]) -> dict[str, Any]:
    """Runs as JSON-compatible numbers."""
    return {
        str(name): {**row._asdict(), "rate": row.rate, "first_rate": row.first_rate}
        for name, row in rows.items()
    }


def bars(rates: Mapping[str, float], label: str = "min ESS/s") -> "Figure":
    """A bar chart of rates on a logarithmic axis."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 0.6 + 0.32 * len(rates)), layout="constrained")
    axes = figure.subplots()
    names = list(rates)[::-1]
    colours = [_COLOURS[0] if name.startswith("coarea") else "#999999" for name in names]
    axes.barh(names, [rates[name] for name in names], color=colours, log=True)
    axes.set_xlabel(label)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def curves(panels: Mapping[str, Mapping[str, tuple]], xlabel: str, falls: bool = False) -> "Figure":
    """Panels, named by their vertical axis, of named lines (x, y). `falls` reverses the x axis."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.8 * len(panels), 3.6), layout="constrained")
    for axes, (ylabel, lines) in zip(
        np.atleast_1d(figure.subplots(1, len(panels))), panels.items(), strict=True
    ):
        for (name, (x, y)), colour, marker in zip(lines.items(), _COLOURS, _MARKERS, strict=False):
            axes.loglog(x, y, marker + "-", color=colour, label=name)
        axes.set(xlabel=xlabel, ylabel=ylabel)
        axes.spines[["top", "right"]].set_visible(False)
        if falls:
            axes.invert_xaxis()
        axes.legend(frameon=False, fontsize="small")
    return figure


def machine() -> dict[str, Any]:
    """The machine and the package versions used."""
    model = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").exists():
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "device": jax.devices()[0].device_kind,
        "python": platform.python_version(),
        "packages": {name: found for name in _PACKAGES if (found := _version(name))},
        "date": time.strftime("%Y-%m-%d"),
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def write(name: str, report: Report, seconds: float, folder: Path) -> None:
    """Write the file and the figure of a case."""
    folder.mkdir(parents=True, exist_ok=True)
    figure, report.figure = report.figure, None
    content = {**asdict(report), "seconds": seconds, "machine": machine(), "figure": False}
    if figure is not None:
        figure.savefig(folder / f"{name}.png", dpi=110)
        content["figure"] = True
    (folder / f"{name}.json").write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def write_page(order: Sequence[str], folder: Path, opening: str) -> Path:
    """Write a page of all cases that have been run, next to the folder."""
    parts = [opening]
    for name in order:
        path = folder / f"{name}.json"
        if not path.exists():
            continue
        found = json.loads(path.read_text())
        where = found["machine"]
        on = f"{where['cores']} cores of {where['cpu']}"
        if where["device"] != "cpu":
            on = f"one {where['device']}"
        packages = ", ".join(f"{k} {v}" for k, v in where["packages"].items())
        parts += [f"## {found['title']}", found["about"].strip()]
        parts += [markdown(*table) for table in found["tables"]]
        if found["figure"]:
            parts.append(f"![{found['title']}]({folder.name}/{name}.png)")
        parts.append(
            f"`python -m benchmarks {name}`, {found['seconds']:.0f} s on {on}, {where['date']}; "
            f"Python {where['python']}, {packages}."
        )
    page = folder.with_suffix(".md")
    page.write_text("\n\n".join(part.rstrip() for part in parts) + "\n")
    return page
