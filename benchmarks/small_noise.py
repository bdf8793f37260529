"""Regression with ever less noise: NUTS on the density against the manifold.

`python benchmarks/small_noise.py`. Four curved readings of six coefficients, noise σ; the rest
of the coefficients stays free, so that as σ falls the posterior becomes a thin shell, curved. Both
are given the same NumPyro model and their own defaults, warm-up included, compilation left out.
"""

import time
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from arviz_stats.sampling_diagnostics import ess, rhat
from rich.console import Console
from rich.table import Table

import coarea as co

X = np.random.default_rng(0).normal(size=(4, 6))
TRUTH = np.random.default_rng(1).normal(size=6)


def model(sigma, y=None):
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([6]).to_event(1))
    numpyro.sample("y", dist.Normal(jnp.exp(0.5 * X @ beta), sigma).to_event(1), obs=y)


def summarised(beta, seconds):
    least = min(float(ess(beta[..., i])) for i in range(6))
    return least, max(float(rhat(beta[..., i])) for i in range(6)), least / seconds


def ours(sigma, y, draws, warmup):
    posterior = co.condition(model, args=(sigma, y))
    options = {"chains": 2, "progress": False}
    co.sample(posterior, draws=2, warmup=20, **options)
    began = time.perf_counter()
    result = co.sample(posterior, draws=draws, warmup=warmup, **options)
    return summarised(result.posterior["beta"].values, time.perf_counter() - began)


def theirs(sigma, y, draws, warmup):
    kernel = numpyro.infer.NUTS(model)
    sampler = numpyro.infer.MCMC(
        kernel,
        num_warmup=warmup,
        num_samples=draws,
        num_chains=2,
        chain_method="sequential",
        progress_bar=False,
    )
    with jax.enable_x64(True):
        sampler.run(jax.random.key(0), sigma, y)
        began = time.perf_counter()
        sampler.run(jax.random.key(1), sigma, y)
        beta = np.asarray(sampler.get_samples(group_by_chain=True)["beta"])
    return summarised(beta, time.perf_counter() - began)


def main(draws=1000, warmup=500):
    table = Table(
        "σ", "coarea ESS", "R-hat", "min ESS/s", "NumPyro NUTS ESS", "R-hat", "min ESS/s", "ratio"
    )
    for sigma in 10.0 ** -np.arange(1, 7):
        noise = np.random.default_rng(2).normal(size=4)
        y = np.exp(0.5 * X @ TRUTH) + sigma * noise
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            rows = [run(float(sigma), y, draws, warmup) for run in (ours, theirs)]
        cells = [f"{n:.{k}f}" for row in rows for n, k in zip(row, (0, 3, 1), strict=True)]
        table.add_row(f"{sigma:.0e}", *cells, f"{rows[0][2] / rows[1][2]:.1f}")
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
