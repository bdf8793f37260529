"""A posterior as a chart: where noise can be solved for, the other inputs say all.

If every constraint has local noise of its own, c(v, n) = 0 can often be solved for the noise n: it
is linear in n, or a function with a known inverse. Then the manifold is the graph of n(v), and v
has the density ρ(v, n(v)) / |det B(v)| with B = ∂c/∂n: the posterior without its determinant |A|,
which is the volume of the graph over v. Nothing is projected, and a step costs one gradient.

What a chart loses is the metric. On the manifold equal steps are equal changes of all inputs. In
the chart that metric is A(v) = I + WᵀW with W = B⁻¹V, and warm-up can use no more than its average.
That loses nothing while A varies little. Where noise is small and yet v left open A varies much,
and moving along the manifold is faster.
"""

from dataclasses import replace

import jax.numpy as jnp
from typing_extensions import override

from coarea.jacobians.noise import NoiseSolver
from coarea.manifolds.posterior import Posterior
from coarea.manifolds.rescaling import Rescaling
from coarea.manifolds.target import AbstractReporter, AbstractUnconstrainedTarget, Scales


class Chart(AbstractUnconstrainedTarget):
    """A posterior whose noise is solved for: a density of its other inputs, the coordinates."""

    posterior: Posterior
    noise: NoiseSolver
    rescaling: Rescaling = Rescaling()

    @property
    def _jacobian(self):
        return self.noise.jacobian

    @property
    @override
    def num_inputs(self):
        """The number of coordinates."""
        return len(self._jacobian.shared_inputs)

    @property
    @override
    def scales(self):
        return Scales(residual=self.posterior.scales.residual, position=jnp.ones(()))

    @property
    @override
    def hints(self):
        return self._jacobian.hints

    @property
    @override
    def reporter(self):
        return ChartReporter(self.unscaled)

    @override
    def rescale(self, rescaling):
        return replace(self, rescaling=rescaling)

    @property
    def unscaled(self) -> "Chart":
        """The chart with positions in model space."""
        return replace(self, rescaling=Rescaling())

    def to_manifold(self, u):
        """All inputs: the coordinates, and the noise with which they reproduce the data."""
        return self._solve(u)[0]

    def from_manifold(self, u):
        """The coordinates of a point of the manifold."""
        return self.rescaling.to_sampler_space(self._jacobian.shared_inputs.take(u))

    @override
    def guess(self, key):
        return self.from_manifold(self.posterior.guess(key))

    @override
    def constraint_error(self, u):
        return self.posterior.constraint_error(self.to_manifold(u))

    @override
    def log_density(self, u):
        whole, log_det = self._solve(u)
        return self.posterior.generator.log_density(whole) - log_det

    def _solve(self, u):
        """All inputs that these coordinates stand for, and log |det B|."""
        size = self.posterior.generator.inputs.size
        v = self.rescaling.to_model_space(u)
        without_noise = self._jacobian.shared_inputs.put(jnp.zeros(size, v.dtype), v)
        return self.noise.solve(self.posterior.residual, without_noise)


class ChartReporter(AbstractReporter):
    """What the point of the manifold means that coordinates stand for."""

    chart: Chart

    @property
    def _of_manifold(self) -> AbstractReporter:
        return self.chart.posterior.reporter

    @override
    def latents(self, u):
        return self._of_manifold.latents(self.chart.to_manifold(u))

    @override
    def inputs(self, u):
        return self._of_manifold.inputs(self.chart.to_manifold(u))

    @property
    @override
    def fixed(self):
        return self._of_manifold.fixed

    @property
    @override
    def observed(self):
        return self._of_manifold.observed

    @override
    def describe(self, constraint):
        return self._of_manifold.describe(constraint)
