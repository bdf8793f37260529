"""The paper's first study: infer the rates of a predator–prey simulator, observed exactly."""

import jax
import jax.numpy as jnp
import numpy as np

import coarea as co
from benchmarks.harness import Report, against, bars, measured, numbers_of, short
from benchmarks.peers import blackjax_nuts, mici_chmc, numpyro_nuts, nutpie_nuts, ours
from coarea.precision import in_float64
from coarea.studies import lotka_volterra

ABOUT = """
50 steps with both populations observed exactly after each: 104 random inputs, 100 constraints, four unknown rates. This
simulator happens to have a closed-form likelihood. NUTS of NumPyro, BlackJAX and nutpie (PyMC, Numba) is *given* this
likelihood. coarea and mici are given only the simulator.

- coarea: `co.Markov` describes the model by its time step; `co.Generator` is the model written as one function. The chart
  (`parametrisation="chart"`) solves for the noise and samples only the four rates.
- mici: one chain of 400 draws from a start point found by coarea. One run uses mici's own warm-up and dynamic
  trajectories, like the other tools. The other run ("tuned by hand") has no warm-up and the best of several step sizes
  tried (1, with one or two steps per draw). mici's system for normal inputs did not move at any step size from 0.25 to 1.5.
- Elliptical slice ABC draws from an approximation (tolerance 100).

Warm-up has 500 transitions. nutpie and coarea use both cores. In the table of 16 chains, mici's rate is taken to be twice
its single-chain rate, with one process per core.
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
    """The log density of the rates' standard normal inputs, given the populations."""
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
    markov = co.condition(lotka_volterra.markov_generator(), {"y": y})
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
            "coarea, co.Markov": ours(markov, "z", np.log, **options),
            "coarea, co.Markov, manifold": ours(
                markov, "z", np.log, parametrisation="manifold", **options
            ),
            "coarea, co.Markov, chart": ours(
                markov, "z", np.log, parametrisation="chart", **options
            ),
            "coarea, co.Markov, NUTS()": ours(markov, "z", np.log, kernel=co.NUTS(), **options),
            "coarea, co.Generator": ours(found, "z", np.log, **{**options, "draws": draws // 5}),
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
            heading.append("× two mici processes")
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
        bars(rates, "min ESS/s (last number: number of chains)"),
    )
