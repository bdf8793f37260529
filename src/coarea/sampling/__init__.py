"""Start points, warm-up, running chains, and the draws as ArviZ data."""

from coarea.sampling.find_start import find_start as find_start
from coarea.sampling.predictive import predictive as predictive
from coarea.sampling.sample import sample as sample
