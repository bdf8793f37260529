"""A neuron model: one of its two variables is observed, at discrete times."""

import numpy as np

import coarea as co
from benchmarks.harness import Report, against, bars, measured, numbers_of
from coarea.studies import fitzhugh_nagumo

ABOUT = """
The FitzHugh–Nagumo diffusion, with its voltage observed without noise at 100 times and 25 steps between observations:
5 006 random inputs, no likelihood. One chain, 300 warm-up transitions, 500 draws. No peer is run here. For the best earlier
code (manifold-mcmc-for-diffusions, with mici) the published rate is 0.95 effective draws per second, for two chains on
another machine.
"""
PUBLISHED = 0.95


def run() -> Report:
    y = fitzhugh_nagumo.dataset(0, 100)[:, 0]
    posterior = co.condition(fitzhugh_nagumo.model(100), {"y": y})
    steps = []

    def draw(seed):
        result = co.sample(posterior, draws=500, warmup=300, chains=1, seed=seed, progress=False)
        steps.append(int(result.sample_stats["n_steps"].sum()))
        return np.stack([result.posterior[name].values for name in fitzhugh_nagumo.TRUTH], axis=-1)

    row = measured(draw)
    heading, lines = against({"coarea, NUTS()": row}, [])
    heading, line = [*heading, "steps per draw"], [*lines[0], f"{steps[-1] / 500:.1f}"]
    return Report(
        "FitzHugh–Nagumo, partially observed",
        ABOUT,
        [(heading, [line])],
        numbers_of({"coarea": row}),
        bars({"coarea, NUTS()": row.rate, "best earlier code, as published": PUBLISHED}),
    )
