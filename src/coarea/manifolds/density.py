"""A density of a model's inputs without constraints: all data enter through likelihoods."""

from dataclasses import replace

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float
from typing_extensions import override

from coarea.generators import AbstractGenerator
from coarea.jacobians.structure import ExecutionHints
from coarea.manifolds.posterior import PosteriorReporter
from coarea.manifolds.rescaling import Rescaling
from coarea.manifolds.target import AbstractUnconstrainedTarget, Scales


class Density(AbstractUnconstrainedTarget):
    """The posterior of a model whose data are likelihood factors. Made by `condition`."""

    generator: AbstractGenerator
    num_factors: int = eqx.field(static=True)
    rescaling: Rescaling = Rescaling()

    @property
    @override
    def num_inputs(self):
        return self.generator.inputs.size

    @property
    @override
    def scales(self):
        return Scales(residual=jnp.ones(()), position=jnp.ones(()))

    @property
    @override
    def hints(self):
        return ExecutionHints(linearisation_cost=1, uses_lapack=False, vmap_width=8)

    @property
    @override
    def reporter(self):
        return PosteriorReporter(self.generator, ())

    @property
    def structure(self) -> str:
        """What the posterior looks like, in words."""
        return (
            f"density: {self.num_inputs} inputs, no exact constraint; {self.num_factors} observed "
            "values enter through likelihoods; a step costs a gradient."
        )

    @override
    def rescale(self, rescaling):
        return replace(self, rescaling=rescaling)

    @override
    def guess(self, key):
        """A draw from the prior."""
        return self.rescaling.to_sampler_space(self.generator.draw(key))

    @override
    def constraint_error(self, u):
        """There is nothing to miss."""
        return jnp.zeros((), u.dtype)

    @override
    def log_density(self, u: Float[Array, " M"]) -> Float[Array, ""]:
        return self.generator.log_density(self.rescaling.to_model_space(u))
