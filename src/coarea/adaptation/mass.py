"""Mass: the scales of positions, estimated during warm-up and applied as a rescaling."""

from abc import abstractmethod
from typing import Any, NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
from blackjax.adaptation.mass_matrix import welford_algorithm
from jaxtyping import Array, Float, Int
from typing_extensions import override

from coarea.jacobians.linalg import small
from coarea.kernels.kernel import Mass
from coarea.manifolds.target import AbstractTarget, AbstractUnconstrainedTarget

# The matrix of a rescaling: a diagonal or a lower triangle.
Matrix: TypeAlias = Float[Array, " M"] | Float[Array, "M M"]

# Equal scales weigh as much as this many transitions.
_PRIOR_TRANSITIONS = 5
# A metric costs several gradients: it is evaluated once in this many transitions.
_METRIC_EVERY = 4
# For more coordinates the metric is not evaluated: its size grows with their square, its factor's
# cost with the cube.
_LARGEST_METRIC = 256

_welford = welford_algorithm(is_diagonal_matrix=True)


class AbstractMassAdaptation(eqx.Module):
    """A way to estimate a rescaling from the positions, in model space, of a window."""

    @abstractmethod
    def first(self, target: AbstractTarget, u: Float[Array, " M"]) -> Matrix:
        """The rescaling to begin with at u."""

    @abstractmethod
    def initial_state(self, matrix: Matrix) -> Any:
        """The state before the first transition of a window with this rescaling."""

    @abstractmethod
    def update(
        self,
        state: Any,
        target: AbstractTarget,
        u: Float[Array, " M"],
        transition: Int[Array, ""],
    ) -> Any:
        """The state after a transition to u."""

    @abstractmethod
    def final(self, state: Any) -> Matrix:
        """The estimate of a window; not finite if the window says nothing."""

    @abstractmethod
    def convert(self, matrix: Matrix | None, num_inputs: int) -> Matrix:
        """A rescaling that a run with another kind of mass has found, in the form of this kind."""


class DiagonalMass(AbstractMassAdaptation):
    """Every input is scaled by its standard deviation."""

    @override
    def first(self, target, u):
        return jnp.ones_like(u)

    @override
    def initial_state(self, matrix):
        return _welford[0](matrix.shape[0])

    @override
    def update(self, state, target, u, transition):
        return _welford[1](state, u)

    def final(self, state):
        """Standard deviations, shrunk towards their geometric mean.

        Only their ratios matter: the step size adapts to what they have in common.
        """
        variance, count, _ = _welford[2](state)
        measured = 0.5 * jnp.log(variance)
        weight = count / (count + _PRIOR_TRANSITIONS)
        measured = jnp.exp(weight * measured + (1 - weight) * jnp.mean(measured))
        return jnp.where(measured > 0, measured, jnp.nan)

    def convert(self, matrix, num_inputs):
        """Of a triangle, the standard deviations that it stands for."""
        if matrix is None:
            return jnp.ones(num_inputs)
        return matrix if matrix.ndim == 1 else jnp.linalg.norm(matrix, axis=1)


class _Mean(NamedTuple):
    value: Float[Array, "M M"]
    number: Float[Array, ""]


class MetricMass(AbstractMassAdaptation):
    """The average of a chart's inverse metric.

    It says how far the density extends in all directions at once, from few positions. (The average
    of the metric itself would be dominated by places where the density extends least.)
    """

    @override
    def first(self, target, u):
        assert isinstance(target, AbstractUnconstrainedTarget)
        return small.root_of_inverse(target.metric(u))

    @override
    def initial_state(self, matrix):
        return _Mean(jnp.zeros_like(matrix), jnp.zeros((), matrix.dtype))

    @override
    def update(self, state, target, u, transition):
        def another():
            number = state.number + 1
            root = self.first(target, u)
            return _Mean(state.value + (root @ root.T - state.value) / number, number)

        return jax.lax.cond(transition % _METRIC_EVERY == 0, another, lambda: state)

    @override
    def final(self, state):
        return jnp.where(state.number > 0, small.cholesky(state.value), jnp.nan)

    @override
    def convert(self, matrix, num_inputs):
        matrix = jnp.ones(num_inputs) if matrix is None else matrix
        return matrix if matrix.ndim == 2 else jnp.diag(matrix)


def mass_adaptation_for(target: AbstractTarget, mass: Mass) -> AbstractMassAdaptation | None:
    """What a kernel's mass asks for. On a chart the identity on the manifold is a metric.

    With very many coordinates that would cost more than it gains.
    """
    is_chart = isinstance(target, AbstractUnconstrainedTarget)
    if mass == "diagonal" or (is_chart and target.num_inputs > _LARGEST_METRIC):
        return DiagonalMass()
    return MetricMass() if is_chart else None
