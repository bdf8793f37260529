"""Markov kernels on a manifold, each a pair `(init, step)` after BlackJAX's contract."""

from coarea.kernels.chmc import CHMC as CHMC
from coarea.kernels.chmc import chmc as chmc
from coarea.kernels.langevin import Langevin as Langevin
from coarea.kernels.langevin import langevin as langevin
from coarea.kernels.nuts import NUTS as NUTS
from coarea.kernels.nuts import nuts as nuts
