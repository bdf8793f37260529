"""The paper's full third study: exact conditioning and sampling from the known code density."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

import coarea as co
from coarea.precision import in_float64
from coarea.studies.comparison import (
    AS_IN_PAPER,
    Comparison,
    Method,
    Outcome,
    efficiency_of,
    standard_error,
)
from coarea.studies.mnist.drawing import draw_grid, painted
from coarea.studies.mnist.masks import SIDE, read_image, see
from coarea.studies.mnist.model import Puzzle
from coarea.studies.mnist.networks import CODE, NOISE, decode, shipped
from coarea.studies.mnist.quick import judged, shipped_digit
from coarea.studies.report import writable_folder
from coarea.studies.study_report import markdown, short, write_lines

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from xarray import DataTree

PAPER = co.CHMC(num_steps=(4, 6), geodesic_steps=3, step_size=0.25, integrator=AS_IN_PAPER)
_PAPER_HMC = {"num_steps": (30, 50), "step_size": 0.015}
_SHOWN = 40


def methods(puzzle: Puzzle) -> list[Method]:
    """All methods to compare; each run has one chain."""
    posterior, chain, tractable = puzzle.posterior(), Method.of_chain, co.approximate.tractable
    on_code = {
        "model": puzzle.model(),
        "observed": {"y": puzzle.y},
        "log_likelihood": puzzle.log_likelihood,
        "outputs": puzzle.report,
    }
    origin = np.zeros(CODE)  # the paper's start point
    start = puzzle.start(origin)[None]
    return [
        chain("defaults", "exact", co.sample, target=posterior),
        chain("NUTS", "exact", co.sample, target=posterior, kernel=co.NUTS()),
        chain(
            "CHMC, paper's settings",
            "exact",
            co.sample,
            target=posterior,
            kernel=PAPER,
            warmup=0,
            starts=lambda: start,
        ),
        chain("NUTS on the code", "given the likelihood", tractable, **on_code),
        chain(
            "HMC on the code, paper's settings",
            "given the likelihood",
            tractable,
            warmup=0,
            starts=lambda: origin[None],
            **_PAPER_HMC,
            **on_code,
        ),
    ]


def code_and_density(draws: "DataTree") -> np.ndarray:
    """The code and its log posterior density, as one array (draw, 51)."""
    group = draws["posterior"].dataset
    return np.column_stack([group["code"].values[0], group["log_posterior"].values[0]])


def run(
    runs: int = 10,
    budget: float = 100.0,
    seed: int = 0,
    out: Path = Path("out/mnist-inpainting/study"),
    mask: str = "top-quarter",
    digit: int = 4,
    image: Path | None = None,
) -> None:
    """Make all missing runs of all methods; write a table and a figure to `out`."""
    folder, known = writable_folder(out), shipped()
    whole = shipped_digit(digit) if image is None else read_image(image)
    observed = see(whole, mask, seed)
    puzzle = Puzzle.of(known.decoder, observed)
    about = {"study": "mnist-inpainting", "seed": seed, "mask": mask, "digit": digit}
    about["image"] = "" if image is None else str(image)
    comparison = Comparison(folder, code_and_density, about, runs, budget)
    compared = methods(puzzle)
    outcomes = comparison.run(compared)
    sizes = {method.name: comparison.size_of(method) for method in compared}
    heading, lines = table(outcomes, sizes)
    write_lines(heading, lines, folder)
    Console().print(markdown(heading, lines), highlight=False)
    figure(outcomes, observed).savefig(folder / "paintings.png", dpi=90)
    Console().print(f"Wrote study.md, study.csv and paintings.png to {folder}.")


def table(
    outcomes: Mapping[str, Sequence[Outcome]], sizes: Mapping[str, int]
) -> tuple[list[str], list[list[str]]]:
    """A line for each method: means over runs, with standard errors.

    `sizes` are the numbers of draws in a run.
    """
    heading = [
        "method",
        "ESS/s, code, least",
        "ESS/s, code, median",
        "ESS/s, log p(h | y)",
        "R-hat, code",
        "R-hat, log p(h | y)",
        "mean log p(h | y)",
        "accepts",
        "ms a draw",
        "digits a run",
        "digits in all",
    ]
    lines = []
    for name, runs in outcomes.items():
        found = efficiency_of(runs)
        least = np.argmin(found.rate[:CODE])
        digits = [painted_digits(outcome) for outcome in runs]
        density = np.array([outcome.means[-1][CODE] for outcome in runs])
        lines.append(
            [
                name,
                f"{short(found.rate[least])} ± {short(found.error[least])}",
                short(np.median(found.rate[:CODE])),
                f"{short(found.rate[CODE])} ± {short(found.error[CODE])}",
                f"{found.rhat[:CODE].max():.2f}",
                f"{found.rhat[CODE]:.2f}",
                f"{density.mean():.2f} ± {standard_error(density):.2f}",
                f"{np.mean([outcome.acceptance for outcome in runs]):.2f}",
                f"{1e3 * np.mean([outcome.seconds for outcome in runs]) / sizes[name]:.2g}",
                f"{np.mean([often_painted(x) for x in digits]):.1f}",
                f"{often_painted(np.concatenate(digits))}",
            ]
        )
    return heading, lines


def often_painted(digits: np.ndarray) -> int:
    """The number of labels with a share of at least 5%, as the classifier's error rate is 3%."""
    return int(np.sum(np.bincount(digits, minlength=10) >= 0.05 * digits.size))


def painted_digits(outcome: Outcome) -> np.ndarray:
    """The classifier's label for each stored draw."""
    known = shipped()
    return judged(known.judge, decoded(outcome.draws[:, :CODE]))


@in_float64
def decoded(codes: np.ndarray) -> np.ndarray:
    """The images (draw, 28, 28) of the codes."""
    decoder = shipped().decoder
    images = jax.jit(jax.vmap(lambda h: decode(decoder, h)))(jnp.asarray(codes))
    return np.asarray(images).reshape(-1, SIDE, SIDE)


def figure(outcomes: Mapping[str, Sequence[Outcome]], observed: np.ma.MaskedArray) -> "Figure":
    """Evenly spaced draws of each method's first run; all runs take the same time."""
    from matplotlib.figure import Figure

    page = Figure(figsize=(11, 13), layout="constrained")
    parts = page.subfigures(-(-len(outcomes) // 2), 2, squeeze=False)
    assert isinstance(parts, np.ndarray)
    for part, (name, runs) in zip(parts.ravel(), outcomes.items(), strict=False):
        codes = runs[0].draws[:, :CODE]
        some = codes[np.linspace(0, len(codes) - 1, _SHOWN).astype(int)]
        images = painted(decoded(some), observed, NOISE)
        draw_grid(part, list(images), ~np.ma.getmaskarray(observed), 8)
        part.suptitle(name)
    return page
