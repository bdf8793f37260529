"""In-painting beside NUTS on the density of the code: of four digits, and as noise falls."""

import numpy as np

import coarea as co
from benchmarks.harness import Report, curves, measured, numbers_of, ratio, told
from benchmarks.peers import blackjax_nuts, ours
from coarea.precision import in_float64
from coarea.studies.mnist.masks import see
from coarea.studies.mnist.model import Puzzle
from coarea.studies.mnist.networks import CODE, shipped

ABOUT = """
The code (50 elements) of a digit of which the top quarter is seen, with a noise at each pixel: coarea along the manifold of 246 inputs and in coordinates
(`structure="chart"`), where the noise is solved for and the code moved alone; BlackJAX's NUTS on the density of the code, which this model happens to have, with a diagonal mass matrix,
as it has it by default, and with a dense one. First four digits of the test set with the noise of the study (docs/studies/mnist-inpainting.md), 0.05: one chain each, 500 transitions of warm-up, 2 000 draws. Then
a decoded digit with less and less noise: 300 transitions of warm-up, 400 draws.
"""
DIGITS = (4, 1, 7, 12)
NOISES = (0.05, 0.02, 0.005, 0.001)
PEER = "NUTS on the code"


def runs_of(puzzle: Puzzle, draws: int, warmup: int) -> dict:
    """What each is called, and its draws of the code."""
    options = {"draws": draws, "warmup": warmup, "chains": 1}
    chart = puzzle.posterior("chart")

    def density(code):
        u = {"code": code}
        return puzzle.log_likelihood(u, {"y": puzzle.y}) - 0.5 * code @ code

    return {
        "coarea, NUTS()": ours(puzzle.posterior(), "code", **options),
        "coarea, in coordinates, NUTS()": ours(chart, "code", **options),
        "coarea, in coordinates, CHMC()": ours(chart, "code", kernel=co.CHMC(), **options),
        PEER: blackjax_nuts(density, CODE, **options),
        f"{PEER}, dense mass": blackjax_nuts(density, CODE, diagonal=False, **options),
    }


@in_float64
def run() -> Report:
    known = shipped()
    tables, rows = [], {}

    def compare(puzzles: dict[str, Puzzle], kind: str, draws: int, warmup: int) -> None:
        lines = []
        for label, puzzle in puzzles.items():
            found = {n: measured(f) for n, f in runs_of(puzzle, draws, warmup).items()}
            rows.update({(name, label): row for name, row in found.items()})
            best = found["coarea, in coordinates, NUTS()"]
            lines.append([label, *map(told, found.values()), ratio(best, found[PEER])])
            print(lines[-1], flush=True)
        names = [f"{name}, min ESS/s" for name in found]
        tables.append(([kind, *names, "in coordinates, NUTS() × NUTS on the code"], lines))

    digits = {
        f"{known.labels[i]} (number {i})": Puzzle.of(
            known.decoder, see(known.images[i], "top-quarter")
        )
        for i in DIGITS
    }
    compare(digits, "digit", 2000, 500)

    rng = np.random.default_rng(0)
    first = co.sample(digits[next(iter(digits))].posterior(), draws=1, chains=1, progress=False)
    clean = first.posterior["image"].values[0, 0]
    # A decoded digit with noise, cut off at black and white.
    noisy = {
        noise: np.clip(clean + noise * rng.normal(size=clean.shape), 0.0, 1.0) for noise in NOISES
    }
    less = {
        f"{noise:g}": Puzzle.of(known.decoder, see(image, "top-quarter"), noise)
        for noise, image in noisy.items()
    }
    compare(less, "noise", 400, 300)
    lines_of = {
        name: (NOISES, [rows[name, label].rate for label in less]) for name, _ in list(rows)[:5]
    }
    return Report(
        "In-painting",
        ABOUT,
        tables,
        numbers_of({", ".join(key): row for key, row in rows.items()}),
        curves({"min ESS/s": lines_of}, "noise of a pixel", falls=True),
    )
