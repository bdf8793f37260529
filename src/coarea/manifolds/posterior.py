"""`Posterior`: a generator's inputs given that some of its outputs take observed values."""

from collections.abc import Mapping
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from typing_extensions import override

from coarea.generators import AbstractGenerator
from coarea.jacobians.structure import AbstractStructure
from coarea.manifolds.observation import Observation, as_given, unobserved
from coarea.manifolds.target import AbstractTarget, Evaluation, to_model_space
from coarea.manifolds.teacher_forced import TeacherForced


class Posterior(AbstractTarget):
    """The exact posterior: density ρ(u) |J Jᵀ|^(−½) on {u : g_y(u) = ȳ}. Made by `condition`."""

    generator: AbstractGenerator
    observations: tuple[Observation, ...]
    shape: AbstractStructure
    structure: str = eqx.field(static=True)
    units: Float[Array, " M"] | None = None

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
    def scale(self):
        return 1.0 + jnp.max(jnp.stack([jnp.max(jnp.abs(o.values)) for o in self.observations]))

    @property
    @override
    def extent(self):
        return jnp.ones(())

    @property
    @override
    def normals(self):
        return self.generator.inputs.normals & (self.units is None)

    @property
    @override
    def observed(self) -> Mapping[str, np.ma.MaskedArray]:
        likelihoods = {name: np.ma.asarray(x) for name, x in self.generator.given.items()}
        return as_given(self.observations) | likelihoods

    @property
    @override
    def is_cheap(self):
        return self.shape.is_cheap

    @property
    @override
    def is_light(self):
        return self.shape.is_light

    @override
    def vmap_width(self, num_chains):
        return self.shape.vmap_width(num_chains)

    @override
    def in_units(self, units):
        return replace(self, units=units)

    def residual(self, u: Float[Array, " M"] | tuple[Array, ...]):
        """At a position or, in its own units, at that of each input."""
        outputs = self._outputs(u)
        return jnp.concatenate([o.residual(outputs[o.name]) for o in self.observations])

    @override
    def linearise(self, u):
        return self.shape.linearise(self.residual, u)

    @override
    def evaluate(self, u):
        linearisation, volume_gradient = self.shape.linearise_and_differentiate(self.residual, u)
        log_base, base_gradient = jax.value_and_grad(self._log_base)(u)
        return Evaluation(
            linearisation,
            log_base - linearisation.half_log_det(),
            base_gradient - volume_gradient,
        )

    def guess(self, key):
        """A draw from the prior."""
        drawn = self.generator.draw(key)
        return drawn if self.units is None else drawn / self.units

    def latents(self, u):
        """The outputs that were not observed, or only in part."""
        return unobserved(self._outputs(u), self.observations)

    @property
    @override
    def fixed(self):
        return self.generator.fixed if isinstance(self.generator, TeacherForced) else {}

    @override
    def inputs(self, u):
        return self.generator.inputs.values(to_model_space(u, self.units))

    def _outputs(self, u):
        return self.generator.outputs(to_model_space(u, self.units))

    def _log_base(self, u):
        return self.generator.log_density(to_model_space(u, self.units))

    @override
    def describe(self, constraint):
        for observation in self.observations:
            if constraint < observation.values.size:
                return observation.describe(constraint)
            constraint -= observation.values.size
        raise IndexError(constraint)
