"""`Markov`: a simulator that steps through time, with independent noise for each step."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array
from typing_extensions import override

from coarea.arguments import checked_count
from coarea.errors import ModelError, SettingError
from coarea.generators.generator import AbstractSimulator, described, named
from coarea.generators.inputs import Inputs
from coarea.precision import in_float64
from coarea.tracing import Traced, trace

_OWN_NAMES = ("initial_noise", "noise", "observe_noise")


class Markov(AbstractSimulator):
    """A simulator described by its time step; conditioning it costs time linear in its length.

    `shared` names the inputs that every step uses, in the same form as for `Generator`. Let `s` be
    their values by name. Then `initial(s, n)` returns the first state, and `step(s, x, n, t)`
    returns the state after step t = 0, 1, …. The state is observed after every `observe_every`
    steps: `observe(s, x, n, t)` returns what is observed of it, by default the whole state.

    Each of these functions gets standard normals `n`. Their shapes are `initial_noise`, `noise` and
    `observe_noise`; a function without noise gets None.

    The outputs are `y`, what is observed; `x`, the states at the same times; and those that
    `outputs(s)` returns, by default the shared inputs.

    >>> import coarea as co, jax, jax.numpy as jnp
    >>> model = co.Markov(
    ...     shared={"decay": ()}, noise=(), steps=20,
    ...     initial=lambda s, n: jnp.zeros(()),
    ...     step=lambda s, x, n, t: jnp.exp(-jnp.exp(s["decay"])) * x + n,
    ... )
    >>> model.simulate(jax.random.key(0), 3)["y"].shape
    (3, 20)
    """

    shared: Inputs
    inputs: Inputs
    initial: Callable
    step: Callable
    observe: Callable | None
    report: Callable | None
    noise: tuple[int, ...] = eqx.field(static=True)
    initial_noise: tuple[int, ...] | None = eqx.field(static=True)
    observe_noise: tuple[int, ...] | None = eqx.field(static=True)
    steps: int = eqx.field(static=True)
    observe_every: int = eqx.field(static=True)

    @in_float64
    def __init__(
        self,
        *,
        shared: Mapping[str, Any],
        noise: int | tuple[int, ...],
        steps: int,
        initial: Callable,
        step: Callable,
        observe: Callable | None = None,
        outputs: Callable | None = None,
        initial_noise: int | tuple[int, ...] | None = None,
        observe_noise: int | tuple[int, ...] | None = None,
        observe_every: int = 1,
    ):
        steps = checked_count("steps", steps)
        observe_every = checked_count("observe_every", observe_every)
        if steps % observe_every:
            raise ModelError(
                f"steps={steps} must be a positive multiple of observe_every={observe_every}."
            )
        for name, function in (("initial", initial), ("step", step)):
            if not callable(function):
                raise ModelError(f"{name} must be a function, not {function!r}.")
        for name, function in (("observe", observe), ("outputs", outputs)):
            if not (function is None or callable(function)):
                raise ModelError(f"{name} must be a function, or left out, not {function!r}.")
        self.shared = Inputs(shared)
        if taken := set(shared) & {*_OWN_NAMES, "x", "y"}:
            raise ModelError(
                f"shared inputs may not be called {', '.join(sorted(taken))}: the simulator's own "
                "noise and outputs have these names."
            )
        if observe is None and observe_noise is not None:
            raise ModelError("observe_noise is given, but no observe function that would use it.")
        self.initial, self.step, self.observe, self.report = initial, step, observe, outputs
        self.steps, self.observe_every = steps, observe_every
        self.noise, self.initial_noise, self.observe_noise = (
            _shape("noise", noise) or (),
            _shape("initial_noise", initial_noise),
            _shape("observe_noise", observe_noise),
        )
        own: dict[str, Any] = {"noise": (steps, *self.noise)}
        if self.initial_noise is not None:
            own["initial_noise"] = self.initial_noise
        if self.observe_noise is not None:
            own["observe_noise"] = (steps // observe_every, *self.observe_noise)
        self.inputs = Inputs({**shared, **own})
        self.frozen()

    @property
    def parameters(self) -> tuple[str, ...]:  # pyright: ignore
        """The names of the shared inputs; all other inputs are noise."""
        return self.shared.names

    @property
    def num_observations(self) -> int:
        """The number of observation times."""
        return self.steps // self.observe_every

    @override
    def frozen(self):
        s = self.shared.example_values
        noise, first_noise, seen_noise = (
            None if shape is None else jax.ShapeDtypeStruct(shape, float)
            for shape in (self.noise, self.initial_noise, self.observe_noise)
        )
        t = jax.ShapeDtypeStruct((), int)
        initial = trace(self._initial_state, s, first_noise, what="initial")
        x = jax.eval_shape(initial, s, first_noise)
        step = trace(self._next_state(x.shape), s, x, noise, t, what="step")
        observe = report = None
        if self.observe is not None:
            observe = trace(_array_of(self.observe, "observe"), s, x, seen_noise, t, what="observe")
        if self.report is not None:
            report = trace(self.reported, s, what="outputs")
        return eqx.tree_at(
            lambda m: (m.shared, m.inputs, m.initial, m.step, m.observe, m.report),
            self,
            (self.shared.copied(), self.inputs.copied(), initial, step, observe, report),
            is_leaf=lambda x: x is None,
        )

    def _initial_state(self, s, n):
        x = _array_of(self.initial, "initial")(s, n)
        return x if jnp.issubdtype(x.dtype, jnp.inexact) else x.astype(float)

    def _next_state(self, shape):
        step = _array_of(self.step, "step")

        def checked(s, x, n, t):
            ahead = step(s, x, n, t)
            if ahead.shape != shape:
                raise ModelError(
                    f"step must return a state of the shape that initial returns, {shape}; it "
                    f"returned {ahead.shape}."
                )
            return ahead.astype(x.dtype)

        return checked

    def _start(self, values: Mapping[str, Array]) -> Array:
        return self.first_state(self._shared(values), values.get("initial_noise"))

    def _shared(self, values):
        return {name: values[name] for name in self.shared.names}

    def first_state(self, s: Mapping[str, Array], n: Array | None) -> Array:
        """The state before the first step."""
        return self.initial(s, n) if isinstance(self.initial, Traced) else self._initial_state(s, n)

    def advance(self, s: Mapping[str, Array], x: Array, n: Array, interval: Any) -> Array:
        """Advance the state by one interval between observations; `n` is (observe_every, …)."""
        first = interval * self.observe_every
        if self.observe_every == 1:
            return jnp.asarray(self.step(s, x, n[0], first))

        def one(x, inputs):
            n, t = inputs
            return jnp.asarray(self.step(s, x, n, t)), None

        return jax.lax.scan(one, x, (n, first + jnp.arange(self.observe_every)))[0]

    def seen(self, s: Mapping[str, Array], x: Array, n: Array | None, interval: Any) -> Array:
        """What is observed of the state after an interval."""
        if self.observe is None:
            return x
        return jnp.asarray(self.observe(s, x, n, (interval + 1) * self.observe_every - 1))

    @override
    def reported(self, parameters):
        """The outputs that depend on the shared inputs alone."""
        if self.report is None:
            return dict(parameters)
        return named(self.report(dict(parameters)), "outputs", "values")

    def intervals(self, noise: Array) -> Array:
        """The noise of all steps, with a row for each interval between observations."""
        return noise.reshape(self.num_observations, self.observe_every, *noise.shape[1:])

    @override
    def outputs_of(self, values):
        s = self._shared(values)

        def interval(x, inputs):
            noise, k = inputs
            x = self.advance(s, x, noise, k)
            return x, x

        numbers = jnp.arange(self.num_observations)
        _, x = jax.lax.scan(
            interval, self._start(values), (self.intervals(values["noise"]), numbers)
        )
        e = values.get("observe_noise")
        y = jax.vmap(self.seen, in_axes=(None, 0, None if e is None else 0, 0))(s, x, e, numbers)
        return {**self.reported(s), "x": x, "y": y}


def _array_of(function: Callable, name: str) -> Callable[..., Array]:
    """Wrap a user's function to check that it returns one array."""

    def checked(*args):
        value = function(*args)
        try:
            return jnp.asarray(value)
        except (TypeError, ValueError) as error:
            raise ModelError(
                f"{name} must return one array, not {described(value)}: put what it holds "
                "into one (jax.numpy.stack, jax.numpy.concatenate)."
            ) from error

    return checked


def _shape(name: str, given: int | tuple[int, ...] | None) -> tuple[int, ...] | None:
    if given is None:
        return None
    shape = tuple(given) if isinstance(given, list | tuple) else (given,)
    try:
        return tuple(checked_count(name, n, 0) for n in shape)
    except SettingError:
        raise ModelError(
            f"{name}={given!r}: give the shape of the standard normals that it is, such as 2 or "
            "(3, 2), or () for a single one."
        ) from None


def size_of(shape: tuple[int, ...] | None) -> int:
    """The number of elements of noise with this shape; 0 if there is no noise."""
    return 0 if shape is None else math.prod(shape)
