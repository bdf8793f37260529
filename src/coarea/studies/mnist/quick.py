"""Sample in-paintings of one digit."""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

import coarea as co
from coarea.errors import SettingError
from coarea.precision import in_float64
from coarea.studies.mnist.drawing import draw_digit, draw_grid, painted
from coarea.studies.mnist.masks import SIDE, read_image, see
from coarea.studies.mnist.model import Puzzle
from coarea.studies.mnist.networks import NOISE, Network, shipped
from coarea.studies.report import Parameter, conclude, writable_folder

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from xarray import DataTree

_ROWS, _COLUMNS = 5, 10


def run(
    draws: int = 500,
    warmup: int = 500,
    chains: int = 4,
    seed: int = 0,
    out: Path = Path("out/mnist-inpainting"),
    mask: str = "top-quarter",
    digit: int = 4,
    image: Path | None = None,
) -> "DataTree":
    """Sample the code of a digit; print its likely labels, write a figure and the draws."""
    folder, known = writable_folder(out), shipped()
    whole = shipped_digit(digit) if image is None else read_image(image)
    observed = see(whole, mask, seed)
    puzzle = Puzzle.of(known.decoder, observed)
    result = co.sample(puzzle.posterior(), draws=draws, warmup=warmup, chains=chains, seed=seed)
    shown = {"log p(code | seen) + constant": Parameter(result.posterior["log_posterior"].values)}
    ink = result.posterior["image"].values[..., np.ma.getmaskarray(observed)].sum(axis=-1)
    shown["ink that is not seen"] = Parameter(ink)
    conclude(result, shown, lambda: figure(result, whole, observed), folder)
    Console().print(
        in_words(judged(known.judge, result.posterior["image"].values)), highlight=False
    )
    return result


def shipped_digit(number: int) -> np.ndarray:
    """One of the test digits of the package."""
    images = shipped().images
    if not 0 <= number < len(images):
        raise SettingError(
            f"digit={number}: the digits of the package are 0 to {len(images) - 1}, two of each "
            "kind in turn. Give another image with --image."
        )
    return images[number]


@in_float64
def judged(judge: Network, images: np.ndarray) -> np.ndarray:
    """The classifier's label for each image (…, 28, 28)."""
    flat = jnp.asarray(images.reshape(-1, SIDE**2))
    return np.argmax(np.asarray(jax.vmap(judge)(flat)), axis=1).reshape(images.shape[:-2])


def in_words(digits: np.ndarray) -> str:
    """The frequency of each painted digit, in words."""
    counts = Counter(int(k) for k in digits.ravel()).most_common()
    shares = ", ".join(f"{k} ({100 * n / digits.size:.0f}%)" for k, n in counts)
    return f"A classifier reads the paintings as {shares}."


def figure(result: "DataTree", whole: np.ndarray, observed: np.ma.MaskedArray) -> "Figure":
    """The digit, its observed pixels, and consecutive draws of the first chain."""
    from matplotlib.figure import Figure

    is_seen = ~np.ma.getmaskarray(observed)
    drawn = result.posterior["image"].values[0][: _ROWS * _COLUMNS]
    page = Figure(figsize=(10.5, 5), layout="constrained")
    halves = page.subfigures(1, 2, width_ratios=[1, 5], squeeze=False)
    assert isinstance(halves, np.ndarray)
    left, right = halves[0]
    upper, lower = left.subplots(2, 1)
    draw_digit(upper, whole, np.ones_like(is_seen))
    draw_digit(lower, np.where(is_seen, whole, 0.0), is_seen)
    upper.set_title("the digit")
    lower.set_title("seen of it")
    draw_grid(right, list(painted(drawn, observed, NOISE)), is_seen, _COLUMNS)
    right.suptitle("consecutive draws")
    return page
