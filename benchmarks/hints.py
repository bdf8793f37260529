"""Effect of coarea's hints to XLA on the speed of whole runs."""

import json
import os
import subprocess
import sys
import time

import numpy as np

import coarea as co
from benchmarks import dense
from benchmarks.harness import Measured, Report, bars, measured, numbers_of, ratio, shown_rate
from benchmarks.peers import ours
from coarea.studies import lotka_volterra

ABOUT = """
`co.sample` with coarea's hints to XLA (`COAREA_XLA_HINTS=1`) and without them (`COAREA_XLA_HINTS=0`), each in a process of its
own. The models are Lotka–Volterra and the 10 nonlinear constraints of the case `dense`. Settings are defaults, with 10 000
draws a chain for Lotka–Volterra and 2 000 for the constraints. Runs are short, so a rate is that of the fastest of five. The
hints are compiler options, values that XLA may not compute again, and the fusion of a transition into one CPU kernel. Draws
with and without hints differ in their last bits only.
"""
REPEATS = 5


def simulator(parametrisation):
    y = lotka_volterra.dataset(seed=0)
    target = co.condition(lotka_volterra.markov_generator(), {"y": y})
    return ours(target, "z", np.log, draws=10_000, parametrisation=parametrisation)


CASES = {
    "Lotka–Volterra, manifold": lambda: simulator("manifold"),
    "Lotka–Volterra, chart": lambda: simulator("chart"),
    "dense, 10 constraints": lambda: ours(
        dense.target(10)[0], "u", lambda u: u[..., :10], draws=2000
    ),
}


def in_process(name: str, hints: str) -> Measured:
    """Measure a case in a new process."""
    child = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "benchmarks.hints", name],
        stdout=subprocess.PIPE,
        check=True,
        env={**os.environ, "COAREA_XLA_HINTS": hints},
    )
    return Measured(**json.loads(child.stdout.splitlines()[-1]))


def fastest(draw) -> Measured:
    """Measure a run, with the time of the fastest of several."""
    row, times = measured(draw), []
    for _ in range(REPEATS):
        began = time.perf_counter()
        draw(0)
        times.append(time.perf_counter() - began)
    return row._replace(seconds=min(times))


def run() -> Report:
    lines, rows = [], {}
    for name in CASES:
        hinted, plain = (in_process(name, hints) for hints in ("1", "0"))
        rows |= {f"coarea, {name}": hinted, f"{name}, without hints": plain}
        lines.append(
            [
                name,
                shown_rate(hinted),
                shown_rate(plain),
                ratio(hinted, plain),
                f"{hinted.first:.1f}",
                f"{plain.first:.1f}",
            ]
        )
        print(lines[-1], flush=True)
    heading = ["", "with hints, min ESS/s", "without hints, min ESS/s", "ratio"]
    heading += ["first run with hints, s", "first run without hints, s"]
    figure = bars({name: row.rate for name, row in rows.items()})
    return Report("Hints to XLA", ABOUT, [(heading, lines)], numbers_of(rows), figure)


if __name__ == "__main__":
    print(json.dumps(fastest(CASES[sys.argv[1]]())._asdict()))
