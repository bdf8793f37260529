"""Projection onto the manifold: when it has converged, solvers, and the cascade that tries them."""

from coarea.dynamics.projection.broyden import Broyden as Broyden
from coarea.dynamics.projection.cascade import project_onto as project_onto
from coarea.dynamics.projection.newton import Hybrid as Hybrid
from coarea.dynamics.projection.newton import Newton as Newton
from coarea.dynamics.projection.newton import NewtonLineSearch as NewtonLineSearch
from coarea.dynamics.projection.quasi_newton import QuasiNewton as QuasiNewton
from coarea.dynamics.projection.quasi_newton import Secant as Secant
from coarea.dynamics.projection.solver import AbstractSolver as AbstractSolver
from coarea.dynamics.projection.solver import Projection as Projection
from coarea.dynamics.projection.tolerance import Tolerance as Tolerance
from coarea.dynamics.projection.tolerance import position_size as position_size
