"""Chains by the thousand on an accelerator. Run by hand where there is one."""

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
`co.sample` with all chains vectorised on one card: whole runs, start, warm-up and the way of the draws to the host included, compilation
apart. Effective sizes are those of 256 of the chains, times what fraction of all they are. Chains that run in step
want trajectories of one length, as `CHMC(num_steps=…)` has them: where each has its own, all wait for the longest. In coordinates (`structure="chart"`) noise is solved for, and a step
costs a gradient. The limit is the time in which the card could read and write every chain's state, its linearisation included, once an integration step at 4.8 TB/s, or, where
that takes longer, make the operations that XLA counts in one evaluation of density and gradient at the 67 TFLOP/s (double; in single precision the same) of its data sheet; projections and checks are not in it. Memory is the most that was in use up to the end of a case.
"""
BANDWIDTH, OPERATIONS = 4.8e12, 67e12
HEADING = [
    "",
    "chains",
    "draws + warm-up",
    "first run, s",
    "s",
    "ms a transition of all",
    "R-hat",
    "min ESS/s",
    "of the limit",
    "memory, GB",
]


def cases():
    y = lotka_volterra.dataset(seed=0)
    told = co.condition(lotka_volterra.markov_generator(), {"y": y})
    one = co.CHMC(num_steps=1)
    for chains in (1024, 8192, 65_536):
        yield "Lotka–Volterra, CHMC(num_steps=1)", told, "z", one, chains, 1000, 200, "float64"
    yield "the same in single precision", told, "z", one, 65_536, 1000, 200, "float32"
    chart = co.condition(lotka_volterra.markov_generator(), {"y": y}, structure="chart")
    two = co.CHMC(num_steps=2)
    for chains in (1024, 8192, 65_536):
        yield "in coordinates, CHMC(num_steps=2)", chart, "z", two, chains, 1000, 200, "float64"
    yield "the same, single precision", chart, "z", two, 65_536, 1000, 200, "float32"
    yield "in coordinates, CHMC()", chart, "z", co.CHMC(), 65_536, 1000, 200, "float64"
    yield "Lotka–Volterra, CHMC()", told, "z", co.CHMC(), 8192, 500, 200, "float64"
    yield "Lotka–Volterra, NUTS()", told, "z", co.NUTS(), 8192, 200, 200, "float64"


def elements(posterior, names):
    """Of 256 chains the named variables, or all, as (chain, draw, element)."""
    names = list(posterior.data_vars) if names is None else np.atleast_1d(names)
    x = [np.asarray(posterior[name].values[:256]) for name in names]
    x = np.concatenate([part.reshape(*part.shape[:2], -1) for part in x], axis=-1)
    return x[..., np.std(x, axis=(0, 1)) > 0]


def least_seconds(target, kernel, chains, steps, precision) -> float:
    """In which the card could make so many steps of each chain, were traffic or arithmetic all.

    XLA counts what is in a loop once; of simulators with long ones, traffic is the limit anyway.
    """
    with computing_in(precision):
        u = jax.ShapeDtypeStruct((target.num_inputs,), float)
        state = jax.eval_shape(lambda u: kernel.init(target, u), u)
        with jax.default_device(jax.devices("cpu")[0]):  # others do not count
            counted = jax.jit(lambda u: target.evaluate(u)).lower(u).cost_analysis()
    size = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state))
    operations = (counted or {}).get("flops", 0.0)
    return chains * steps * max(2 * size / BANDWIDTH, operations / OPERATIONS)


def table(cases) -> tuple[list, dict, dict]:
    """The lines of cases (name, target, names, kernel, chains, draws, warm-up, precision).

    And their rates by name, and numbers.
    """
    lines, rates, numbers = [], {}, {}
    for name, target, names, kernel, chains, draws, warmup, precision in cases:
        options = {"kernel": kernel, "chains": chains, "precision": precision, "progress": False}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                began = time.perf_counter()
                co.sample(target, draws=2, warmup=20, **options)
                first = time.perf_counter() - began
                began = time.perf_counter()
                result = co.sample(target, draws=draws, warmup=warmup, seed=1, **options)
                seconds = time.perf_counter() - began
        except Exception as error:  # a card too small for one case is no reason to lose the others
            lines.append([name, str(chains), type(error).__name__, *[""] * 7])
            print(name, error, flush=True)
            continue
        least, _, rhat = quality(elements(result.posterior, names))
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
            "of the limit": limit,
        }
        del result
        gc.collect()
    return lines, rates, numbers


def run() -> Report:
    lines, rates, numbers = table(cases())
    lines_of = {k: tuple(zip(*v, strict=True)) for k, v in rates.items()}
    figure = curves({"min ESS/s": lines_of}, "chains")
    return Report("On a GPU", ABOUT, [(HEADING, lines)], numbers, figure)
