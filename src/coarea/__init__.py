"""Condition a differentiable simulator on its data, exactly."""

from coarea import approximate as approximate
from coarea import dynamics as dynamics
from coarea import errors as errors
from coarea import interop as interop
from coarea import kernels as kernels
from coarea import manifolds as manifolds
from coarea.generators import Generator as Generator
from coarea.generators import Markov as Markov
from coarea.initialisation import find_start as find_start
from coarea.kernels import CHMC as CHMC
from coarea.kernels import NUTS as NUTS
from coarea.kernels import Langevin as Langevin
from coarea.manifolds import Manifold as Manifold
from coarea.manifolds import condition as condition
from coarea.results import diagnose as diagnose
from coarea.sampling import predictive as predictive
from coarea.sampling import sample as sample
