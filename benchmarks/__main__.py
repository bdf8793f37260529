"""`python -m benchmarks [case …]`: run all cases or some, and write the page of all that were run.

A case's table goes to the terminal, its numbers, with versions and machine, to a file of its own,
its figure beside it. The page is made from these files, so that cases may be run one by one.
"""

import argparse
import importlib
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.harness import write, write_page

CASES = (
    "lotka_volterra",
    "step_cost",
    "loop",
    "small_noise",
    "fitzhugh_nagumo",
    "dense",
    "tukey_lambda",
    "inpainting",
    "scaling",
    "start_up",
)
BY_HAND = ("gpu", "gpu_models")
OPENING = """# Benchmarks

Each case states a problem once and runs coarea and its peers on it in one process, with the same data, in
double precision, one after the other. A rate counts a whole run, its start and its warm-up included, as each tool
does them when nothing is said; compilation stands apart in the first run's time. Effective
sizes are ArviZ's (bulk), of the element that has least, for its mean and for its variance. Machines differ and are shared: read the ratios.

This page is written by `python -m benchmarks`; `pip install 'coarea[bench]'` brings the peers. The cases `gpu` and `gpu_models` are run by
hand on a machine that has one: see [the notes of such runs](gpu.md)."""


def main():
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    known = ", ".join((*CASES, *BY_HAND))
    parser.add_argument("cases", nargs="*", metavar="case", help=f"any of: {known}")
    parser.add_argument("--out", type=Path, default=Path("out/benchmarks"))
    parser.add_argument("--page", action="store_true", help="only write the page again")
    given = parser.parse_args()
    if unknown := set(given.cases) - {*CASES, *BY_HAND}:
        parser.error(f"{', '.join(sorted(unknown))}: no such case; there are {known}.")
    console = Console()
    for name in () if given.page else given.cases or CASES:
        console.print(f"[bold]{name}")
        began = time.perf_counter()
        report = importlib.import_module(f"benchmarks.{name}").run()
        for heading, lines in report.tables:
            table = Table(*heading)
            for line in lines:
                table.add_row(*line)
            console.print(table)
        write(name, report, time.perf_counter() - began, given.out)
    console.print(f"Wrote {write_page((*CASES, *BY_HAND), given.out, OPENING)}.")


if __name__ == "__main__":
    main()
