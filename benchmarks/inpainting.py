"""In-painting compared with NUTS on the code: four digits, and decreasing noise."""

import numpy as np

import coarea as co
from benchmarks.harness import Report, curves, measured, numbers_of, ratio, shown_rate
from benchmarks.peers import blackjax_nuts, ours
from coarea.precision import in_float64
from coarea.studies.mnist.masks import see
from coarea.studies.mnist.model import Puzzle
from coarea.studies.mnist.networks import CODE, shipped

ABOUT = """
Infer the code (50 elements) of a digit whose top quarter is observed, with noise on each pixel. coarea runs along the manifold
of 246 inputs, and in the chart (`parametrisation="chart"`), which solves for the noise and samples only the code. The peer is
BlackJAX's NUTS on the density of the code, which this model happens to have. It is run with a diagonal mass matrix, its
default, and with a dense one.

The first table has four digits of the test set with noise 0.05, as in the study (docs/studies/mnist-inpainting.md): one chain
each, 500 warm-up transitions, 2 000 draws. The second has one decoded digit with decreasing noise: 300 warm-up transitions,
400 draws.
"""
DIGITS = (4, 1, 7, 12)
NOISES = (0.05, 0.02, 0.005, 0.001)
PEER = "NUTS on the code"


def runs_of(puzzle: Puzzle, draws: int, warmup: int) -> dict:
    """The methods by name; each draws codes."""
    options = {"draws": draws, "warmup": warmup, "chains": 1}
    posterior, on_chart = puzzle.posterior(), {**options, "parametrisation": "chart"}

    def density(code):
        u = {"code": code}
        return puzzle.log_likelihood(u, {"y": puzzle.y}) - 0.5 * code @ code

    return {
        "coarea": ours(posterior, "code", **options),
        "coarea, NUTS()": ours(posterior, "code", kernel=co.NUTS(), **options),
        "coarea, chart, NUTS()": ours(posterior, "code", kernel=co.NUTS(), **on_chart),
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
            best = found["coarea"]
            lines.append([label, *map(shown_rate, found.values()), ratio(best, found[PEER])])
            print(lines[-1], flush=True)
        names = [f"{name}, min ESS/s" for name in found]
        tables.append(([kind, *names, "coarea / NUTS on the code"], lines))

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
    # A decoded digit with noise, clipped to [0, 1].
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
        curves({"min ESS/s": lines_of}, "pixel noise", falls=True),
    )
