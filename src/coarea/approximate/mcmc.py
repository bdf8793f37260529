"""ABC-MCMC: a random walk on the parameters, with a fresh simulation for each proposal."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key
from typing_extensions import override

from coarea.approximate.method import (
    AbstractMethod,
    MethodDraw,
    MethodStats,
    Run,
    options_from,
    run_chains,
)
from coarea.approximate.softened import Closeness, Directed, Simulated, Softened, soften
from coarea.approximate.starts import near_the_data
from coarea.kernels.kernel import check_step_size
from coarea.precision import top_level

if TYPE_CHECKING:
    from xarray import DataTree

# The initial proposal scale of the warm-up, in standard deviations of a normal prior.
_FIRST_STEP = 0.5
# Target acceptance rate, relative to the rate of proposals that leave the parameters unchanged.
_WANTED = 0.25


@top_level
def mcmc(
    model: Any,
    observed: Mapping[str, Any],
    *,
    epsilon: float,
    kernel: Closeness = "uniform",
    step_size: float | None = None,
    **run: Unpack[Run],
) -> "DataTree":
    """ABC-MCMC (Marjoram et al. 2003): a random walk on the parameters of a directed model.

    A proposal is normal with standard deviation `step_size` in the coordinates of the parameters.
    Each proposal is simulated with fresh noise, and is accepted or rejected by how close its
    simulation is to the data. The draws come from the posterior given data softened by `kernel` and
    `epsilon`.

    The method needs no derivatives. It is the right tool for few parameters, few observed values
    and an ε that fresh simulations often reach. Acceptance falls with the probability of the
    ε-ball. For more than a handful of observed values prefer `elliptical_slice`, which moves the
    noise as well.

    By default `step_size` is adapted during warm-up. Of the options of `coarea.sample`, this
    function takes `draws`, `warmup`, `chains`, `seed`, `start`, `keep`, `devices` and `progress`.

    >>> import coarea as co
    >>> model = co.Generator(
    ...     lambda u: {"z": u["z"], "y": u["z"] + u["n"]}, {"z": (), "n": ()}, parameters=["z"]
    ... )
    >>> draws = co.approximate.mcmc(model, {"y": 1.0}, epsilon=0.5, draws=200, chains=2)
    >>> draws.posterior["z"].shape, bool((draws.sample_stats["distance"] <= 0.5).all())
    ((2, 200), True)
    """
    options = options_from(run)
    check_step_size(step_size)
    target = soften(model, observed, epsilon, kernel)
    directed = Directed(target.model, "mcmc")
    method = RandomWalk(
        target,
        directed,
        None if step_size is None else jnp.asarray(float(step_size)),
        jnp.asarray(options.warmup),
    )
    starts = near_the_data(target, options)
    return run_chains(
        method, starts, options, "ABC-MCMC", options.warmup, epsilon=epsilon, kernel=kernel
    )


def move_parameters(
    target: Softened,
    directed: Directed,
    key: Key[Array, ""],
    at: Simulated,
    change: Float[Array, " d"],
) -> tuple[Simulated, Float[Array, ""]]:
    """Propose a change of the parameters with fresh noise; return the state and the probability.

    The state is the accepted proposal, or else the previous state.
    """
    noise_key, accept_key = jax.random.split(key)
    z = at.u[directed.places]
    there = target.simulate(directed.simulated(noise_key, z + change))
    log_prior = directed.prior.log_density(z + change) - directed.prior.log_density(z)
    log_ratio = log_prior + there.log_likelihood - at.log_likelihood
    probability = jnp.where(jnp.isnan(log_ratio), 0.0, jnp.exp(jnp.minimum(0.0, log_ratio)))
    accepted = jax.random.uniform(accept_key) < probability
    chosen = jax.tree.map(lambda a, b: jnp.where(accepted, a, b), there, at)
    return chosen, probability


class Walker(NamedTuple):
    """A chain of ABC-MCMC: its state, its log step size, and an acceptance rate.

    `unmoved` is the average acceptance rate of fresh noise with unchanged parameters.
    """

    at: Simulated
    log_step: Float[Array, ""]
    unmoved: Float[Array, ""]


class RandomWalk(AbstractMethod):
    """Normal proposals for the parameters, with fresh noise for each proposal."""

    target: Softened
    directed: Directed
    step_size: Float[Array, ""] | None
    warmup: Int[Array, ""]

    @override
    def init(self, key, u):
        del key
        step = jnp.asarray(_FIRST_STEP) if self.step_size is None else self.step_size
        return Walker(self.target.simulate(u), jnp.log(step), jnp.ones(()))

    @override
    def step(self, key, state: Walker, number):
        change_key, move_key, adapt_key = jax.random.split(key, 3)
        step = jnp.exp(state.log_step)
        change = step * jax.random.normal(change_key, self.directed.places.shape)
        at, probability = move_parameters(self.target, self.directed, move_key, state.at, change)
        adapted = state
        if self.step_size is None:
            adapted = jax.lax.cond(
                number < self.warmup,
                lambda: self._adapt(adapt_key, state, probability, number),
                lambda: state,
            )
        stats = MethodStats(
            acceptance_rate=probability,
            diverging=jnp.asarray(False),
            lp=self.directed.prior.log_density(at.u[self.directed.places]) + at.log_likelihood,
            n_steps=jnp.asarray(1),
            step_size=step,
            distance=at.distance,
        )
        return adapted._replace(at=at), MethodDraw(at.u, at.latents, stats)

    def _adapt(self, key, state: Walker, probability, number) -> Walker:
        """Adapt the step size.

        The acceptance rate is compared with that of fresh noise at unchanged parameters, because
        even fresh noise alone may rarely be accepted.
        """
        still = jnp.zeros(self.directed.places.shape)
        _, without = move_parameters(self.target, self.directed, key, state.at, still)
        weight = 1 / (number + 2.0)
        unmoved = (1 - weight) * state.unmoved + weight * without
        excess = (probability - _WANTED * without) / unmoved
        log_step = state.log_step + (number + 1.0) ** -0.6 * jnp.clip(excess, -2.0, 2.0)
        return Walker(state.at, log_step, unmoved)
