"""`Generator`: a differentiable simulator with its random inputs made explicit."""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float, Key

from coarea.errors import ModelError
from coarea.generators.inputs import Inputs
from coarea.precision import in_float64


class AbstractGenerator(eqx.Module):
    """Random inputs, and outputs computed from them."""

    inputs: eqx.AbstractVar[Inputs]

    @abstractmethod
    def outputs(self, u: Float[Array, " M"]) -> dict[str, Array]:
        """Every output by name, from the flat vector of inputs."""

    def log_density(self, u: Float[Array, " M"]) -> Float[Array, ""]:
        """The log of ρ(u), with any likelihood that stays one."""
        return self.inputs.log_density(u)

    def draw(self, key: Key[Array, ""]) -> Float[Array, " M"]:
        """Inputs drawn from the prior."""
        return self.inputs.draw(key)

    @property
    def given(self) -> Mapping[str, np.ndarray]:
        """Data that enter by a likelihood, by name."""
        return {}

    @in_float64
    def simulate(self, key: Key[Array, ""], num: int) -> dict[str, np.ndarray]:
        """`num` independent draws of all outputs (the prior predictive), stacked in front."""
        return {name: np.asarray(value) for name, value in _simulate(self, key, num).items()}


class Generator(AbstractGenerator):
    """A generative model: `function` turns a dictionary of random inputs into one of outputs.

    `inputs` names the random numbers. A shape means standard normals; a NumPyro distribution
    gives another base density. `log_factor(outputs)` adds to the log density: a likelihood of data
    that are not computed but counted, say, or a soft constraint.

    >>> import coarea as co, jax, jax.numpy as jnp, numpyro.distributions as dist
    >>> def simulate(u):
    ...     return {"rate": u["rate"], "y": jnp.cumsum(u["rate"] + 0.1 * u["noise"])}
    >>> model = co.Generator(simulate, inputs={"rate": dist.LogNormal(0.0, 1.0), "noise": 5})
    >>> model.simulate(jax.random.key(0), 3)["y"].shape
    (3, 5)
    """

    function: Callable[[dict[str, Array]], dict[str, Array]]
    inputs: Inputs
    log_factor: Callable[[dict[str, Array]], Array] | None

    @in_float64
    def __init__(
        self,
        function: Callable,
        inputs: Mapping[str, Any],
        *,
        log_factor: Callable | None = None,
    ):
        if not callable(function):
            raise ModelError(f"the generator's function is not callable: {function!r}.")
        self.function = function
        self.inputs = Inputs(inputs)
        self.log_factor = log_factor
        if log_factor is not None:
            value = jax.eval_shape(lambda u: log_factor(self.outputs(u)), self.inputs.example)
            if getattr(value, "shape", None) != ():
                raise ModelError(
                    "log_factor must return one number, the log of a factor of the density; it "
                    f"returned {value}."
                )

    def log_density(self, u):  # noqa: D102
        log_base = self.inputs.log_density(u)
        return log_base if self.log_factor is None else log_base + self.log_factor(self.outputs(u))

    def outputs(self, u):  # noqa: D102
        return self.outputs_of(self.inputs.values(u))

    def outputs_of(self, values: Mapping[str, Array]) -> dict[str, Array]:
        """Every output by name, from the inputs by name."""
        outputs = self.function(dict(values))
        if not isinstance(outputs, Mapping):
            raise ModelError(
                "the generator's function must return a dictionary of named outputs, such as "
                f"{{'y': …}}; it returned {type(outputs).__name__}."
            )
        return {name: jax.numpy.asarray(value) for name, value in outputs.items()}


@eqx.filter_jit
def _simulate(generator: AbstractGenerator, key, num: int):
    keys = jax.random.split(key, num)
    return jax.vmap(lambda k: generator.outputs(generator.draw(k)))(keys)
