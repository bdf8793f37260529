"""In-painting beside NUTS on the density of the code, as the noise of a pixel falls.

Both draw the code of a digit of which the top quarter is seen: coarea along the manifold,
BlackJAX's NUTS from the density that this model happens to have. One chain each, one run; start
and warm-up included, compilation not.
"""

import time

import numpy as np
from arviz_stats.base.array import array_stats

import coarea as co
from coarea.experiments.mnist.masks import see
from coarea.experiments.mnist.model import Puzzle
from coarea.experiments.mnist.networks import CODE, shipped

NOISES = (0.05, 0.02, 0.01, 0.005, 0.002, 0.001)
DRAWS, WARMUP = 500, 500


def measured(draw):
    draw(2, 99)
    began = time.perf_counter()
    draws = draw(DRAWS, 0)
    seconds = time.perf_counter() - began
    code = draws.posterior["code"].values
    size = array_stats.ess(code, chain_axis=0, draw_axis=1).min()
    return size / seconds, draws.sample_stats["n_steps"].values.mean(), draws.posterior


def main():
    known = shipped()
    # A decoded digit with noise, cut off at black and white.
    rng = np.random.default_rng(0)
    whole = Puzzle.of(known.decoder, see(known.images[4], "top-quarter"))
    first = co.sample(whole.posterior(), draws=1, chains=1, progress=False)
    clean = first.posterior["image"].values[0, 0]
    print(
        "noise    exact: min-ESS/s, steps     on the code: min-ESS/s, steps     difference in sds"
    )
    for noise in NOISES:
        image = np.clip(clean + noise * rng.normal(size=clean.shape), 0.0, 1.0)
        puzzle = Puzzle.of(known.decoder, see(image, "top-quarter"), noise)
        posterior, model = puzzle.posterior(), puzzle.model()

        def exact(draws, seed, posterior=posterior):
            return co.sample(
                posterior, draws=draws, warmup=WARMUP, chains=1, seed=seed, progress=False
            )

        def on_code(draws, seed, puzzle=puzzle, model=model):
            return co.approximate.tractable(
                model,
                {"y": puzzle.y},
                puzzle.log_likelihood,
                outputs=puzzle.report,
                draws=draws,
                warmup=WARMUP,
                chains=1,
                seed=seed,
                progress=False,
            )

        (a, a_steps, x), (b, b_steps, y) = measured(exact), measured(on_code)
        x, y = (z["code"].values.reshape(-1, CODE) for z in (x, y))
        off = np.max(np.abs(x.mean(axis=0) - y.mean(axis=0)) / x.std(axis=0))
        print(
            f"{noise:<8g} {a:10.1f} {a_steps:8.1f} {b:25.1f} {b_steps:8.1f} {off:20.2f}", flush=True
        )


if __name__ == "__main__":
    main()
