"""Moving along a target: integrators, the flows they follow, projection onto the manifold."""

from coarea.dynamics.flows import Rotation as Rotation
from coarea.dynamics.flows import Straight as Straight
from coarea.dynamics.geodesic import Geodesic as Geodesic
from coarea.dynamics.integrator import AbstractIntegrator as AbstractIntegrator
from coarea.dynamics.leapfrog import Leapfrog as Leapfrog
from coarea.dynamics.projection import Broyden as Broyden
from coarea.dynamics.projection import Hybrid as Hybrid
from coarea.dynamics.projection import Newton as Newton
from coarea.dynamics.projection import NewtonLineSearch as NewtonLineSearch
from coarea.dynamics.projection import QuasiNewton as QuasiNewton
from coarea.dynamics.projection import Secant as Secant
from coarea.dynamics.rattle import Rattle as Rattle
from coarea.dynamics.suited import integrator_for as integrator_for
