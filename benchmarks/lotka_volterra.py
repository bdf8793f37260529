"""The paper's first study: rates of a predator–prey simulator from its exactly seen populations."""

import jax
import jax.numpy as jnp
import numpy as np

import coarea as co
from benchmarks.harness import Report, against, bars, measured, numbers_of, short
from benchmarks.peers import blackjax_nuts, mici_chmc, numpyro_nuts, nutpie_nuts, ours
from coarea.precision import in_float64
from coarea.studies import lotka_volterra

ABOUT = """
50 steps, both populations seen exactly after each: 104 random inputs, 100 constraints, four rates wanted. This simulator
happens to have a likelihood in closed form; NUTS of NumPyro, BlackJAX and nutpie (PyMC, Numba) are *given* it, and
what coarea and mici are given is the simulator. coarea's `co.Markov` tells the model step by step, `co.Generator` as one
function; in coordinates (`structure="chart"`) the noise is solved for and the four rates are moved alone. mici has one chain of 400 draws from a start of coarea's, once with its own warm-up and dynamic trajectories, as the others, and once
without warm-up and of some steps tried the best (1, one or two of them a draw; its system for normal inputs did not move at any of 0.25 to 1.5); the elliptical slice sampler draws
from an approximation (tolerance 100). 500 transitions of warm-up each, nutpie and coarea on both cores. Where chains are many mici is reckoned at twice its one chain's rate, a process a core.
"""


def before_and(y):
    """The populations before each step."""
    return np.concatenate([[lotka_volterra.START], y[:-1]])


def numpyro_model(y):
    """The likelihood in closed form."""
    import numpyro
    import numpyro.distributions as dist

    before = before_and(y)

    def model():
        z = jnp.exp(numpyro.sample("log_z", dist.Normal(-2.0, 1.0).expand([4])))
        mean = before + lotka_volterra.drift(z, before)
        numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)

    return model


def log_density(y):
    """Of the standard normal inputs of the rates, given the populations."""
    before = before_and(y)

    def of(v):
        mean = before + lotka_volterra.drift(lotka_volterra.rates({"z": v}), before)
        return -0.5 * jnp.sum((y - mean) ** 2) - 0.5 * v @ v

    return of


def pymc_model(y):
    """The same for PyMC."""
    import pymc as pm

    a, b = before_and(y).T
    with pm.Model() as model:
        z = pm.math.exp(pm.Normal("v", 0.0, 1.0, shape=4) - 2.0)
        pm.Normal("prey", a + z[0] * a - z[1] * a * b, 1.0, observed=y[:, 0])
        pm.Normal("predators", b - z[2] * b + z[3] * a * b, 1.0, observed=y[:, 1])
    return model


@in_float64
def run() -> Report:
    y = lotka_volterra.dataset(seed=0)
    told = co.condition(lotka_volterra.markov_generator(), {"y": y})
    chart = co.condition(lotka_volterra.markov_generator(), {"y": y}, structure="chart")
    found = co.condition(lotka_volterra.generator(), {"y": y})
    dense = co.condition(lotka_volterra.generator(), {"y": y}, structure="dense")
    start = co.find_start(dense, jax.random.key(0), 1)[0]
    slices = {"epsilon": 100.0, "warmup": 500, "progress": False}

    def elliptical(seed, chains):
        result = co.approximate.elliptical_slice(
            lotka_volterra.generator(), {"y": y}, draws=5000, chains=chains, seed=seed, **slices
        )
        return np.log(result.posterior["z"].values)

    tables, numbers, rates = [], {}, {}
    both_cores = np.nan
    for chains, draws in ((1, 20_000), (16, 5_000)):
        options = {"draws": draws, "warmup": 500, "chains": chains}
        runs = {
            "coarea, co.Markov, NUTS()": ours(told, "z", np.log, **options),
            "coarea, co.Markov, CHMC()": ours(told, "z", np.log, kernel=co.CHMC(), **options),
            "coarea, in coordinates, NUTS()": ours(chart, "z", np.log, **options),
            "coarea, in coordinates, CHMC()": ours(chart, "z", np.log, kernel=co.CHMC(), **options),
            "coarea, co.Generator, NUTS()": ours(
                found, "z", np.log, **{**options, "draws": draws // 5}
            ),
            "nutpie, given the likelihood": nutpie_nuts(pymc_model(y), "v", **options),
            "BlackJAX, given the likelihood": blackjax_nuts(log_density(y), 4, **options),
            "NumPyro, given the likelihood": numpyro_nuts(numpyro_model(y), "log_z", **options),
            "elliptical slice ABC": lambda seed, chains=chains: elliptical(seed, chains),
        }
        if chains == 1:
            runs["mici"] = mici_chmc(dense, start, 400, 4, warmup=500)
            runs["mici, tuned by hand"] = mici_chmc(dense, start, 400, 4, 1.0, (1, 3))
        rows = {name: measured(draw) for name, draw in runs.items()}
        peers = ["nutpie, given the likelihood", "NumPyro, given the likelihood"]
        heading, lines = against(
            rows, peers + (["mici", "mici, tuned by hand"] if chains == 1 else [])
        )
        heading[0] = "1 chain" if chains == 1 else f"{chains} chains"
        if chains == 1:
            both_cores = 2 * rows["mici"].rate
        else:
            heading.append("× two processes of mici")
            for line, row in zip(lines, rows.values(), strict=True):
                line.append(short(row.rate / both_cores) if row.has_mixed else "")
        tables.append((heading, lines))
        numbers[f"{chains} chains"] = numbers_of(rows)
        rates |= {f"{name}, {chains}": row.rate for name, row in rows.items()}
    return Report(
        "Lotka–Volterra, fully observed",
        ABOUT,
        tables,
        numbers,
        bars(rates, "min ESS/s (the last number: chains)"),
    )
