"""Start points: from draws of the prior to points on the manifold."""

from coarea.initialisation.find_start import find_start as find_start
