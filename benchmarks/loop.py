"""A thin loop: observe y = θ₁² + 3θ₀²(θ₀² − 1) + σn = 1, with decreasing noise σ."""

import coarea as co
from benchmarks.harness import Report, curves, measured, numbers_of, shown_rate
from benchmarks.peers import blackjax_nuts, nutpie_nuts, ours
from coarea.precision import in_float64

ABOUT = """
Two standard normal inputs and one observation of a nonlinear function of them, with noise σ. As σ falls, the posterior
becomes a thin loop. All tools use their defaults with 4 chains, 500 warm-up transitions and 1 000 draws. The peers are given
the posterior density. Rates are for θ₀² and θ₁², because the posterior is symmetric in the signs. A rate with R-hat above
1.05 is not meaningful; it is shown in brackets.
"""
NOISE = (1.0, 0.1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)


def level(x):
    """The observed function."""
    return x[1] ** 2 + 3 * x[0] ** 2 * (x[0] ** 2 - 1)


def target(sigma):
    def simulate(u):
        return {"theta": u["theta"], "y": level(u["theta"]) + sigma * u["n"]}

    return co.condition(co.Generator(simulate, {"theta": 2, "n": ()}), {"y": 1.0})


def pymc_model(sigma):
    import pymc as pm

    with pm.Model() as model:
        pm.Normal("y", level(pm.Normal("theta", 0.0, 1.0, shape=2)), sigma, observed=1.0)
    return model


def squared(draw):
    return lambda seed: draw(seed) ** 2


@in_float64
def run() -> Report:
    options = {"draws": 1000, "warmup": 500, "chains": 4}
    rows, lines = {}, []
    for sigma in NOISE:

        def log_density(x, sigma=sigma):
            return -0.5 * ((1 - level(x)) / sigma) ** 2 - 0.5 * x @ x

        runs = {
            "coarea": ours(target(sigma), "theta", **options),
            "BlackJAX NUTS": blackjax_nuts(log_density, 2, **options),
            "nutpie": nutpie_nuts(pymc_model(sigma), "theta", **options),
        }
        found = {name: measured(squared(draw)) for name, draw in runs.items()}
        rows |= {(name, sigma): row for name, row in found.items()}
        lines.append([f"{sigma:g}", *(shown_rate(row) for row in found.values())])
    heading = ["σ", *(f"{name}, min ESS/s" for name in runs)]
    lines_of = {name: (NOISE, [rows[name, sigma].rate for sigma in NOISE]) for name in runs}
    return Report(
        "Thin loop with decreasing noise",
        ABOUT,
        [(heading, lines)],
        numbers_of(rows),
        curves({"min ESS/s": lines_of}, "noise σ", falls=True),
    )
