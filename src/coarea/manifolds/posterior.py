"""`Posterior`: a generator's inputs given that some of its outputs take observed values."""

from collections.abc import Mapping
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from coarea.generators import AbstractGenerator
from coarea.manifolds.target import AbstractShape, AbstractTarget, Evaluation, in_own_units


class Observation(eqx.Module):
    """The observed values of one output; `index` picks them where others are missing."""

    name: str = eqx.field(static=True)
    shape: tuple[int, ...] = eqx.field(static=True)
    values: np.ndarray
    index: np.ndarray | None

    def residual(self, output: Array) -> Float[Array, " n"]:
        """Computed minus observed, missing values left out."""
        computed = output.ravel()
        if self.index is not None:
            computed = computed[self.index]
        return computed - self.values.astype(computed.dtype)

    def as_given(self) -> np.ma.MaskedArray:
        """The data in their own shape, missing values masked."""
        whole = np.ma.masked_all(self.shape, dtype=float)
        whole.reshape(-1)[slice(None) if self.index is None else self.index] = self.values
        return whole

    def describe(self, constraint: int) -> str:
        """The name of one observed element."""
        flat = constraint if self.index is None else int(self.index[constraint])
        place = ", ".join(str(int(i)) for i in np.unravel_index(flat, self.shape))
        return f"{self.name}[{place}]" if place else self.name


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
    def observed(self) -> Mapping[str, np.ma.MaskedArray]:
        """The data by name, missing values masked."""
        exact = {o.name: o.as_given() for o in self.observations}
        return exact | {name: np.ma.asarray(x) for name, x in self.generator.given.items()}

    @property
    def is_cheap(self):  # noqa: D102
        return self.shape.is_cheap

    def chains_together(self, num_chains):  # noqa: D102
        return self.shape.chains_together(num_chains)

    def in_units(self, units):  # noqa: D102
        return replace(self, units=units)

    def residual(self, u):  # noqa: D102
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
        whole = {o.name for o in self.observations if o.index is None}
        return {k: v for k, v in self._outputs(u).items() if k not in whole}

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
