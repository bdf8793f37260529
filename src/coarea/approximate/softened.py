"""The target density of ABC, with softened data: k_ε(ȳ; g_y(u)) ρ(u)."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal, NamedTuple, Self

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from coarea.arguments import checked_number
from coarea.errors import ModelError, SettingError
from coarea.generators import AbstractSimulator
from coarea.generators.inputs import Inputs, standard_normal_log_density
from coarea.manifolds.observation import Observation, as_given, observe, unobserved

Closeness = Literal["uniform", "gaussian"]


class Simulated(NamedTuple):
    """A simulation: its inputs, its distance from the data, and the outputs to report.

    `log_likelihood` is the log of the factor that multiplies the prior: the kernel times the
    model's own factor.
    """

    u: Float[Array, " M"]
    distance: Float[Array, ""]
    log_likelihood: Float[Array, ""]
    latents: dict[str, Array]


class Softened(eqx.Module):
    """A model whose simulations need only be close to the data.

    With the uniform kernel they must lie within Euclidean distance ε of the data. With the Gaussian
    kernel the data are the simulation plus normal noise of standard deviation ε. A simulation that
    is not finite is infinitely far from the data.
    """

    model: AbstractSimulator
    observations: tuple[Observation, ...]
    epsilon: Float[Array, ""]
    kernel: Closeness = eqx.field(static=True)

    @property
    def num_inputs(self) -> int:
        """The length of a position."""
        return self.model.inputs.size

    @property
    def num_observed(self) -> int:
        """The number of observed values."""
        return sum(o.values.size for o in self.observations)

    @property
    def observed(self) -> Mapping[str, np.ma.MaskedArray]:
        """The data by name."""
        return as_given(self.observations)

    @property
    def typical_distance(self) -> Float[Array, ""]:
        """The typical distance between the data and an acceptable simulation."""
        return self.epsilon * (1.0 if self.kernel == "uniform" else self.num_observed**0.5)

    def at(self, epsilon: Float[Array, ""]) -> Self:
        """The same with another tolerance."""
        return replace(self, epsilon=epsilon)

    def simulate(self, u: Float[Array, " M"]) -> Simulated:
        """Run the model on inputs u."""
        outputs, log_factor = self.model.outputs_and_log_factor(u)
        squared = jnp.sum(self._residual(outputs) ** 2)
        distance = jnp.where(jnp.isfinite(squared), jnp.sqrt(squared), jnp.inf)
        log_likelihood = self.log_closeness(distance) + log_factor
        log_likelihood = jnp.where(jnp.isnan(log_likelihood), -jnp.inf, log_likelihood)
        return Simulated(u, distance, log_likelihood, unobserved(outputs, self.observations))

    def log_closeness(self, distance: Float[Array, "..."]) -> Float[Array, "..."]:
        """The log of k_ε, scaled to 0 where the simulation equals the data."""
        if self.kernel == "uniform":
            log_kernel = jnp.where(distance <= self.epsilon, 0.0, -jnp.inf)
        else:
            log_kernel = -0.5 * (distance / self.epsilon) ** 2
        return jnp.where(jnp.isfinite(distance), log_kernel, -jnp.inf)

    def residual(self, u: Float[Array, " M"]) -> Float[Array, " N"]:
        """Simulated minus observed."""
        return self._residual(self.model.outputs(u))

    def _residual(self, outputs):
        return jnp.concatenate([o.residual(outputs[o.name]) for o in self.observations])

    def log_density(self, u: Float[Array, " M"]) -> Float[Array, ""]:
        """The log of k_ε ρ for the Gaussian kernel, which is differentiable."""
        outputs, log_factor = self.model.outputs_and_log_factor(u)
        log_kernel = -0.5 * jnp.sum((self._residual(outputs) / self.epsilon) ** 2)
        return self.model.inputs.log_density(u) + log_factor + log_kernel

    def log_ratio_to_normal(self, at: Simulated) -> Float[Array, ""]:
        """The log of the target density relative to a standard normal density of the inputs."""
        inputs = self.model.inputs
        if inputs.is_standard_normal:
            return at.log_likelihood
        return at.log_likelihood + inputs.log_density(at.u) - standard_normal_log_density(at.u)

    def latents(self, u: Float[Array, " M"]) -> dict[str, Array]:
        """The outputs that were not observed, or only partly."""
        return unobserved(self.model.outputs(u), self.observations)

    def inputs(self, u: Float[Array, " M"]) -> dict[str, Array]:
        """The random inputs by name."""
        return self.model.inputs.values(u)


class Directed(eqx.Module):
    """The parameters of a directed model: their positions in u, and their prior."""

    model: AbstractSimulator
    prior: Inputs
    places: np.ndarray

    def __init__(self, model: AbstractSimulator, method: str):
        if model.parameters is None:
            raise ModelError(
                f"{method} needs a directed model: it moves the parameters and draws the noise "
                "anew, so it must know which inputs are which. Say so with "
                "Generator(…, parameters=('z',)); for a model without parameters use "
                "elliptical_slice, nuts or coarea.condition."
            )
        self.model = model
        self.prior = model.inputs.only(model.parameters)
        self.places = model.inputs.places(model.parameters)

    def place(self, z: Float[Array, " d"], u: Float[Array, " M"]) -> Float[Array, " M"]:
        """The inputs u with their parameters replaced by z."""
        return u.at[self.places].set(z)

    def simulated(self, key, z: Float[Array, " d"]) -> Float[Array, " M"]:
        """Inputs with parameters z and fresh noise."""
        return self.place(z, self.model.draw(key))


def soften(
    model: AbstractSimulator, observed: Mapping[str, Any], epsilon: float, kernel: Closeness
) -> Softened:
    """Check the model, the data and the tolerance, and combine them."""
    model = checked_model(model)
    model.inputs.check_proper("an approximate method")
    check_epsilon(epsilon)
    if kernel not in ("uniform", "gaussian"):
        raise SettingError(f"kernel={kernel!r}: choose 'uniform' or 'gaussian'.")
    observations, _ = observe(model, observed)
    return Softened(model, observations, jnp.asarray(float(epsilon)), kernel)


def checked_model(model: Any) -> AbstractSimulator:
    """Refuse anything but a coarea model; return a frozen copy of it."""
    if not isinstance(model, AbstractSimulator):
        raise ModelError(
            "approximate methods take a coarea.Generator or a coarea.Markov, not a "
            f"{type(model).__name__}."
        )
    return model.frozen()


def check_epsilon(epsilon: Any) -> None:
    """Refuse a tolerance that is not a positive number."""
    is_infinite = isinstance(epsilon, float) and epsilon == np.inf  # accepts every simulation
    try:
        if not is_infinite:
            checked_number("epsilon", epsilon)
    except SettingError:
        raise SettingError(
            f"epsilon={epsilon!r}: the tolerance is a distance from the data, a positive number. "
            "For none at all, coarea.condition(model, observed) conditions exactly."
        ) from None
