"""`Posterior`: a generator's inputs given that some of its outputs take observed values."""

from collections.abc import Mapping
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from coarea.generators import AbstractGenerator
from coarea.manifolds.forced import TeacherForced
from coarea.manifolds.observation import Observation, as_given, unobserved
from coarea.manifolds.target import AbstractShape, AbstractTarget, Evaluation, in_own_units


class Posterior(AbstractTarget):
    """The exact posterior: density ρ(u) |J Jᵀ|^(−½) on {u : g_y(u) = ȳ}. Made by `condition`."""

    generator: AbstractGenerator
    observations: tuple[Observation, ...]
    shape: AbstractShape
    structure: str = eqx.field(static=True)
    units: Float[Array, " M"] | None = None

    @property
    def num_inputs(self):  # noqa: D102
        return self.generator.inputs.size

    @property
    def num_constraints(self):  # noqa: D102
        return sum(o.values.size for o in self.observations)

    @property
    def scale(self):  # noqa: D102
        return 1.0 + jnp.max(jnp.stack([jnp.max(jnp.abs(o.values)) for o in self.observations]))

    @property
    def extent(self):  # noqa: D102
        return jnp.ones(())

    @property
    def normals(self):  # noqa: D102
        return self.generator.inputs.normals & (self.units is None)

    @property
    def observed(self) -> Mapping[str, np.ma.MaskedArray]:  # noqa: D102
        likelihoods = {name: np.ma.asarray(x) for name, x in self.generator.given.items()}
        return as_given(self.observations) | likelihoods

    @property
    def is_cheap(self):  # noqa: D102
        return self.shape.is_cheap

    @property
    def is_light(self):  # noqa: D102
        return self.shape.is_light

    def chains_together(self, num_chains):  # noqa: D102
        return self.shape.chains_together(num_chains)

    def in_units(self, units):  # noqa: D102
        return replace(self, units=units)

    def residual(self, u: Float[Array, " M"] | tuple[Array, ...]):
        """At a position or, in its own units, at that of each input."""
        outputs = self._outputs(u)
        return jnp.concatenate([o.residual(outputs[o.name]) for o in self.observations])

    def linearise(self, u):  # noqa: D102
        return self.shape.linearise(self.residual, u)

    def evaluate(self, u):  # noqa: D102
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
    def fixed(self):  # noqa: D102
        return self.generator.fixed if isinstance(self.generator, TeacherForced) else {}

    def inputs(self, u):  # noqa: D102
        return self.generator.inputs.values(in_own_units(u, self.units))

    def _outputs(self, u):
        return self.generator.outputs(in_own_units(u, self.units))

    def _log_base(self, u):
        return self.generator.log_density(in_own_units(u, self.units))

    def describe(self, constraint):  # noqa: D102
        for observation in self.observations:
            if constraint < observation.values.size:
                return observation.describe(constraint)
            constraint -= observation.values.size
        raise IndexError(constraint)
