"""What warm-up learns to measure positions in: what a mass matrix amounts to."""

from abc import abstractmethod
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from blackjax.adaptation.mass_matrix import welford_algorithm
from jaxtyping import Array, Float, Int
from typing_extensions import override

from coarea.jacobians.linalg import small
from coarea.kernels.kernel import Mass
from coarea.manifolds import AbstractTarget
from coarea.manifolds.target import Units

# Transitions' worth of weight that equal units have against those measured.
_EQUAL_UNITS = 5
# A metric costs several gradients: it is looked at after every so many transitions.
_METRIC_EVERY = 4
# Beyond so many elements it is not looked at: it grows with their square, its factor with the cube.
_LARGEST_METRIC = 256

_welford = welford_algorithm(is_diagonal_matrix=True)


class AbstractUnits(eqx.Module):
    """A way to find them. What is learnt of one window is an array, or several."""

    @abstractmethod
    def first(self, target: AbstractTarget, u: Float[Array, " M"]) -> Units:
        """Those to begin with at u."""

    @abstractmethod
    def nothing(self, units: Units) -> Any:
        """What is known before the first transition of a window with these units."""

    @abstractmethod
    def learn(
        self,
        known: Any,
        target: AbstractTarget,
        u: Float[Array, " M"],
        transition: Int[Array, ""],
    ) -> Any:
        """What is known after a transition to u."""

    @abstractmethod
    def like(self, units: Units | None, num_inputs: int) -> Units:
        """Units that a run with another mass matrix has found, as this kind has them."""

    @abstractmethod
    def units(self, known: Any) -> Units:
        """Those that the window speaks for; not finite if it says nothing."""


class Deviations(AbstractUnits):
    """Every input's own standard deviation."""

    @override
    def first(self, target, u):
        return jnp.ones_like(u)

    @override
    def nothing(self, units):
        return _welford[0](units.shape[0])

    @override
    def learn(self, known, target, u, transition):
        return _welford[1](known, u)

    def units(self, known):
        """Only ratios matter, so that they are drawn towards their geometric mean.

        A step size takes care of what they have in common.
        """
        variance, count, _ = _welford[2](known)
        measured = 0.5 * jnp.log(variance)
        weight = count / (count + _EQUAL_UNITS)
        measured = jnp.exp(weight * measured + (1 - weight) * jnp.mean(measured))
        return jnp.where(measured > 0, measured, jnp.nan)

    def like(self, units, num_inputs):
        """Of a matrix, the standard deviations that it stands for."""
        if units is None:
            return jnp.ones(num_inputs)
        return units if units.ndim == 1 else jnp.linalg.norm(units, axis=1)


class _Mean(NamedTuple):
    value: Float[Array, "M M"]
    number: Float[Array, ""]


class Metric(AbstractUnits):
    """The average of the inverse of what measures changes of a position, where a target has that.

    It says how far the density reaches in all directions at once, from few positions. (The average
    itself would be that of the places where it reaches least far.)
    """

    @override
    def first(self, target, u):
        metric = target.metric(u)
        assert metric is not None
        return small.root_of_inverse(metric)

    @override
    def nothing(self, units):
        return _Mean(jnp.zeros_like(units), jnp.zeros((), units.dtype))

    @override
    def learn(self, known, target, u, transition):
        def another():
            number = known.number + 1
            root = self.first(target, u)
            return _Mean(known.value + (root @ root.T - known.value) / number, number)

        return jax.lax.cond(transition % _METRIC_EVERY == 0, another, lambda: known)

    @override
    def units(self, known):
        return jnp.where(known.number > 0, small.cholesky(known.value), jnp.nan)

    @override
    def like(self, units, num_inputs):
        units = jnp.ones(num_inputs) if units is None else units
        return units if units.ndim == 2 else jnp.diag(units)


def units_for(target: AbstractTarget, mass: Mass) -> AbstractUnits | None:
    """What a kernel's mass asks for. An identity among all inputs is a metric in a chart.

    Where its coordinates are very many, it would cost more than it gains.
    """
    u = jax.ShapeDtypeStruct((target.num_inputs,), float)
    has_metric = jax.eval_shape(target.metric, u) is not None
    if mass == "diagonal" or (has_metric and target.num_inputs > _LARGEST_METRIC):
        return Deviations()
    return Metric() if has_metric else None
