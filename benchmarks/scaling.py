"""Cost against the length of a simulator, the number of chains and the number of cores."""

import json
import os
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

import coarea as co
from benchmarks.harness import Report, curves, measured
from benchmarks.peers import ours
from coarea.dynamics import Rattle
from coarea.precision import in_float64
from coarea.studies import lotka_volterra

ABOUT = """
The first table shows a nonlinear process in two dimensions of length T in three settings: every step observed
(teacher-forced), partly observed (lifted), and every step observed but written as one scan (triangular). It gives the time
of one integration step, and the memory that the step needs in addition to its state.

The second table shows `co.sample` on Lotka–Volterra (`co.Markov`, defaults, 2 000 draws) with increasing numbers of chains,
on one core and on all cores.
"""
LENGTHS = {
    "teacher-forced": [50 * 4**k for k in range(4)],
    "lifted": [50 * 4**k for k in range(4)],
    "triangular": [50, 100, 200, 400],
}
CHAINS = (1, 4, 16, 64)


def reverting(T, sees_all) -> co.Markov:
    """A process that reverts to zero, so that it can have any length."""

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
    """Microseconds of one integration step, and the bytes it needs in addition to its state."""
    integrator = Rattle()
    u = jnp.asarray(u)
    state = jax.jit(lambda u: integrator.refresh(jax.random.key(0), integrator.init(target, u)))(u)
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


def length():
    """A table row for each length, and (T, µs, bytes) by name."""
    lines, found = [], {}
    for name, lengths in LENGTHS.items():
        for T in lengths:
            model = reverting(T, sees_all=name != "lifted")
            y = model.simulate(jax.random.key(1), 1)["y"][0]
            posterior = co.condition(model, {"y": y})
            u = co.find_start(posterior, jax.random.key(0), 1)[0]
            if name == "triangular":  # the same inputs, written as one scan
                posterior = co.condition(model, {"y": y}, structure="triangular")
            found.setdefault(name, []).append((T, *step_cost(posterior, u)))
            grows = [""] * 2
            if len(found[name]) > 1:
                before, after = np.log(found[name][-2:])
                grows = [f"{x:.2f}" for x in ((after - before) / (after - before)[0])[1:]]
            _, microseconds, size = found[name][-1]
            lines.append([name, str(T), f"{microseconds:.0f}", f"{size / 1e6:.2f}", *grows])
    heading = ["", "T", "µs per step", "MB", "time exponent", "memory exponent"]
    return (heading, lines), found


def rates() -> None:
    """Print the rate for each number of chains."""
    y = lotka_volterra.dataset(seed=0)
    target = co.condition(lotka_volterra.markov_generator(), {"y": y})
    options = {"draws": 2000, "warmup": 500}
    rows = [measured(ours(target, "z", np.log, chains=num, **options)) for num in CHAINS]
    print(json.dumps([row.rate for row in rows]))


def chains():
    """A table row for each number of chains, and rates by number of cores."""
    cores = sorted(os.sched_getaffinity(0))
    found = {}
    for used in (cores[:1], cores):
        # Use a separate process, because threads that already run keep their cores.
        code = f"import os; os.sched_setaffinity(0, {used}); from benchmarks import scaling; scaling.rates()"
        child = subprocess.run([sys.executable, "-W", "ignore", "-c", code], stdout=-1, check=True)
        rates = json.loads(child.stdout.splitlines()[-1])
        found |= {(len(used), num): rate for num, rate in zip(CHAINS, rates, strict=True)}
    lines = [
        [
            str(num),
            *(f"{found[n, num]:.0f}" for n in (1, len(cores))),
            f"{found[len(cores), num] / found[1, num]:.2f}",
        ]
        for num in CHAINS
    ]
    heading = ["chains", "1 core, min ESS/s", f"{len(cores)} cores, min ESS/s", "ratio"]
    return (heading, lines), {
        f"{n} cores": (CHAINS, [found[n, num] for num in CHAINS]) for n in (1, len(cores))
    }


@in_float64
def run() -> Report:
    by_length, costs = length()
    by_chains, rates = chains()
    columns = {name: np.array(rows).T for name, rows in costs.items()}
    figure = curves(
        {
            "µs per step, against T": {k: (x[0], x[1]) for k, x in columns.items()},
            "MB in addition to the state, against T": {
                k: (x[0], x[2] / 1e6) for k, x in columns.items()
            },
            "min ESS/s, against chains": rates,
        },
        "",
    )
    numbers = {"length": costs, "chains": {k: list(map(list, x)) for k, x in rates.items()}}
    return Report("Scaling", ABOUT, [by_length, by_chains], numbers, figure)
