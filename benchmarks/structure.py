"""What structure saves: Lotka–Volterra beside its peers, cost against length, a neuron in part.

`python benchmarks/structure.py [lotka-volterra | scaling | fitzhugh-nagumo]` runs all or one;
figures go to `out/`. Times include warm-up and starts; compilation is left out by running twice.
"""

import logging
import sys
import time
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from arviz_stats.sampling_diagnostics import ess
from rich.console import Console
from rich.table import Table

import coarea as co
from coarea.dynamics import Rattle
from coarea.experiments import fitzhugh_nagumo, lotka_volterra

OUT = Path(__file__).parent / "out"
console = Console(width=120)


def least_ess(draws) -> float:
    """Of arrays (chain, draw), the smallest effective sample size."""
    return min(float(ess(x)) for x in draws)


def timed(target, **options):
    """A run of `sample`, its seconds and those of the first one, compilation included."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        began = time.perf_counter()
        co.sample(target, **{**options, "draws": 2, "warmup": 20}, progress=False)
        first = time.perf_counter() - began
        began = time.perf_counter()
        result = co.sample(target, **options, progress=False)
    return result, time.perf_counter() - began, first


def numpyro_given_the_likelihood(y, draws, warmup):
    """NumPyro's NUTS on the closed-form posterior of the rates."""
    import numpyro
    import numpyro.distributions as dist

    before = np.concatenate([[lotka_volterra.START], y[:-1]])

    def model():
        z = jnp.exp(numpyro.sample("log_z", dist.Normal(-2.0, 1.0).expand([4])))
        a, b = before.T
        drift = jnp.stack([z[0] * a - z[1] * a * b, -z[2] * b + z[3] * a * b], axis=1)
        numpyro.sample("y", dist.Normal(before + drift, 1.0), obs=y)

    kernel = numpyro.infer.NUTS(model)
    sampler = numpyro.infer.MCMC(
        kernel, num_warmup=warmup, num_samples=draws, num_chains=1, progress_bar=False
    )
    with jax.enable_x64(True):
        sampler.run(jax.random.key(0))
        began = time.perf_counter()
        sampler.run(jax.random.key(1))
        z = np.asarray(sampler.get_samples()["log_z"])
    return z[None], time.perf_counter() - began


def mici_without_it(y, draws):
    """mici at the best of the settings that its own benchmark tries, from a start of ours."""
    import mici
    from dense_lotka_volterra import SETTINGS, run_mici

    logging.disable(logging.WARNING)
    posterior = co.condition(lotka_volterra.generator(), {"y": y}, structure="dense")
    start = co.find_start(posterior, jax.random.key(0), 1)[0]
    solver = mici.solvers.solve_projection_onto_manifold_quasi_newton
    with jax.enable_x64(True):
        for threads in (None, 1):
            row = run_mici(posterior, start, *SETTINGS["long"], solver, threads, draws)
            yield threads, row["log_z"], row["seconds"]


def compare_lotka_volterra(draws=5000, warmup=500):
    y = lotka_volterra.dataset(seed=0)
    generator = lotka_volterra.generator()
    targets = {
        "dense": co.condition(generator, {"y": y}, structure="dense"),
        "triangular (found)": co.condition(generator, {"y": y}),
        "elementwise (co.Markov)": co.condition(lotka_volterra.markov_generator(), {"y": y}),
    }
    z, seconds = numpyro_given_the_likelihood(y, draws, warmup)
    rows = {"NumPyro NUTS given the likelihood": (least_ess(np.moveaxis(z, -1, 0)), seconds)}
    for threads, z, seconds in mici_without_it(y, 300):
        name = "mici" if threads is None else "mici, BLAS in one thread"
        rows[name] = (least_ess(np.moveaxis(z, -1, 0)), seconds)
    for name, target in targets.items():
        for kernel in (co.NUTS(), co.CHMC()):
            result, seconds, _ = timed(target, draws=draws, warmup=warmup, chains=1, kernel=kernel)
            z = np.log(result.posterior["z"].values)
            rows[f"coarea {name}, {type(kernel).__name__}()"] = (
                least_ess(np.moveaxis(z, -1, 0)),
                seconds,
            )
    table = Table(
        "one chain", "min ESS", "s", "min ESS/s", "× NumPyro", "× mici", "× mici, 1 thread"
    )
    peers = [name for name in rows if not name.startswith("coarea")]
    for name, (size, seconds) in rows.items():
        ratios = [size / seconds / (rows[peer][0] / rows[peer][1]) for peer in peers]
        table.add_row(
            name,
            f"{size:.0f}",
            f"{seconds:.2f}",
            f"{size / seconds:.1f}",
            *(f"{r:.2f}" for r in ratios),
        )
    console.print(table)


def reverting(T, sees_all) -> co.Markov:
    """A nonlinear process in two dimensions that reverts to zero, for any length."""

    def step(s, x, n, t):
        pull = jnp.stack([0.8 * jnp.tanh(x[0]) - 0.3 * x[1], 0.7 * x[1] + 0.2 * jnp.sin(x[0])])
        return pull * jnp.exp(0.1 * s["z"][0]) + jnp.exp(0.2 * s["z"][1] - 1.0) * n

    return co.Markov(
        shared={"z": 2},
        noise=2,
        steps=T,
        initial=lambda s, n: jnp.zeros(2),
        step=step,
        observe=None if sees_all else (lambda s, x, n, t: x[0] + 0.1 * x[1]),
    )


def step_cost(target, u, repeats=30):
    """Microseconds of one integration step, and the bytes it needs beside its state."""
    integrator = Rattle()
    with jax.enable_x64(True):
        u = jnp.asarray(u)
        state = jax.jit(
            lambda u: integrator.refresh(jax.random.key(0), integrator.init(target, u))
        )(u)
        step = jax.jit(lambda s: integrator.step(target, s, jnp.asarray(0.05)))
        compiled = step.lower(state).compile()
        compiled(state)
        times = []
        for _ in range(repeats):
            began = time.perf_counter()
            end = jax.block_until_ready(compiled(state))
            times.append(time.perf_counter() - began)
        assert not bool(end.failed)
    return 1e6 * float(np.median(times)), compiled.memory_analysis().temp_size_in_bytes


def scaling():
    lengths = {
        "teacher-forced": [50 * 4**k for k in range(5)],
        "lifted": [50 * 4**k for k in range(5)],
        "triangular": [50, 100, 200, 400, 800],
    }
    table = Table("", "T", "µs a step", "MB", "exponent of time", "of memory")
    measured = {}
    for name, sizes in lengths.items():
        for T in sizes:
            model = reverting(T, sees_all=name != "lifted")
            y = model.simulate(jax.random.key(1), 1)["y"][0]
            posterior = co.condition(model, {"y": y})
            u = co.find_start(posterior, jax.random.key(0), 1)[0]
            if name == "triangular":  # the same inputs, told as one scan
                posterior = co.condition(model, {"y": y}, structure="triangular")
            time_, memory = step_cost(posterior, u)
            measured.setdefault(name, []).append((T, time_, memory))
            last = measured[name][-2:]
            grows = [""] * 2
            if len(last) == 2:
                (T0, *before), (T1, *after) = last
                grows = [
                    f"{np.log(b / a) / np.log(T1 / T0):.2f}"
                    for a, b in zip(before, after, strict=True)
                ]
            table.add_row(name, str(T), f"{time_:.0f}", f"{memory / 1e6:.2f}", *grows)
    console.print(table)
    figure(measured)


def figure(measured):
    import matplotlib.pyplot as plt

    whole, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    styles = {
        "teacher-forced": ("o-", "#0072B2"),
        "lifted": ("s-", "#D55E00"),
        "triangular": ("^--", "#009E73"),
    }
    for name, rows in measured.items():
        T, times, memory = np.array(rows).T
        style, colour = styles[name]
        axes[0].loglog(T, times, style, color=colour, label=name)
        axes[1].loglog(T, memory / 1e6, style, color=colour, label=name)
    axes[0].set(xlabel="steps T", ylabel="µs for one integration step")
    axes[1].set(xlabel="steps T", ylabel="MB beside the state")
    axes[1].legend(frameon=False, loc="lower right")
    OUT.mkdir(exist_ok=True)
    whole.savefig(OUT / "scaling.png", dpi=150)


def neuron(draws=500, warmup=300):
    table = Table("observations", "min ESS", "s", "min ESS/s", "sampling alone", "ms/step",
                  "steps/draw", "failures", "first run, s")  # fmt: skip
    for observations in (25, 100, 400):
        y = fitzhugh_nagumo.dataset(0, observations)[:, 0]
        posterior = co.condition(fitzhugh_nagumo.model(observations), {"y": y})
        if observations != 100:
            u = co.find_start(posterior, jax.random.key(0), 1)[0]
            time_, _ = step_cost(posterior, u)
            table.add_row(str(observations), "", "", "", "", f"{time_ / 1e3:.2f}")
            continue
        result, seconds, first = timed(posterior, draws=draws, warmup=warmup, chains=1)
        stats = result.sample_stats
        size = least_ess([result.posterior[name].values for name in fitzhugh_nagumo.TRUTH])
        steps = float(stats["n_steps"].mean())
        failed = stats["convergence_error"] | stats["non_reversible_step"]
        u = result.adapted["position"].values[0]
        table.add_row(
            str(observations),
            f"{size:.0f}",
            f"{seconds:.1f}",
            f"{size / seconds:.1f}",
            f"{size / seconds * (draws + warmup) / draws:.1f}",
            f"{step_cost(posterior, u)[0] / 1e3:.2f}",
            f"{steps:.1f}",
            f"{float(failed.mean()):.2%}",
            f"{first:.0f}",
        )
    console.print(table)


PARTS = {"lotka-volterra": compare_lotka_volterra, "scaling": scaling, "fitzhugh-nagumo": neuron}

if __name__ == "__main__":
    for part in sys.argv[1:] or PARTS:
        PARTS[part]()
