"""Printed tables, figures and files that the studies share."""

from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from coarea.errors import SettingError
from coarea.results.datatree import saving
from coarea.results.netcdf import write_netcdf

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from xarray import DataTree

# Colours that colour-blind readers can distinguish (Okabe & Ito).
BLUE, ORANGE, SKY, GREEN = "#0072B2", "#D55E00", "#56B4E9", "#009E73"


class Parameter(NamedTuple):
    """Draws (chain, draw) of a quantity, and its true value if the data were simulated."""

    draws: np.ndarray
    truth: float | None = None


def writable_folder(path: Path) -> Path:
    """Make the folder and check that it is writable, before any time is spent on sampling."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise SettingError(
            f"the output folder {str(path)!r} cannot be written ({error.strerror}): "
            "choose another with --out."
        ) from error
    return path


def conclude(
    result: "DataTree",
    parameters: Mapping[str, Parameter],
    figure: Callable[[], "Figure"],
    folder: Path,
) -> None:
    """Write all draws, print a table of the parameters, and draw and write the figure."""
    with saving(result):
        write_netcdf(result, folder / "draws.nc")
    console = Console()
    console.print(parameter_table(parameters))
    largest = float(result.sample_stats["constraint_error"].max())
    console.print(
        f"Largest constraint error over all draws: {largest:.1e} of the size of the data."
    )
    figure().savefig(folder / "posterior.png", dpi=150)
    console.print(f"Wrote {folder / 'draws.nc'} and {folder / 'posterior.png'}.")


def parameter_table(parameters: Mapping[str, Parameter]) -> Table:
    """Mean, sd, 89% interval, ESS and R-hat of each parameter, and the truth if it is known."""
    from arviz_stats.sampling_diagnostics import ess, rhat

    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("", no_wrap=True)
    for heading in ("mean", "sd", "89% interval", "ESS", "R-hat", "truth"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, (x, truth) in parameters.items():
        low, high = np.quantile(x, [0.055, 0.945])
        table.add_row(
            name,
            f"{x.mean():.3g}",
            f"{x.std():.2g}",
            f"{low:.3g} – {high:.3g}",
            f"{float(ess(x)):.0f}",
            f"{float(rhat(x)):.3f}",
            "" if truth is None else f"{truth:g}",
        )
    return table


def draw_marginal(axes: "Axes", name: str, parameter: Parameter, prior=None) -> None:
    """Draw a histogram of a parameter, with its prior density and true value if known."""
    axes.hist(parameter.draws.ravel(), bins=40, density=True, color=SKY, label="posterior")
    low, high = axes.get_xlim()
    if prior is not None:
        grid = np.linspace(low, high, 50)
        axes.plot(grid, prior(grid), color=GREEN, label="prior")
    if parameter.truth is not None:
        axes.axvline(parameter.truth, color="black", ls="--", lw=1.2, label="truth")
    axes.locator_params(axis="x", nbins=4)
    axes.set(title=name, yticks=[])


def normal_density(mean: float = 0.0, sd: float = 1.0):
    """The density of a normal distribution."""
    return lambda x: np.exp(-0.5 * ((x - mean) / sd) ** 2) / (sd * np.sqrt(2 * np.pi))


def draw_band(axes: "Axes", times, draws: np.ndarray, colour: str, label: str) -> None:
    """Draw the median and the central 89% interval of paths (draws, times)."""
    low, middle, high = np.quantile(draws, [0.055, 0.5, 0.945], axis=0)
    axes.fill_between(times, low, high, color=colour, alpha=0.3, lw=0)
    axes.plot(times, middle, color=colour, lw=1.2, label=label)
