"""Start points: move draws from the prior onto the manifold."""

from coarea.initialisation.find_start import find_start as find_start
