"""Mass: the scales of positions, estimated during warm-up and applied as a rescaling."""

from typing import Any, TypeAlias

import equinox as eqx
import jax.numpy as jnp
from blackjax.adaptation.mass_matrix import welford_algorithm
from jaxtyping import Array, Float

from coarea.kernels.kernel import Mass
from coarea.manifolds.target import AbstractTarget, AbstractUnconstrainedTarget

# The matrix of a rescaling: a diagonal or a lower triangle.
Matrix: TypeAlias = Float[Array, " M"] | Float[Array, "M M"]

# Equal scales weigh as much as this many transitions.
_PRIOR_TRANSITIONS = 5

_welford = welford_algorithm(is_diagonal_matrix=True)


class DiagonalMass(eqx.Module):
    """Every input is scaled by its standard deviation, for chains that adapt separately."""

    def initial_state(self, matrix: Matrix) -> Any:
        """The state before the first transition of a window with this rescaling."""
        return _welford[0](matrix.shape[0])

    def update(self, state: Any, u: Float[Array, " M"]) -> Any:
        """The state after a transition to u, in model space."""
        return _welford[1](state, u)

    def final(self, state: Any) -> Matrix:
        """Standard deviations, shrunk towards their geometric mean.

        Only their ratios matter: the step size adapts to what they have in common. They are not
        finite if the window says nothing.
        """
        variance, count, _ = _welford[2](state)
        measured = 0.5 * jnp.log(variance)
        weight = count / (count + _PRIOR_TRANSITIONS)
        measured = jnp.exp(weight * measured + (1 - weight) * jnp.mean(measured))
        return jnp.where(measured > 0, measured, jnp.nan)

    def convert(self, matrix: Matrix | None, num_inputs: int) -> Matrix:
        """The scales that an earlier run found; of a triangle, the standard deviations."""
        if matrix is None:
            return jnp.ones(num_inputs)
        return matrix if matrix.ndim == 1 else jnp.linalg.norm(matrix, axis=1)


def mass_adaptation_for(target: AbstractTarget, mass: Mass) -> DiagonalMass | None:
    """The mass adaptation for a kernel's `mass`.

    Standard normal inputs on a manifold have a scale of their own.
    """
    if mass == "auto":
        mass = "diagonal" if isinstance(target, AbstractUnconstrainedTarget) else "identity"
    return DiagonalMass() if mass == "diagonal" else None
