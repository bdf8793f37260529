"""Comparison with exact answers in units of Monte Carlo standard error."""

import numpy as np
from arviz_stats.sampling_diagnostics import ess


def standard_errors_off(draws, exact):
    """How many Monte Carlo standard errors the mean of draws (chain, draw) is from `exact`."""
    draws = np.asarray(draws)
    return (draws.mean() - exact) / (draws.std() / np.sqrt(float(ess(draws, method="mean"))))


def assert_mean(draws, exact, limit=4.0):
    """A correct sampler exceeds 4 standard errors once in 16 000 comparisons."""
    off = standard_errors_off(draws, exact)
    assert abs(off) < limit, f"mean {np.mean(draws):.5g}, exact {exact:.5g}: {off:+.1f} errors off"
