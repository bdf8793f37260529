"""In-painting beside NUTS on the density of the code, as the noise of a pixel falls."""

import numpy as np

import coarea as co
from benchmarks.harness import Report, curves, measured, numbers_of, ratio, told
from benchmarks.peers import ours
from coarea.experiments.mnist.masks import see
from coarea.experiments.mnist.model import Puzzle
from coarea.experiments.mnist.networks import shipped

ABOUT = """
The code (50 elements) of a decoded digit of which the top quarter is seen, with a noise at each pixel: coarea along the manifold of 246 inputs,
BlackJAX's NUTS on the density of the code, which this model happens to have. One chain each, 300 transitions of warm-up, 400 draws; the
study of this model (docs/studies/mnist-inpainting.md) has a noise of 0.05.
"""
NOISES = (0.05, 0.02, 0.005, 0.001)
OPTIONS = {"draws": 400, "warmup": 300, "chains": 1}


def run() -> Report:
    known = shipped()
    rng = np.random.default_rng(0)
    whole = Puzzle.of(known.decoder, see(known.images[4], "top-quarter"))
    first = co.sample(whole.posterior(), draws=1, chains=1, progress=False)
    clean = first.posterior["image"].values[0, 0]
    rows, lines = {}, []
    for noise in NOISES:
        # A decoded digit with noise, cut off at black and white.
        image = np.clip(clean + noise * rng.normal(size=clean.shape), 0.0, 1.0)
        puzzle = Puzzle.of(known.decoder, see(image, "top-quarter"), noise)

        def on_code(seed, puzzle=puzzle):
            result = co.approximate.tractable(
                puzzle.model(),
                {"y": puzzle.y},
                puzzle.log_likelihood,
                outputs=puzzle.report,
                seed=seed,
                progress=False,
                **OPTIONS,
            )
            return result.posterior["code"].values

        found = {
            "coarea": measured(ours(puzzle.posterior(), "code", **OPTIONS)),
            "NUTS on the code": measured(on_code),
        }
        rows |= {(name, noise): row for name, row in found.items()}
        lines.append([f"{noise:g}", *map(told, found.values()), ratio(*found.values())])
    heading = ["noise", *(f"{name}, min ESS/s" for name in found), "ratio"]
    lines_of = {name: (NOISES, [rows[name, s].rate for s in NOISES]) for name in found}
    return Report(
        "In-painting with less and less noise",
        ABOUT,
        [(heading, lines)],
        numbers_of(rows),
        curves({"min ESS/s": lines_of}, "noise of a pixel", falls=True),
    )
