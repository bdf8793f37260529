"""BlackJAX's HMC and NUTS without constraints, for softened data or a known likelihood."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

import blackjax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key
from typing_extensions import override

from coarea.approximate.method import (
    AbstractMethod,
    MethodDraw,
    MethodStats,
    Options,
    Run,
    options_from,
    run_chains,
)
from coarea.approximate.softened import Directed, Softened, checked_model, soften
from coarea.approximate.starts import best_of_prior, near_the_data, on_the_data
from coarea.errors import ModelError, SettingError, StartError
from coarea.generators import AbstractSimulator
from coarea.generators.generator import named
from coarea.kernels.kernel import check_step_size, step_range
from coarea.manifolds.observation import Observation, as_given, observe
from coarea.precision import top_level
from coarea.tracing import trace

if TYPE_CHECKING:
    from xarray import DataTree


@top_level
def hmc(
    model: Any,
    observed: Mapping[str, Any],
    *,
    epsilon: float,
    num_steps: int | tuple[int, int] = (10, 20),
    step_size: float | None = None,
    **run: Unpack[Run],
) -> "DataTree":
    """Hamiltonian Monte Carlo on all inputs, given data softened by a Gaussian kernel.

    A transition has `num_steps` leapfrog steps; a pair gives the range of a random number of steps.
    By default warm-up adapts the step size and a diagonal mass matrix. If `step_size` is given, it
    is fixed and the mass matrix is the identity. The data are softened by normal noise of standard
    deviation `epsilon`.

    The method needs first derivatives, but not the second ones that `coarea.sample` needs. The
    density is concentrated in a shell of width ε around the manifold of inputs that reproduce the
    data. A step much longer than ε leaves that shell. Exact conditioning is faster for a small ε.

    Of the options of `coarea.sample`, this function takes `draws`, `warmup`, `chains`, `seed`,
    `start`, `keep`, `devices` and `progress`.

    >>> import coarea as co
    >>> model = co.Generator(lambda u: {"z": u["z"], "y": u["z"] + u["n"]}, {"z": (), "n": ()})
    >>> draws = co.approximate.hmc(model, {"y": 1.0}, epsilon=0.3, draws=200, chains=2)
    >>> draws.posterior["z"].shape
    (2, 200)
    """
    options = options_from(run)
    target = soften(model, observed, epsilon, "gaussian")
    method = Trajectories(target, step_range(num_steps), as_step(step_size), options.warmup)
    starts = near_the_data(target, options)
    return run_chains(
        method, starts, options, "ABC-HMC", method.burn_in, epsilon=epsilon, kernel="gaussian"
    )


@top_level
def nuts(
    model: Any,
    observed: Mapping[str, Any],
    *,
    epsilon: float,
    step_size: float | None = None,
    **run: Unpack[Run],
) -> "DataTree":
    """The No-U-Turn sampler on all inputs, given data softened by a Gaussian kernel.

    It is like `hmc`, but a trajectory ends when it makes a U-turn.

    >>> import coarea as co
    >>> model = co.Generator(lambda u: {"z": u["z"], "y": u["z"] + u["n"]}, {"z": (), "n": ()})
    >>> draws = co.approximate.nuts(model, {"y": 1.0}, epsilon=0.3, draws=200, chains=2)
    >>> draws.posterior["z"].shape
    (2, 200)
    """
    options = options_from(run)
    target = soften(model, observed, epsilon, "gaussian")
    method = Trajectories(target, None, as_step(step_size), options.warmup)
    starts = near_the_data(target, options)
    return run_chains(
        method, starts, options, "ABC-NUTS", method.burn_in, epsilon=epsilon, kernel="gaussian"
    )


@top_level
def tractable(
    model: Any,
    observed: Mapping[str, Any],
    log_likelihood: Callable[[dict[str, Array], dict[str, Array]], Any],
    *,
    outputs: Callable[[dict[str, Array]], dict[str, Array]] | None = None,
    num_steps: int | tuple[int, int] | None = None,
    step_size: float | None = None,
    **run: Unpack[Run],
) -> "DataTree":
    """The posterior of a directed model with a known likelihood: a baseline, not an ABC method.

    `log_likelihood(parameters, observed)` returns the log density of the data. Both arguments are
    dictionaries by name; the parameters have the values that the model's function sees. Only the
    parameters are sampled, by NUTS, or by HMC with `num_steps` leapfrog steps if that is given.
    Nothing is approximated, so this is the method to compare with if a likelihood can be written
    down.

    `outputs(parameters)` returns what to report; by default the parameters are reported. Of the
    options of `coarea.sample`, this function takes `draws`, `warmup`, `chains`, `seed`, `start`,
    `keep`, `devices` and `progress`.

    >>> import coarea as co
    >>> model = co.Generator(
    ...     lambda u: {"z": u["z"], "y": u["z"] + u["n"]}, {"z": (), "n": ()}, parameters=["z"]
    ... )
    >>> def log_likelihood(parameters, observed):
    ...     return -0.5 * (observed["y"] - parameters["z"]) ** 2
    >>> draws = co.approximate.tractable(model, {"y": 1.0}, log_likelihood, draws=200, chains=2)
    >>> draws.posterior["z"].shape
    (2, 200)
    """
    options = options_from(run)
    model = checked_model(model)
    directed = Directed(model, "tractable")
    if model.has_factor:
        raise ModelError("the model has a log_factor, which a likelihood given apart would miss.")
    observations, _ = observe(model, observed)
    if any(o.index is not None for o in observations):
        raise ModelError(
            "tractable takes complete data: let log_likelihood leave out what is missing, and pass "
            "the rest."
        )
    data = {o.name: jax.ShapeDtypeStruct(o.shape, float) for o in observations}
    likelihood = trace(
        _one_number(log_likelihood), directed.prior.example_values, data, what="log_likelihood"
    )
    target = Given(directed, observations, likelihood, report_of(directed, outputs))
    steps = None if num_steps is None else step_range(num_steps)
    method = Trajectories(target, steps, as_step(step_size), options.warmup)
    starts = options.given_starts(target.num_inputs)
    if starts is None:
        starts = best_parameters(target, directed, options)
    name = "HMC" if num_steps else "NUTS"
    return run_chains(method, starts, options, name, method.burn_in)


def as_step(step_size: float | None) -> Float[Array, ""] | None:
    """The checked step size as an array, so that another value needs no new compilation."""
    check_step_size(step_size)
    return None if step_size is None else jnp.asarray(float(step_size))


def report_of(directed: Directed, outputs: Callable | None) -> Callable:
    """The function that reports: `outputs` if given, else the model's own."""
    if outputs is not None:
        return trace(
            lambda values: named(outputs(values), "outputs", "values"),
            directed.prior.example_values,
            what="outputs",
        )
    return directed.model.reported


def _one_number(log_likelihood: Callable) -> Callable:
    def checked(parameters, data):
        value = jnp.asarray(log_likelihood(parameters, data))
        if value.shape != ():
            raise ModelError(f"log_likelihood must return one number, not shape {value.shape}.")
        return value

    return checked


class Given(eqx.Module):
    """The prior of the parameters times a given likelihood."""

    directed: Directed
    observations: tuple[Observation, ...]
    log_likelihood: Callable
    report: Callable

    @property
    def num_inputs(self) -> int:
        """The number of coordinates of the parameters."""
        return self.directed.places.size

    @property
    def observed(self) -> Mapping[str, np.ma.MaskedArray]:
        """The data by name."""
        return as_given(self.observations)

    def log_density(self, z: Float[Array, " d"]) -> Float[Array, ""]:
        """The log of the prior times the likelihood."""
        data = {o.name: jnp.asarray(o.values).reshape(o.shape) for o in self.observations}
        return self.directed.prior.log_density(z) + self.log_likelihood(self.inputs(z), data)

    def latents(self, z: Float[Array, " d"]) -> dict[str, Array]:
        """The quantities to report, computed from the parameters."""
        return self.report(self.inputs(z))

    def inputs(self, z: Float[Array, " d"]) -> dict[str, Array]:
        """The parameters by name."""
        return self.directed.prior.values(z)


class Probable(eqx.Module):
    """Ranks start points by the log density of their parameters."""

    directed: Directed
    density: Any  # of the parameters

    @property
    def model(self) -> AbstractSimulator:
        """The model whose prior is drawn from."""
        return self.directed.model

    def merit(self, u: Float[Array, " M"]) -> Float[Array, ""]:
        """The log density."""
        return self.density.log_density(u[self.directed.places])


def best_parameters(density: Any, directed: Directed, options: Options) -> np.ndarray:
    """For each chain, the prior draw of the parameters with the greatest log density among many.

    If a chain has no draw of positive density, the parameters of inputs that reproduce the data are
    used.
    """
    candidates = Probable(directed, density)
    u, log_density = best_of_prior(candidates, options)
    if not np.all(np.isfinite(log_density)):
        found = on_the_data(directed.model, density.observed, options)
        u = u if found is None else found
        log_density = np.array([candidates.merit(row) for row in jnp.asarray(u)])
    if not np.all(np.isfinite(log_density)):
        raise StartError(
            "no prior draw of the parameters has a likelihood that is finite and not zero: give "
            "start=, a row of coordinates of the parameters for each chain."
        )
    return u[:, directed.places]


class Follower(NamedTuple):
    """A chain: BlackJAX's state, and the adapted parameters."""

    state: Any
    step_size: Float[Array, ""]
    inverse_mass: Float[Array, " M"]


def warm_up(
    key: Key[Array, ""],
    log_density: Callable,
    u: Float[Array, " M"],
    length: int,
    num_steps: int | None,
) -> Follower:
    """Run BlackJAX's window adaptation of NUTS, or of HMC with `num_steps` steps."""
    fixed: dict[str, Any] = {} if num_steps is None else {"num_integration_steps": num_steps}
    adaptation: Any = blackjax.window_adaptation(
        blackjax.nuts if num_steps is None else blackjax.hmc,
        log_density,
        adaptation_info_fn=lambda *_: None,
        **fixed,
    )
    (state, found), _ = adaptation.run(key, u, length)
    return Follower(state, found["step_size"], found["inverse_mass_matrix"])


class Trajectories(AbstractMethod):
    """NUTS on a differentiable density, or HMC with a number of steps drawn from a range."""

    target: Any
    num_steps: tuple[int, int] | None = eqx.field(static=True)
    step_size: Float[Array, ""] | None
    warmup: int = eqx.field(static=True)

    def __check_init__(self):
        if self.step_size is None and self.warmup < 20:
            raise SettingError(
                f"warmup={self.warmup} is too short to find a step size (20 is the least, 500 the "
                "default): give more, or step_size."
            )

    @property
    def burn_in(self) -> int:
        """The number of transitions to discard after `init`, which runs all of the adaptation."""
        return 0 if self.step_size is None else self.warmup

    @override
    def init(self, key, u):
        if self.step_size is not None:
            return Follower(self.at(u), self.step_size, jnp.ones(u.size))
        mean = None if self.num_steps is None else sum(self.num_steps) // 2
        return warm_up(key, self.target.log_density, u, self.warmup, mean)

    def at(self, u: Float[Array, " M"]) -> Any:
        """BlackJAX's state at u."""
        return blackjax.nuts.init(u, self.target.log_density)

    @override
    def step(self, key, state: Follower, number):
        del number
        at, step_size, inverse_mass = state
        if self.num_steps is None:
            at, info = blackjax.nuts.build_kernel()(
                key, at, self.target.log_density, step_size, inverse_mass
            )
        else:
            length_key, key = jax.random.split(key)
            fewest, most = self.num_steps
            at, info = blackjax.hmc.build_kernel()(
                key,
                at,
                self.target.log_density,
                step_size,
                inverse_mass,
                jax.random.randint(length_key, (), fewest, most + 1),
            )
        distance, latents = None, {}
        if isinstance(self.target, Softened):
            _, distance, _, latents = self.target.simulate(at.position)
        elif isinstance(self.target, Given):
            latents = self.target.latents(at.position)
        stats = MethodStats(
            acceptance_rate=info.acceptance_rate,
            diverging=info.is_divergent,
            lp=at.logdensity,
            n_steps=jnp.asarray(info.num_integration_steps),
            # BlackJAX's HMC returns the energy of the proposal, not of the state.
            energy=info.energy if self.num_steps is None else None,
            step_size=step_size,
            distance=distance,
        )
        return state._replace(state=at), MethodDraw(at.position, latents, stats)
