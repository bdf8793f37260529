"""The posterior as a density on a manifold: the inputs that reproduce the data."""

from coarea.manifolds.condition import condition as condition
from coarea.manifolds.density import Density as Density
from coarea.manifolds.geodesics import Sphere as Sphere
from coarea.manifolds.geodesics import Stiefel as Stiefel
from coarea.manifolds.lifted import LiftedPosterior as LiftedPosterior
from coarea.manifolds.manifold import Manifold as Manifold
from coarea.manifolds.posterior import Posterior as Posterior
from coarea.manifolds.target import AbstractTarget as AbstractTarget
