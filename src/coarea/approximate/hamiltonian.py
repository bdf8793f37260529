"""Hamiltonian ABC: follow gradients of a synthetic likelihood with common random numbers."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key
from typing_extensions import override

from coarea.approximate.method import AbstractMethod, Run, options_from, run_chains
from coarea.approximate.softened import Directed, Softened, checked_model, soften
from coarea.approximate.starts import CANDIDATES
from coarea.approximate.trajectories import (
    Follower,
    Trajectories,
    as_step,
    best_parameters,
    report_of,
)
from coarea.arguments import checked_count, require_memory
from coarea.errors import ModelError, SettingError
from coarea.kernels.kernel import step_range
from coarea.keys import key_from_seed
from coarea.precision import top_level

if TYPE_CHECKING:
    from xarray import DataTree


@top_level
def hamiltonian(
    model: Any,
    observed: Mapping[str, Any],
    *,
    epsilon: float = 0.0,
    simulations: int = 10,
    num_steps: int | tuple[int, int] = (5, 15),
    step_size: float | None = None,
    outputs: Callable[[dict[str, Array]], dict[str, Array]] | None = None,
    **run: Unpack[Run],
) -> "DataTree":
    """Hamiltonian ABC (Meeds, Leenders & Welling 2015) of a directed model's parameters.

    The likelihood is approximated by a normal one with independent elements. Their means and
    variances are estimated from `simulations` runs of the model; ε² is added to the variances. The
    random seed of these runs is part of the state. A trajectory of `num_steps` leapfrog steps holds
    the seed fixed, follows the gradient, and is accepted or rejected. Between trajectories a new
    seed is proposed. (The authors leave trajectories uncorrected.)

    The method needs derivatives. It is the right tool for many parameters and for statistics that
    are nearly normal and uncorrelated, which `model.summarise` may provide. For other data the
    error of the normal approximation dominates, and it does not vanish with more simulations.

    `outputs(parameters)` returns what to report; by default the parameters are reported. Of the
    options of `coarea.sample`, this function takes `draws`, `warmup`, `chains`, `seed`, `start`,
    `keep`, `devices` and `progress`. A row of `start` holds the coordinates of the parameters.

    >>> import coarea as co
    >>> model = co.Generator(
    ...     lambda u: {"z": u["z"], "y": u["z"] + u["n"]}, {"z": (), "n": ()}, parameters=["z"]
    ... )
    >>> draws = co.approximate.hamiltonian(model, {"y": 1.0}, draws=200, chains=2)
    >>> draws.posterior["z"].shape
    (2, 200)
    """
    options = options_from(run)
    simulations = checked_count("simulations", simulations, 2)  # for a variance
    model = checked_model(model)
    directed = Directed(model, "hamiltonian")
    if model.has_factor:
        raise ModelError("the model has a log_factor, which a synthetic likelihood would miss.")
    # epsilon=0 is allowed here: the variance of the simulations then softens the data on its own.
    # `soften` requires a positive tolerance, so the value is replaced afterwards.
    target = soften(model, observed, 1.0 if epsilon == 0 else epsilon, "gaussian")
    target = replace(target, epsilon=jnp.asarray(float(epsilon)))
    synthetic = Synthetic(target, directed, report_of(directed, outputs), simulations)
    method = CommonNumbers(synthetic, step_range(num_steps), as_step(step_size), options.warmup)
    starts = options.given_starts(directed.places.size)
    # Start points are looked for among many candidates at once.
    at_once = simulations * (CANDIDATES if starts is None else 1)
    require_memory(
        8.0 * at_once * (target.num_inputs + target.num_observed),
        f"{simulations} simulations for each density",
        "Use fewer simulations.",
    )
    if starts is None:
        fixed = FixedSeed(synthetic, key_from_seed(options.seed))
        starts = best_parameters(fixed, directed, options)
    _check_spread(synthetic, starts[0])
    return run_chains(
        method,
        starts,
        options,
        "Hamiltonian ABC",
        method.burn_in,
        epsilon=epsilon,
        simulations=simulations,
    )


def _check_spread(synthetic: "Synthetic", z: np.ndarray) -> None:
    """Refuse observed values with no variance in the simulations: the likelihood is degenerate."""
    _, variance = synthetic.moments(jnp.asarray(z), jax.random.key(0))
    observations = synthetic.target.observations
    size = 1.0 + max(float(np.max(np.abs(o.values))) for o in observations)
    if np.any(np.asarray(variance) <= (1e-10 * size) ** 2):
        raise SettingError(
            "some observed values are the same in all simulations from the same parameters, so "
            "that they have no normal likelihood: give epsilon."
        )


class Synthetic(eqx.Module):
    """A normal likelihood whose moments are estimated from simulations that share one seed."""

    target: Softened
    directed: Directed
    report: Callable
    simulations: int = eqx.field(static=True)

    @property
    def num_inputs(self) -> int:
        """The number of coordinates of the parameters."""
        return self.directed.places.size

    @property
    def observed(self) -> Mapping[str, np.ma.MaskedArray]:
        """The data by name."""
        return self.target.observed

    def latents(self, z: Float[Array, " d"]) -> dict[str, Array]:
        """The quantities to report, computed from the parameters."""
        return self.report(self.inputs(z))

    def inputs(self, z: Float[Array, " d"]) -> dict[str, Array]:
        """The parameters by name."""
        return self.directed.prior.values(z)

    def moments(
        self, z: Float[Array, " d"], seed: Key[Array, ""]
    ) -> tuple[Float[Array, " N"], Float[Array, " N"]]:
        """Mean and variance of simulated minus observed values, with ε² added to the variance."""
        keys = jax.random.split(seed, self.simulations)
        residual = jax.vmap(lambda key: self.target.residual(self.directed.simulated(key, z)))(keys)
        variance = jnp.var(residual, axis=0, ddof=1) + self.target.epsilon**2
        return jnp.mean(residual, axis=0), variance

    def log_likelihood(self, z: Float[Array, " d"], seed: Key[Array, ""]) -> Float[Array, ""]:
        """The synthetic log likelihood; for a fixed seed it is a smooth function of z."""
        mean, variance = self.moments(z, seed)
        return -0.5 * jnp.sum(mean**2 / variance + jnp.log(2 * jnp.pi * variance))

    def log_density(self, z: Float[Array, " d"]) -> Float[Array, ""]:
        """The log density for one arbitrary seed."""
        return FixedSeed(self, jax.random.key(0)).log_density(z)


class FixedSeed(eqx.Module):
    """The synthetic posterior with the same seed for all parameters."""

    synthetic: Synthetic
    seed: Key[Array, ""]

    @property
    def observed(self) -> Mapping[str, np.ma.MaskedArray]:
        """The data by name."""
        return self.synthetic.observed

    def log_density(self, z: Float[Array, " d"]) -> Float[Array, ""]:
        """The log density given the seed."""
        return self.synthetic.directed.prior.log_density(z) + self.synthetic.log_likelihood(
            z, self.seed
        )


class Seeded(NamedTuple):
    """The seed of all simulations, and a chain of HMC given it."""

    seed: Key[Array, ""]
    follower: Follower


class CommonNumbers(AbstractMethod):
    """HMC on the parameters given the seed of the simulations, and Metropolis steps on the seed."""

    target: Synthetic
    num_steps: tuple[int, int] = eqx.field(static=True)
    step_size: Float[Array, ""] | None
    warmup: int = eqx.field(static=True)

    def __check_init__(self):
        self._given(jax.random.key(0))  # its constructor checks the settings

    def _given(self, seed) -> Trajectories:
        density = FixedSeed(self.target, seed)
        return Trajectories(density, self.num_steps, self.step_size, self.warmup)

    @property
    def burn_in(self) -> int:
        """The number of transitions to discard after `init`."""
        return self._given(jax.random.key(0)).burn_in

    @override
    def init(self, key, u):
        seed, key = jax.random.split(key)
        return Seeded(seed, self._given(seed).init(key, u))

    @override
    def step(self, key, state: Seeded, number):
        other, accept_key, move_key = jax.random.split(key, 3)
        follower = state.follower
        there = self._given(other).at(follower.state.position)
        log_ratio = there.logdensity - follower.state.logdensity
        changes = jnp.log(jax.random.uniform(accept_key)) < log_ratio
        seed = jnp.where(changes, other, state.seed)
        at = jax.tree.map(lambda a, b: jnp.where(changes, a, b), there, follower.state)
        follower, drawn = self._given(seed).step(move_key, follower._replace(state=at), number)
        return Seeded(seed, follower), drawn._replace(latents=self.target.latents(drawn.u))
