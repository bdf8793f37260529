"""`python -m benchmarks [case …]`: run all or some cases, and write a page of all results.

Tables are printed to the terminal. Each case also writes a file with its numbers, package versions
and machine, and a figure next to it. The page is made from these files, so that cases can be run
separately.
"""

import argparse
import importlib
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.harness import write, write_page

CASES = (
    "ordinary",
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
    "hints",
)
BY_HAND = ("gpu", "gpu_models")
OPENING = """# Benchmarks

Each case defines one problem and runs coarea and its peers on it in one process, one after the other, with the same
data and in double precision. Rates are for whole runs, including each tool's default initialisation and warm-up. They
exclude compilation, which is part of the time of the first run. Effective sample sizes (ESS) are ArviZ's bulk ESS of the
element with the smallest value, the smaller of those of its mean and of its square. A column headed "× peer" is the ratio of min ESS/s to
that peer's. Machines differ and are shared, so compare ratios rather than absolute rates.

This page is written by `python -m benchmarks`; `pip install 'coarea[bench]'` installs the peers. The cases `gpu` and
`gpu_models` are run by name on a machine with a GPU. [GPU measurements](gpu.md) has further results for them."""


def main():
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    known = ", ".join((*CASES, *BY_HAND))
    parser.add_argument("cases", nargs="*", metavar="case", help=f"any of: {known}")
    parser.add_argument("--out", type=Path, default=Path("out/benchmarks"))
    parser.add_argument(
        "--page", action="store_true", help="only rewrite the page from stored results"
    )
    given = parser.parse_args()
    if unknown := set(given.cases) - {*CASES, *BY_HAND}:
        parser.error(f"{', '.join(sorted(unknown))}: unknown case. Known cases: {known}.")
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
