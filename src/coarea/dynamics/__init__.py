"""Moving along a manifold: projection onto it, flows, and the geodesic RATTLE step."""

from coarea.dynamics.flows import Rotation as Rotation
from coarea.dynamics.flows import Straight as Straight
from coarea.dynamics.projection import Broyden as Broyden
from coarea.dynamics.projection import Hybrid as Hybrid
from coarea.dynamics.projection import Newton as Newton
from coarea.dynamics.projection import NewtonLineSearch as NewtonLineSearch
from coarea.dynamics.projection import QuasiNewton as QuasiNewton
from coarea.dynamics.rattle import Rattle as Rattle
