"""Comparison with exact answers in units of Monte Carlo standard error."""

import numpy as np
from arviz_stats.sampling_diagnostics import ess


def standard_errors_off(draws, exact):
    """How many Monte Carlo standard errors the mean of draws (chain, draw) is from `exact`.

    Draws that hardly mix have an error so large that anything agrees with it: they are refused.
    """
    draws = np.asarray(draws)
    size = float(ess(draws, method="mean"))
    assert size > 20, f"only {size:.0f} effective draws: nothing can be said of their mean"
    return (draws.mean() - exact) / (draws.std() / np.sqrt(size))


def assert_mean(draws, exact, limit=4.0):
    """A correct sampler exceeds 4 standard errors once in 16 000 comparisons."""
    off = standard_errors_off(draws, exact)
    assert abs(off) < limit, f"mean {np.mean(draws):.5g}, exact {exact:.5g}: {off:+.1f} errors off"
