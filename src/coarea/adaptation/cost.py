"""What a transition costs, counted in arithmetic operations."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from coarea.kernels.kernel import AbstractKernel
from coarea.manifolds.target import AbstractTarget
from coarea.tracing import operations
from coarea.xla import jit_fast_compile

# What a draw costs beside its arithmetic: storing, copying and diagnosing it.
_BOOKKEEPING = 30_000.0


class TransitionCost(NamedTuple):
    """The parts of what a transition costs."""

    overhead: float
    step: float
    projection: float

    @classmethod
    def of(cls, target: AbstractTarget, kernel: AbstractKernel) -> "TransitionCost":
        """The cost of this kernel's transitions on a target."""
        return _counted(target, kernel.without_settings())

    def total(self, num_steps: np.ndarray, projections: np.ndarray) -> np.ndarray:
        """The cost of transitions with so many steps and evaluations by projections."""
        return self.overhead + num_steps * self.step + projections * self.projection

    def least(self, num_steps: float) -> float:
        """The cost if each projection and its reverse check needed one evaluation."""
        return float(self.total(np.asarray(num_steps), np.asarray(2 * num_steps)))


# Numbers that do not depend on values are known once the function is traced: once for all targets
# with the same equations.
@jit_fast_compile
def _counted(target: AbstractTarget, kernel: AbstractKernel) -> TransitionCost:
    found = kernel.integrator_for(target).operations(target, kernel.geodesic_steps_for(target))
    u = jax.ShapeDtypeStruct((target.num_inputs,), jnp.zeros(()).dtype)
    drawn = operations(lambda key: jax.random.normal(key, u.shape, u.dtype), jax.random.key(0))
    recorded = operations(lambda u: target.reporter.latents(u), u)
    return TransitionCost(_BOOKKEEPING + drawn + recorded, found.step, found.projection)
