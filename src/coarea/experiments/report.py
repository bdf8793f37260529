"""What the studies print and where they write."""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table

from coarea.errors import SettingError

if TYPE_CHECKING:
    from xarray import DataTree


def writable_folder(path: Path) -> Path:
    """Make the folder and be sure that it can be written, before any work is spent on results."""
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


def parameter_table(
    result: "DataTree", variable: str, names: Sequence[str], truth: np.ndarray
) -> Table:
    """Mean, sd, 89% interval, ESS, R-hat and truth of each element of a vector."""
    from arviz_stats.sampling_diagnostics import ess, rhat

    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("", no_wrap=True)
    for heading in ("mean", "sd", "89% interval", "ESS", "R-hat", "truth"):
        table.add_column(heading, justify="right", no_wrap=True)
    draws = result.posterior[variable]
    for i, (name, true) in enumerate(zip(names, truth, strict=True)):
        x = draws[..., i].values
        low, high = np.quantile(x, [0.055, 0.945])
        table.add_row(
            name,
            f"{x.mean():.3g}",
            f"{x.std():.2g}",
            f"{low:.3g} – {high:.3g}",
            f"{float(ess(x)):.0f}",
            f"{float(rhat(x)):.3f}",
            f"{true:g}",
        )
    return table
