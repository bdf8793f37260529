"""Group chains by the mode that they found; a posterior given one image has several modes."""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table
from scipy.sparse.csgraph import connected_components

from coarea.studies.human_pose.skeleton import SEEN

if TYPE_CHECKING:
    from xarray import DataTree

# Two chains agree if their R-hat is below this in every coordinate.
_AGREE = 1.1


class Mode(NamedTuple):
    """A group of chains that agree with each other, and its summary."""

    chains: np.ndarray
    log_density: float
    error: float  # of the mean joint positions, root mean square, in metres
    spread: float  # standard deviation of a coordinate of a joint


def seen_joints(draws: "DataTree") -> np.ndarray:
    """Positions (chain, draw, 19, 3) of the observed joints."""
    return draws["posterior"].dataset["joints"].values[..., list(SEEN), :]


def rms(x: np.ndarray) -> float:
    """The root mean square over all elements."""
    return float(np.sqrt(np.mean(np.square(x))))


def find_modes(draws: "DataTree", truth: np.ndarray) -> list[Mode]:
    """Groups of chains that agree, in decreasing order of mean log density."""
    from arviz_stats.base.array import array_stats

    x = seen_joints(draws)
    flat = x.reshape(*x.shape[:2], -1)
    num = len(flat)
    agree = np.eye(num)
    for i in range(num):
        for j in range(i):
            pair = flat[[i, j]]
            agree[i, j] = np.max(array_stats.rhat(pair, chain_axis=0, draw_axis=1)) < _AGREE
    count, labels = connected_components(agree, directed=False)
    lp = draws["sample_stats"].dataset["lp"].values
    found = [np.flatnonzero(labels == k) for k in range(count)]
    return sorted(
        (
            Mode(
                chains,
                float(lp[chains].mean()),
                rms(x[chains].mean(axis=(0, 1)) - truth[list(SEEN)]),
                float(x[chains].std(axis=(0, 1)).mean()),
            )
            for chains in found
        ),
        key=lambda mode: -mode.log_density,
    )


def mode_table(modes: list[Mode]) -> Table:
    """A table with a row for each mode."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in ("chains", "mean log density", "RMSE of mean pose", "sd of a joint"):
        table.add_column(heading, justify="right", no_wrap=True)
    for mode in modes:
        table.add_row(
            ", ".join(map(str, mode.chains)),
            f"{mode.log_density:.1f}",
            f"{100 * mode.error:.1f} cm",
            f"{100 * mode.spread:.1f} cm",
        )
    return table


def in_words(modes: list[Mode]) -> str:
    """The meaning of the table, in words."""
    if sum(len(mode.chains) for mode in modes) == 1:
        return "One chain cannot tell how many modes there are: run several."
    if len(modes) == 1:
        return "All chains agree: one mode was found."
    return (
        f"The chains do not agree: they found {len(modes)} modes, or have not mixed yet. How much "
        "of the posterior each holds is not known from this run; summaries over all chains "
        "count each chain alike."
    )
