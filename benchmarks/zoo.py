"""Sample targets of many kinds with default settings, and compare with reference values.

For each target: the largest R-hat, the smallest effective sample size, the rate of failures, and
the errors of the means of some functions, in Monte Carlo standard errors.

`python -m benchmarks.zoo [name …]` runs all or some.
"""

import sys
import time
import warnings

import numpy as np
from arviz_stats.sampling_diagnostics import ess, rhat
from rich.console import Console
from rich.table import Table

import coarea as co
from benchmarks.targets import CASES


def judged(name, case):
    """Sample one case; return its row of the table."""
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
    return (
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


def main(names):
    console = Console(width=124)
    table = Table(
        "target", "M", "N", "R-hat", "min ESS", "ESS/step", "failures", "step", "errors (s.e.)", "s"
    )
    for name in names or CASES:
        row = judged(name, CASES[name]())
        table.add_row(*row)
        console.print(f"{name}: {row[-1]} s", style="dim")
    console.print(table)


if __name__ == "__main__":
    main(sys.argv[1:])
