"""Targets of many kinds, sampled with no option given, and what a ladder of noise does to samplers.

For each target: the worst R-hat, the smallest effective sample size, the failures, and how far the
means of some functions are from their reference, in Monte Carlo standard errors. Then the loop
y = θ₁² + 3θ₀²(θ₀² − 1) + σn, seen at y = 1, for σ from 1 to 1e-6: effective samples per integration
step of coarea, and of NUTS (BlackJAX, window adaptation) on the posterior density of θ.

`python -m benchmarks.zoo [name …]` runs all or some.
"""

import sys
import time
import warnings
from pathlib import Path

import blackjax
import jax
import numpy as np
from arviz_stats.sampling_diagnostics import ess, rhat
from rich.console import Console
from rich.table import Table

import coarea as co
from benchmarks.targets import CASES, LOOP_NOISE, loop

OUT = Path(__file__).parent / "out"


def judged(name, case):
    """One row of the table, and effective samples per step."""
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        draws = co.sample(case.target)
    seconds = time.perf_counter() - began
    off, worst_rhat, least_ess = [], 1.0, np.inf
    for function, exact in case.functions.values():
        x = function(draws.posterior)
        off.append((x.mean() - exact) / (x.std() / np.sqrt(float(ess(x, method="mean")))))
        worst_rhat = max(worst_rhat, float(rhat(x)))
        least_ess = min(least_ess, float(ess(x)))
    stats = draws.sample_stats
    failed = stats["convergence_error"] | stats["non_reversible_step"]
    per_step = least_ess / float(stats["n_steps"].sum())
    return per_step, (
        name,
        str(case.target.num_inputs),
        str(case.target.num_constraints),
        f"{worst_rhat:.3f}",
        f"{least_ess:.0f}",
        f"{per_step:.4f}",
        f"{float(failed.mean()):.2%}",
        f"{float(stats['step_size'].mean()):.2g}",
        " ".join(f"{x:+.1f}" for x in off),
        f"{seconds:.0f}",
    )


def nuts_on_the_density(sigma, chains=4, warmup=500, draws=1000):
    """Effective samples per step of NUTS given the likelihood, and the worst R-hat."""

    def log_density(theta):
        level = theta[1] ** 2 + 3 * theta[0] ** 2 * (theta[0] ** 2 - 1)
        return -0.5 * ((1 - level) / sigma) ** 2 - 0.5 * theta @ theta

    def one(key):
        start_key, warmup_key, run_key = jax.random.split(key, 3)
        adapt = blackjax.window_adaptation(blackjax.nuts, log_density)
        start = jax.random.normal(start_key, (2,))
        (state, parameters), _ = adapt.run(warmup_key, start, num_steps=warmup)
        kernel = blackjax.nuts(log_density, **parameters)

        def step(state, key):
            state, info = kernel.step(key, state)
            return state, (state.position, info.num_integration_steps)

        return jax.lax.scan(step, state, jax.random.split(run_key, draws))[1]

    with jax.enable_x64(True):
        keys = jax.random.split(jax.random.key(0), chains)
        theta, steps = jax.tree.map(np.asarray, jax.jit(lambda keys: jax.lax.map(one, keys))(keys))
    squares = theta**2
    # Chains that never agree have no effective size worth the name; R-hat says so.
    least = min(float(ess(squares[..., i])) for i in range(2))
    worst = max(float(rhat(squares[..., i])) for i in range(2))
    return least / float(np.sum(steps)), worst


def figure(ours, theirs):
    import matplotlib.pyplot as plt

    _, axes = plt.subplots(figsize=(5.5, 3.6), layout="constrained")
    axes.loglog(LOOP_NOISE, ours, "o-", color="#0072B2", label="coarea, exact noise")
    axes.loglog(LOOP_NOISE, theirs, "s--", color="#D55E00", label="NUTS on the posterior density")
    axes.set(xlabel="noise σ", ylabel="effective samples per integration step")
    axes.invert_xaxis()
    axes.legend(frameon=False)
    OUT.mkdir(exist_ok=True)
    plt.savefig(OUT / "loop.png", dpi=150)


def main(names):
    console = Console(width=124)
    table = Table(
        "target", "M", "N", "R-hat", "min ESS", "ESS/step", "failures", "step", "errors off", "s"
    )
    for name in names or CASES:
        _, row = judged(name, CASES[name]())
        table.add_row(*row)
        console.print(f"{name}: {row[-1]} s", style="dim")
    if not names:
        ours, theirs = [], []
        ladder = Table("σ", "coarea, ESS/step", "NUTS on the density, ESS/step", "its R-hat")
        for sigma in LOOP_NOISE:
            per_step, row = judged(f"loop, σ = {sigma:g}", loop(sigma))
            table.add_row(*row)
            peer, worst = nuts_on_the_density(sigma)
            ours.append(per_step)
            theirs.append(peer)
            ladder.add_row(f"{sigma:g}", f"{per_step:.4f}", f"{peer:.2g}", f"{worst:.2f}")
        figure(ours, theirs)
    console.print(table)
    if not names:
        console.print(ladder)


if __name__ == "__main__":
    main(sys.argv[1:])
