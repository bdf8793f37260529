"""Trace a user's functions to jaxprs, and explain errors raised while tracing."""

from coarea.tracing.equality import TRACING as TRACING
from coarea.tracing.inversion import NotInvertibleError as NotInvertibleError
from coarea.tracing.inversion import solve_for as solve_for
from coarea.tracing.operations import operations as operations
from coarea.tracing.traced import Traced as Traced
from coarea.tracing.traced import retraced as retraced
from coarea.tracing.traced import trace as trace
