"""`Generator`: a differentiable simulator with its random inputs made explicit."""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key
from typing_extensions import override

from coarea.arguments import checked_count, require_memory
from coarea.errors import ModelError
from coarea.generators.inputs import Inputs
from coarea.keys import checked_key
from coarea.precision import in_float64, top_level
from coarea.tracing import Traced, trace
from coarea.xla import jit_bounded, jit_fast_compile

_SUMMARY = "the function given to summarise"


class AbstractGenerator(eqx.Module):
    """Random inputs, and outputs computed from them."""

    inputs: eqx.AbstractVar[Inputs]
    # The names of the inputs that are parameters; None if the model is not directed.
    parameters: eqx.AbstractVar[tuple[str, ...] | None]

    @abstractmethod
    def outputs(self, u: Float[Array, " M"]) -> dict[str, Array]:
        """All outputs by name, computed from the flat vector of inputs."""

    @abstractmethod
    def frozen(self) -> Self:
        """A copy of the model with the user's functions traced, unaffected by later changes."""

    def log_density(self, u: Float[Array, " M"]) -> Float[Array, ""]:
        """The log of ρ(u), plus the log likelihood of data that are not exact constraints."""
        return self.inputs.log_density(u)

    def draw(self, key: Key[Array, ""]) -> Float[Array, " M"]:
        """Inputs drawn from the prior."""
        return self.inputs.draw(key)

    @property
    def has_factor(self) -> bool:
        """Whether the density has a factor besides that of the inputs."""
        return False

    @property
    def explicit(self) -> Any:
        """The model without noise inputs (`ExplicitNoise`); None if it cannot do without."""
        return None

    @property
    def fixed(self) -> Mapping[str, Array]:
        """The outputs that do not depend on the inputs."""
        return {}

    @property
    def given(self) -> Mapping[str, np.ndarray]:
        """The data that enter through a likelihood, by name."""
        return {}

    @top_level
    def simulate(self, key: Key[Array, ""], num: int) -> dict[str, np.ndarray]:
        """Simulate all outputs from the prior `num` times; the draws are the leading axis.

        These are independent draws from the prior predictive distribution.
        """
        key, num = checked_key(key), checked_count("num", num)
        self.inputs.check_proper("simulate")
        model = self.frozen()
        outputs = jax.eval_shape(lambda u: model.outputs(u), self.inputs.example)
        size = self.inputs.size + sum(x.size for x in outputs.values())
        require_memory(
            8.0 * num * size,
            f"{num} simulations of {size} numbers each",
            "Ask for fewer at a time.",
        )
        return {name: np.asarray(value) for name, value in _simulate(model, key, num).items()}


class AbstractSimulator(AbstractGenerator):
    """A generator that computes its outputs from a dictionary of input values."""

    @abstractmethod
    def outputs_of(self, values: Mapping[str, Array]) -> dict[str, Array]:
        """All outputs by name, computed from the inputs by name."""

    @override
    def outputs(self, u):
        return self.outputs_of(self.inputs.values(u))

    def reported(self, parameters: Mapping[str, Array]) -> dict[str, Array]:
        """What to report if only the parameters are known; by default these."""
        return dict(parameters)

    def outputs_and_log_factor(
        self, u: Float[Array, " M"]
    ) -> tuple[dict[str, Array], Float[Array, ""]]:
        """All outputs, and the log of their factor of the density, from one simulation."""
        return self.outputs(u), jnp.zeros((), u.dtype)

    @override
    def log_density(self, u):
        log_base = self.inputs.log_density(u)
        return log_base + self.outputs_and_log_factor(u)[1] if self.has_factor else log_base

    def summarise(self, function: Callable[[dict[str, Array]], dict[str, Array]]) -> "Summarised":
        """The same model with statistics of its outputs as additional outputs.

        `function` takes the dictionary of outputs and returns a dictionary of statistics. A
        statistic replaces the output of the same name; all other outputs stay. The statistics can
        be observed in place of the outputs. Exact conditioning needs differentiable statistics;
        approximate methods do not.

        >>> import coarea as co
        >>> model = co.Generator(lambda u: {"z": u["z"], "y": u["z"] + u["n"]}, {"z": (), "n": 50})
        >>> def mean_and_spread(outputs):
        ...     y = outputs["y"]
        ...     return {"mean": y.mean(), "log_variance": jax.numpy.log(y.var())}
        >>> posterior = co.condition(
        ...     model.summarise(mean_and_spread), {"mean": 0.3, "log_variance": 0.0}
        ... )
        >>> posterior.num_constraints
        2
        """
        if not callable(function):
            raise ModelError(f"summarise takes a function of the outputs, not {function!r}.")
        return Summarised(self, function)


class Generator(AbstractSimulator):
    """A generative model: `function` maps a dictionary of random inputs to one of outputs.

    `inputs` names the random inputs. A shape means standard normals; a NumPyro distribution gives
    another base density. `parameters` names the inputs that are parameters in a directed model; all
    other inputs are then noise. Some approximate methods need it. `log_factor(outputs)` is added to
    the log density. It may be, for example, the log likelihood of count data, or a soft constraint.

    >>> import coarea as co, jax, jax.numpy as jnp, numpyro.distributions as dist
    >>> def simulate(u):
    ...     return {"rate": u["rate"], "y": jnp.cumsum(u["rate"] + 0.1 * u["noise"])}
    >>> model = co.Generator(simulate, inputs={"rate": dist.LogNormal(0.0, 1.0), "noise": 5})
    >>> model.simulate(jax.random.key(0), 3)["y"].shape
    (3, 5)
    """

    function: Callable[[dict[str, Array]], dict[str, Array]]
    inputs: Inputs
    parameters: tuple[str, ...] | None = eqx.field(static=True)
    log_factor: Callable[[dict[str, Array]], Array] | None

    @in_float64
    def __init__(
        self,
        function: Callable,
        inputs: Mapping[str, Any],
        *,
        parameters: Iterable[str] | None = None,
        log_factor: Callable | None = None,
    ):
        if not callable(function):
            raise ModelError(f"the generator's function is not callable: {function!r}.")
        if not (log_factor is None or callable(log_factor)):
            raise ModelError(f"log_factor must be a function of the outputs, not {log_factor!r}.")
        self.function = function
        self.inputs = Inputs(inputs)
        self.parameters = _checked(parameters, self.inputs)
        self.log_factor = log_factor
        if log_factor is not None:
            self.frozen()

    @override
    def frozen(self):
        function = trace(
            lambda values: named(self.function(values), "the generator's function", "outputs"),
            self.inputs.example_values,
            what="the generator's function",
        )
        given, factor = self.log_factor, None
        if given is not None:
            outputs = jax.eval_shape(function, self.inputs.example_values)
            factor = trace(lambda outputs: _factor(given, outputs), outputs, what="log_factor")
        return eqx.tree_at(
            lambda g: (g.function, g.inputs, g.log_factor),
            self,
            (function, self.inputs.copied(), factor),
            is_leaf=lambda x: x is None,
        )

    @property
    @override
    def has_factor(self):
        return self.log_factor is not None

    @override
    def outputs_and_log_factor(self, u):
        outputs = self.outputs(u)
        if self.log_factor is None:
            return outputs, jnp.zeros((), u.dtype)
        return outputs, self.log_factor(outputs)

    @override
    def outputs_of(self, values):
        if isinstance(self.function, Traced):
            return self.function(values)
        return named(self.function(dict(values)), "the generator's function", "outputs")


class Summarised(AbstractSimulator):
    """A generator whose outputs include statistics of other outputs; made by `summarise`."""

    generator: AbstractSimulator
    function: Callable[[dict[str, Array]], dict[str, Array]]
    inputs: Inputs
    parameters: tuple[str, ...] | None = eqx.field(static=True)

    def __init__(self, generator: AbstractSimulator, function: Callable):
        self.generator, self.function = generator, function
        self.inputs, self.parameters = generator.inputs, generator.parameters

    @override
    def frozen(self):
        generator = self.generator.frozen()
        outputs = jax.eval_shape(generator.outputs_of, self.inputs.example_values)
        function = trace(
            lambda outputs: named(self.function(outputs), _SUMMARY, "statistics"),
            outputs,
            what=_SUMMARY,
        )
        return Summarised(generator, function)

    @property
    @override
    def has_factor(self):
        return self.generator.has_factor

    @override
    def outputs_of(self, values):
        return self._with_statistics(self.generator.outputs_of(values))

    @override
    def outputs_and_log_factor(self, u):
        outputs, factor = self.generator.outputs_and_log_factor(u)
        return self._with_statistics(outputs), factor

    def _with_statistics(self, outputs):
        found = self.function(dict(outputs))
        return outputs | named(found, _SUMMARY, "statistics")


def named(outputs: Any, function: str, kind: str) -> dict[str, Array]:
    """Check that a user's function returned a dictionary of arrays."""
    if not isinstance(outputs, Mapping):
        raise ModelError(
            f"{function} must return a dictionary of named {kind}, such as {{'y': …}}; it returned "
            f"{described(outputs)}."
        )
    return {name: _array(name, value, function, kind) for name, value in outputs.items()}


def _array(name: Any, value: Any, function: str, kind: str) -> Array:
    if not isinstance(name, str):
        raise ModelError(f"{function} names one of its {kind} {name!r}: names must be strings.")
    cure = "leave it out"
    if isinstance(value, Mapping | list | tuple):
        cure = "give each array in it a name of its own, or stack them (jax.numpy.stack)"
    try:
        array = jnp.asarray(value)
    except (TypeError, ValueError):
        array = None
    if array is None or jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        raise ModelError(
            f"{function} returns {name!r} as {described(value)}, which is no array of numbers: "
            f"{cure}."
        )
    return array


def described(value: Any) -> str:
    """A description of a returned value, for error messages."""
    if value is None:
        return "None"
    if isinstance(value, jax.Array | np.ndarray):
        return f"an array of shape {value.shape} and dtype {value.dtype}"
    return f"a {type(value).__name__}"


def _factor(log_factor: Callable, outputs: dict[str, Array]) -> Array:
    value = log_factor(outputs)
    if getattr(jnp.asarray(value) if np.isscalar(value) else value, "shape", None) != ():
        raise ModelError(
            "log_factor must return one number, the log of a factor of the density; it returned "
            f"{described(value)}."
        )
    return jnp.asarray(value)


def _checked(parameters, inputs: Inputs) -> tuple[str, ...] | None:
    if parameters is None:
        return None
    if not isinstance(parameters, Iterable):
        raise ModelError(f"parameters={parameters!r}: give the names of inputs, such as ['z'].")
    names = (parameters,) if isinstance(parameters, str) else tuple(parameters)
    if unknown := [name for name in names if name not in inputs.names]:
        raise ModelError(
            f"parameters={names!r}: {unknown[0]!r} is not one of the inputs, which are "
            f"{', '.join(inputs.names)}."
        )
    if not names:
        raise ModelError("parameters=(): name at least one input, or leave it out.")
    return names


@jit_fast_compile
def prior_draws(model: AbstractGenerator, num: int = 16) -> Float[Array, "num M"]:
    """Inputs drawn from the prior, always the same ones."""
    return jax.vmap(model.draw)(jax.random.split(jax.random.key(0), num))


@jit_bounded
def _simulate(generator: AbstractGenerator, key, num: int):
    keys = jax.random.split(key, num)
    return jax.vmap(lambda k: generator.outputs(generator.draw(k)))(keys)
