"""`Posterior`: a generator's inputs given that some of its outputs take observed values."""

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from typing_extensions import override

from coarea.generators import AbstractGenerator
from coarea.jacobians.noise import NoiseSolver
from coarea.jacobians.structure import AbstractStructure
from coarea.manifolds.observation import Observation, as_given, unobserved
from coarea.manifolds.rescaling import Rescaling
from coarea.manifolds.target import (
    AbstractConstrainedTarget,
    AbstractReporter,
    Evaluation,
    Scales,
)


class Posterior(AbstractConstrainedTarget):
    """The exact posterior: density ρ(u) |J Jᵀ|^(−½) on {u : g_y(u) = ȳ}. Made by `condition`.

    `structure` says in words which structure of the Jacobian was found; `jacobian` is that.
    """

    generator: AbstractGenerator
    observations: tuple[Observation, ...]
    jacobian: AbstractStructure
    structure: str = eqx.field(static=True)
    noise_solver: NoiseSolver | str | None = None
    """How to solve for the noise, as a chart does; a sentence that says why that is impossible."""
    rescaling: Rescaling = Rescaling()

    @property
    @override
    def num_inputs(self):
        return self.generator.inputs.size

    @property
    @override
    def num_constraints(self):
        return sum(o.values.size for o in self.observations)

    @property
    @override
    def scales(self):
        largest = jnp.max(jnp.stack([jnp.max(jnp.abs(o.values)) for o in self.observations]))
        return Scales(residual=1.0 + largest, position=jnp.ones(()))

    @property
    @override
    def gaussian(self):
        return self.generator.inputs.normals & self.rescaling.leaves_normals

    @property
    @override
    def has_factors(self):
        return self.generator.has_factor or bool(self.generator.given)

    @property
    @override
    def allows_full_mass(self):
        return not self.jacobian.tells_inputs_apart

    @property
    @override
    def hints(self):
        return self.jacobian.hints

    @property
    @override
    def reporter(self):
        return PosteriorReporter(self.generator, self.observations)

    @override
    def rescale(self, rescaling):
        return replace(self, rescaling=rescaling)

    @override
    def residual(self, u: Float[Array, " M"] | tuple[Array, ...]):
        """At a position or, in model space, at that of each input."""
        outputs = self._outputs(u)
        return jnp.concatenate([o.residual(outputs[o.name]) for o in self.observations])

    @override
    def linearise(self, u):
        return self.jacobian.linearise(self.residual, u)

    @override
    def evaluate(self, u):
        linearisation, volume_gradient = self.jacobian.linearise_and_differentiate(self.residual, u)
        log_base, base_gradient = jax.value_and_grad(self._log_base)(u)
        return Evaluation(
            linearisation,
            log_base - linearisation.half_log_det(),
            base_gradient - volume_gradient,
        )

    @override
    def guess(self, key):
        return self.rescaling.to_sampler_space(self.generator.draw(key))

    def _outputs(self, u: Any) -> dict[str, Array]:
        parts: Any = u if isinstance(u, tuple) else self.rescaling.to_model_space(u)
        return self.generator.outputs(parts)

    def _log_base(self, u):
        return self.generator.log_density(self.rescaling.to_model_space(u))


class PosteriorReporter(AbstractReporter):
    """A generator's outputs and inputs by name."""

    generator: AbstractGenerator
    observations: tuple[Observation, ...]

    @override
    def latents(self, u):
        """The outputs that were not observed, or only in part."""
        return unobserved(self.generator.outputs(u), self.observations)

    @override
    def inputs(self, u):
        return self.generator.inputs.values(u)

    @property
    @override
    def fixed(self):
        return self.generator.fixed

    @property
    @override
    def observed(self):
        likelihoods = {name: np.ma.asarray(x) for name, x in self.generator.given.items()}
        return as_given(self.observations) | likelihoods

    @override
    def describe(self, constraint):
        for observation in self.observations:
            if constraint < observation.values.size:
                return observation.describe(constraint)
            constraint -= observation.values.size
        raise IndexError(constraint)
