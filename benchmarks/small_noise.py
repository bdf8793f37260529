"""Regression with decreasing noise: the same NumPyro model for coarea and NumPyro."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import coarea as co
from benchmarks.harness import Report, curves, measured, numbers_of, ratio, shown_rate
from benchmarks.peers import numpyro_nuts, ours
from coarea.precision import in_float64

ABOUT = """
Four nonlinear observations of six coefficients, with noise σ. The observations do not determine all coefficients, so the
posterior becomes a thin curved shell as σ falls. Both tools are given the same NumPyro model and use their defaults with
2 chains, 500 warm-up transitions and 1 000 draws. A rate with R-hat above 1.05 is not meaningful; it is shown in brackets,
without a ratio.
"""
NOISE = 10.0 ** -np.arange(1, 7)
X = np.random.default_rng(0).normal(size=(4, 6))
TRUTH = np.random.default_rng(1).normal(size=6)


def model(sigma, y=None):
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([6]).to_event(1))
    numpyro.sample("y", dist.Normal(jnp.exp(0.5 * X @ beta), sigma).to_event(1), obs=y)


@in_float64
def run() -> Report:
    options = {"draws": 1000, "warmup": 500, "chains": 2}
    rows, lines = {}, []
    for sigma in map(float, NOISE):
        y = np.exp(0.5 * X @ TRUTH) + sigma * np.random.default_rng(2).normal(size=4)
        runs = {
            "coarea": ours(co.condition(model, args=(sigma, y)), "beta", **options),
            "NumPyro NUTS": numpyro_nuts(model, "beta", sigma, y, **options),
        }
        found = {name: measured(draw) for name, draw in runs.items()}
        rows |= {(name, sigma): row for name, row in found.items()}
        lines.append([f"{sigma:.0e}", *map(shown_rate, found.values()), ratio(*found.values())])
    heading = ["σ", *(f"{name}, min ESS/s" for name in runs), "ratio"]
    lines_of = {name: (NOISE, [rows[name, s].rate for s in map(float, NOISE)]) for name in runs}
    return Report(
        "Regression with decreasing noise",
        ABOUT,
        [(heading, lines)],
        numbers_of(rows),
        curves({"min ESS/s": lines_of}, "noise σ", falls=True),
    )
