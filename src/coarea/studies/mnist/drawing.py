"""Draw in-paintings: observed pixels black on white, painted pixels white on black."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase


def draw_digit(axes: "Axes", image: np.ndarray, is_seen: np.ndarray) -> None:
    """Draw one image (28, 28)."""
    axes.imshow(np.where(is_seen, 1 - image, image), cmap="gray", vmin=0, vmax=1)
    axes.set(xticks=[], yticks=[])


def draw_grid(
    whole: "FigureBase", images: Sequence[np.ndarray], is_seen: np.ndarray, columns: int
) -> None:
    """Draw images in a grid, row by row."""
    rows = -(-len(images) // columns)
    grid = whole.subplots(rows, columns, squeeze=False).ravel()
    for axes in grid:
        axes.axis("off")
    for axes, image in zip(grid, images, strict=False):
        axes.axis("on")
        draw_digit(axes, image, is_seen)


def painted(
    draws: np.ndarray, observed: np.ma.MaskedArray, noise: float, seed: int = 0
) -> np.ndarray:
    """Whole images (draw, 28, 28): observed pixels, and decoded pixels with noise elsewhere."""
    fresh = draws + noise * np.random.default_rng(seed).normal(size=draws.shape)
    is_hidden = np.ma.getmaskarray(observed)
    return np.where(is_hidden, np.clip(fresh, 0.0, 1.0), np.ma.getdata(observed))
