"""Stick figures."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from coarea.studies.human_pose.skeleton import NAMES, PARENTS
from coarea.studies.report import BLUE, ORANGE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase


def draw_skeleton(axes: "Axes", points: np.ndarray, **style) -> None:
    """Draw bones as lines between points (24, 2): the left side blue, the right side orange."""
    for i, (name, parent) in enumerate(zip(NAMES, PARENTS, strict=True)):
        if parent is None:
            continue
        colour = {"left": BLUE, "right": ORANGE}.get(name.split()[0], "black")
        axes.plot(*points[[parent, i]].T, **{"color": colour, "lw": 1.5, **style})


def draw_views(whole: "FigureBase", poses: Sequence[np.ndarray], titles: Sequence[str]) -> None:
    """Draw each pose from the front and, below, from its left side."""
    rows = whole.subplots(2, len(poses), sharex=True, sharey=True, squeeze=False)
    reach = 1.1 * max(np.max(np.abs(x[:, [0, 2]])) for x in poses)
    low, high = (1.1 * extreme([x[:, 1] for x in poses]) for extreme in (np.min, np.max))
    # The side view is from the person's left, so that the forward direction points left.
    views = {"front": ([0, 1], [1, 1]), "side": ([2, 1], [-1, 1])}
    for row, (view, (columns, signs)) in zip(rows, views.items(), strict=True):
        for axes, x in zip(row, poses, strict=True):
            draw_skeleton(axes, x[:, columns] * signs)
            axes.set(aspect="equal", xlim=(-reach, reach), ylim=(low, high), xticks=[], yticks=[])
        row[0].set_ylabel(view)
    for axes, title in zip(rows[0], titles, strict=True):
        axes.set_title(title, fontsize="medium")


def draw_image(axes: "Axes", images: Sequence[np.ndarray], y: np.ndarray) -> None:
    """Draw images of skeletons (24, 2) over each other, and the observed joints (19, 2)."""
    for image in images:
        draw_skeleton(axes, image, lw=0.6, alpha=0.5)
    axes.plot(*y.T, "o", mfc="none", mec="black", ms=6, label="observed")
    axes.invert_yaxis()
    axes.set(aspect="equal", xticks=[], yticks=[], title=f"image plane, {len(images)} draws")
    axes.legend(loc="upper left", fontsize="small")
