"""Thousands of chains on a GPU. Run by name on a machine that has one."""

import gc
import time
import warnings

import jax
import numpy as np

import coarea as co
from benchmarks.harness import Report, curves, quality
from coarea.precision import computing_in
from coarea.studies import lotka_volterra

ABOUT = """
`co.sample` on Lotka–Volterra with all chains vectorised on one GPU, in double precision except for the rows marked "single".
Times are for whole runs: they include initialisation, warm-up and the transfer of draws to the host, but not compilation. ESS
is computed from 256 of the chains and scaled to all of them.

Chains run in lockstep. Trajectories should therefore have the same length in all chains, as with `CHMC(num_steps=…)`; if
lengths differ, all chains wait for the longest. The chart (`parametrisation="chart"`) solves for the noise, and each step costs one
gradient.

"Fraction of limit" is a hardware lower bound on the run time, divided by the run time. The bound for one integration step of
all chains is the larger of two times. The first is the time to read and write the state of every chain once, including its
linearisation, at 4.8 TB/s. The second is the time for the operations that XLA counts in one evaluation of density and gradient
per chain, at the 67 TFLOP/s of the data sheet (double precision; single precision is the same). Projections and reverse checks
are not included. Memory is the peak use up to the end of a case.
"""
BANDWIDTH, OPERATIONS = 4.8e12, 67e12
HEADING = [
    "",
    "chains",
    "draws + warm-up",
    "first run, s",
    "run, s",
    "ms per transition (all chains)",
    "R-hat",
    "min ESS/s",
    "fraction of limit",
    "memory, GB",
]


def cases():
    y = lotka_volterra.dataset(seed=0)
    markov = co.condition(lotka_volterra.markov_generator(), {"y": y})
    one = co.CHMC(num_steps=1)
    for chains in (1024, 8192, 65_536):
        yield "manifold, CHMC(num_steps=1)", markov, "z", one, chains, 1000, 200, "float64"
    yield "manifold, CHMC(num_steps=1), single", markov, "z", one, 65_536, 1000, 200, "float32"
    two = co.CHMC(num_steps=2)
    for chains in (1024, 8192, 65_536):
        yield "chart, CHMC(num_steps=2)", markov, "z", two, chains, 1000, 200, "float64"
    yield "chart, CHMC(num_steps=2), single", markov, "z", two, 65_536, 1000, 200, "float32"
    yield "chart, CHMC()", markov, "z", co.CHMC(), 65_536, 1000, 200, "float64"
    yield "manifold, CHMC()", markov, "z", co.CHMC(), 8192, 500, 200, "float64"
    yield "manifold, NUTS()", markov, "z", co.NUTS(), 8192, 200, 200, "float64"


def elements(posterior, names):
    """The named variables, or all, of 256 chains as (chain, draw, element)."""
    names = list(posterior.data_vars) if names is None else np.atleast_1d(names)
    x = [np.asarray(posterior[name].values[:256]) for name in names]
    x = np.concatenate([part.reshape(*part.shape[:2], -1) for part in x], axis=-1)
    return x[..., np.std(x, axis=(0, 1)) > 0]


def least_seconds(target, kernel, chains, steps, precision) -> float:
    """A lower bound on the time for `steps` of each chain, from memory traffic and arithmetic.

    XLA counts the body of a loop only once. For simulators with long loops, traffic is the limit
    anyway.
    """
    with computing_in(precision):
        u = jax.ShapeDtypeStruct((target.num_inputs,), float)
        state = jax.eval_shape(lambda u: kernel.init(target, u), u)
        with jax.default_device(jax.devices("cpu")[0]):  # other backends do not count
            counted = jax.jit(lambda u: target.evaluate(u)).lower(u).cost_analysis()
    size = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state))
    operations = (counted or {}).get("flops", 0.0)
    return chains * steps * max(2 * size / BANDWIDTH, operations / OPERATIONS)


def table(cases) -> tuple[list, dict, dict]:
    """Run cases (name, target, names, kernel, chains, draws, warm-up, precision).

    Returns the table rows, the rates by name and the numbers.
    """
    lines, rates, numbers = [], {}, {}
    for name, target, names, kernel, chains, draws, warmup, precision in cases:
        options = {"kernel": kernel, "chains": chains, "precision": precision, "progress": False}
        options["parametrisation"] = "chart" if "chart" in name else "manifold"
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                began = time.perf_counter()
                co.sample(target, draws=2, warmup=20, **options)
                first = time.perf_counter() - began
                began = time.perf_counter()
                result = co.sample(target, draws=draws, warmup=warmup, seed=1, **options)
                seconds = time.perf_counter() - began
        except Exception as error:  # one case that needs too much memory must not lose the others
            lines.append([name, str(chains), type(error).__name__, *[""] * 7])
            print(name, error, flush=True)
            continue
        *sizes, rhat = quality(elements(result.posterior, names))
        least = min(sizes)
        rate = least * chains / min(chains, 256) / seconds
        rates.setdefault(name, []).append((chains, rate))
        steps = float(result.sample_stats["n_steps"].mean()) * (draws + warmup)
        limit = least_seconds(target, kernel, chains, steps, precision) / seconds
        lines.append(
            [
                name,
                str(chains),
                f"{draws} + {warmup}",
                f"{first:.0f}",
                f"{seconds:.1f}",
                f"{1e3 * seconds / (draws + warmup):.1f}",
                f"{rhat:.3f}",
                f"{rate:.3g}",
                f"{limit:.2%}",
                f"{jax.local_devices()[0].memory_stats()['peak_bytes_in_use'] / 1e9:.1f}",
            ]
        )
        print(lines[-1], flush=True)
        numbers[f"{name}, {chains}"] = {
            "rate": rate,
            "seconds": seconds,
            "rhat": rhat,
            "fraction of limit": limit,
        }
        del result
        gc.collect()
    return lines, rates, numbers


def run() -> Report:
    lines, rates, numbers = table(cases())
    lines_of = {k: tuple(zip(*v, strict=True)) for k, v in rates.items()}
    figure = curves({"min ESS/s": lines_of}, "chains")
    return Report("On a GPU", ABOUT, [(HEADING, lines)], numbers, figure)
