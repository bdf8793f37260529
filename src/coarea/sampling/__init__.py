"""What users call to sample: thin compositions of the rooms before."""

from coarea.sampling.predictive import predictive as predictive
from coarea.sampling.sample import sample as sample
