"""ABC-MCMC: a random walk of the parameters, each with a simulation of its own."""

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

# The first proposals of a warm-up, in standard deviations of a normal prior.
_FIRST_STEP = 0.5
# The part of the proposals that would be accepted without a move which is accepted with one.
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
    """ABC-MCMC (Marjoram et al. 2003), a random walk of the parameters of a directed model.

    A normal proposal of standard deviation `step_size` in the coordinates of the parameters comes
    with a simulation of fresh noise, and is accepted as that is close to the data. It draws from
    the posterior given data softened by `kernel` and `epsilon`. It needs no derivatives, and is the
    right tool for few parameters, few observed values and an ε that fresh simulations often meet:
    acceptance falls with the ε-ball's probability, so that beyond a handful of values
    `elliptical_slice`, which moves the noise too, goes further. Left out, `step_size` is found
    during warm-up. Of the options of `coarea.sample` it takes `draws`, `warmup`, `chains`, `seed`,
    `start`, `keep`, `devices` and `progress`.

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
    """Propose a change of the parameters with fresh noise; and how likely it is accepted."""
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
    """A chain of ABC-MCMC: its place, its step, and how often fresh noise alone is accepted."""

    at: Simulated
    log_step: Float[Array, ""]
    unmoved: Float[Array, ""]


class RandomWalk(AbstractMethod):
    """Normal proposals of the parameters, the noise drawn anew each time."""

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
        change_key, move_key, learn_key = jax.random.split(key, 3)
        step = jnp.exp(state.log_step)
        change = step * jax.random.normal(change_key, self.directed.places.shape)
        at, probability = move_parameters(self.target, self.directed, move_key, state.at, change)
        learnt = state
        if self.step_size is None:
            learnt = jax.lax.cond(
                number < self.warmup,
                lambda: self._learn(learn_key, state, probability, number),
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
        return learnt._replace(at=at), MethodDraw(at.u, at.latents, stats)

    def _learn(self, key, state: Walker, probability, number) -> Walker:
        """Compare with a proposal that does not move: the noise alone may be hard to match."""
        still = jnp.zeros(self.directed.places.shape)
        _, without = move_parameters(self.target, self.directed, key, state.at, still)
        weight = 1 / (number + 2.0)
        unmoved = (1 - weight) * state.unmoved + weight * without
        excess = (probability - _WANTED * without) / unmoved
        log_step = state.log_step + (number + 1.0) ** -0.6 * jnp.clip(excess, -2.0, 2.0)
        return Walker(state.at, log_step, unmoved)
