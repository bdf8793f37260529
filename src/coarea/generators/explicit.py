"""A model whose observed sites have explicit densities: their noise need not be an input."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from coarea.generators.generator import AbstractGenerator
from coarea.generators.inputs import Inputs
from coarea.tracing import Traced


class ExplicitNoise(eqx.Module):
    """The same model with the data of some `sites` as likelihoods.

    `whole` are the inputs with the noise of these sites, and `noise` computes it from the others.
    """

    generator: AbstractGenerator
    sites: tuple[str, ...] = eqx.field(static=True)
    whole: Inputs
    noise: Traced

    def complete(self, u: Float[Array, " M"]) -> Float[Array, " K"]:
        """All inputs: with the noise that reproduces the data."""
        inputs = self.generator.inputs
        known = dict(zip(inputs.names, inputs.split(u), strict=True))
        known |= self.noise(inputs.values(u))
        return jnp.concatenate([known[name].ravel() for name in self.whole.names])

    def restrict(self, u: Float[Array, " K"]) -> Float[Array, " M"]:
        """The inputs without the noise."""
        known = dict(zip(self.whole.names, self.whole.split(u), strict=True))
        return jnp.concatenate([known[name] for name in self.generator.inputs.names])
