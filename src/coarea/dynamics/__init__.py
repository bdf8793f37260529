"""Moving along a manifold: projection onto it, flows, and the geodesic RATTLE step."""

from coarea.dynamics.flows import Rotation as Rotation
from coarea.dynamics.flows import Straight as Straight
from coarea.dynamics.rattle import Rattle as Rattle
from coarea.dynamics.solvers import Broyden as Broyden
from coarea.dynamics.solvers import Hybrid as Hybrid
from coarea.dynamics.solvers import Newton as Newton
from coarea.dynamics.solvers import NewtonLineSearch as NewtonLineSearch
from coarea.dynamics.solvers import QuasiNewton as QuasiNewton
from coarea.dynamics.solvers import Secant as Secant
