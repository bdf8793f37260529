"""A user's functions as jaxprs, and what goes wrong while they are traced."""

from coarea.tracing.equality import TRACING as TRACING
from coarea.tracing.traced import Traced as Traced
from coarea.tracing.traced import retraced as retraced
from coarea.tracing.traced import trace as trace
