"""Sequential ABC: a population of simulations with a tolerance that decreases in levels."""

import functools
import math
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from blackjax.smc.resampling import systematic
from blackjax.smc.solver import dichotomy
from jaxtyping import Array, Float, Int, Key

from coarea.approximate.batches import batch_size, map_batches
from coarea.approximate.elliptical_slice import EllipticalSlice, Turned, group_places
from coarea.approximate.mcmc import move_parameters
from coarea.approximate.results import accepted, check_storable, nothing_accepted, warned
from coarea.approximate.softened import Closeness, Directed, Simulated, Softened, soften
from coarea.approximate.weights import effective_size, normalised
from coarea.arguments import checked_count
from coarea.errors import SamplingWarning, SettingError
from coarea.execution.recording import Keep, check_keep
from coarea.keys import checked_seed, key_from_seed
from coarea.precision import top_level
from coarea.xla import jit_bounded

if TYPE_CHECKING:
    from xarray import DataTree

# Fraction of the population that survives each new tolerance.
_SURVIVAL = 0.5
# Moves are repeated until this fraction of the population has moved, up to _MOST_SWEEPS times.
_MOVED = 0.95
_MOST_SWEEPS = 50
# Elliptical slice updates always move, so that a few are enough.
_MOST_SLICES = 2
# Stop below this acceptance rate: further levels cost more than they gain.
_LEAST_ACCEPTANCE = 0.01
_MOST_LEVELS = 200
# Prior simulations per particle of the first population before giving up for lack of finite ones.
_MOST_DRAWN = 10_000


@top_level
def smc(
    model: Any,
    observed: Mapping[str, Any],
    *,
    epsilon: float,
    particles: int = 1000,
    kernel: Closeness = "uniform",
    moves: Literal["parameters", "inputs"] | None = None,
    seed: int = 0,
    keep: Keep = None,
) -> "DataTree":
    """Sequential ABC with an adaptive tolerance (Del Moral, Doucet & Jasra 2012).

    The first population is `particles` simulations from the prior. Each level lowers the tolerance
    so that half of them survive, until `epsilon` is reached. The survivors are copied and moved.
    `moves="parameters"` takes random-walk steps of a directed model's parameters with fresh noise,
    as pyABC and ELFI do. `moves="inputs"` takes elliptical slice steps of all inputs, which change
    only part of a simulation. The default is `"parameters"` for a model that has parameters.

    The draws approximate the posterior given data softened by `kernel` and the final tolerance,
    which is the attribute `epsilon`. If fewer than 1 in 100 moves are still accepted, sampling
    stops early with a warning, and the final tolerance is larger than requested. The group
    `history` records every level.

    The method needs neither derivatives nor a starting point. It is the right tool for several
    modes, and for summary statistics of too high a dimension for rejection.

    >>> import coarea as co
    >>> model = co.Generator(
    ...     lambda u: {"z": u["z"], "y": u["z"] + u["n"]}, {"z": (), "n": ()}, parameters=["z"]
    ... )
    >>> draws = co.approximate.smc(model, {"y": 1.0}, epsilon=0.1, particles=500)
    >>> draws.posterior["z"].shape, bool((draws.sample_stats["distance"] <= 0.1).all())
    ((1, 500), True)
    """
    particles = checked_count("particles", particles, 10)
    seed = checked_seed(seed)
    check_keep(keep)
    target = soften(model, observed, epsilon, kernel)
    if moves not in (None, "parameters", "inputs"):
        raise SettingError(f"moves={moves!r}: choose 'parameters' or 'inputs'.")
    if moves is None:
        moves = "inputs" if target.model.parameters is None else "parameters"
    directed = Directed(target.model, "smc(moves='parameters')") if moves == "parameters" else None
    check_storable(target, keep, particles, "particles", "Use fewer particles.")
    population = _Population(target, directed, particles, seed)
    stopped = population.descend(float(epsilon))
    if stopped is not None:
        warnings.warn(
            f"stopped at epsilon={population.epsilon:.3g} (wanted: {epsilon:.3g}): {stopped}",
            SamplingWarning,
            stacklevel=3,
        )
    return warned(population.as_datatree(keep, seed))


class Level(NamedTuple):
    """One level: tolerance, acceptance rate, simulations so far, and surviving fraction."""

    epsilon: float
    acceptance_rate: float
    simulations: int
    surviving: float


class Moved(NamedTuple):
    """A particle after some moves, with their acceptance rate and number of simulations."""

    u: Float[Array, " M"]
    distance: Float[Array, ""]
    log_likelihood: Float[Array, ""]
    latents: dict[str, Array]
    acceptance_rate: Float[Array, ""]
    simulations: Int[Array, ""]


class Mover(eqx.Module):
    """Makes `sweeps` moves of one particle at a fixed tolerance."""

    target: Softened
    directed: Directed | None
    spread: Float[Array, "d d"] | None
    slices: EllipticalSlice
    key: Key[Array, ""]
    sweeps: Int[Array, ""]

    def draw(self, number) -> Moved:
        """A particle from the prior, unmoved."""
        u = self.target.model.draw(jax.random.fold_in(self.key, number))
        return _moved(self.target.simulate(u), jnp.ones(()), jnp.asarray(1))

    def drawn_distance(self, number) -> Float[Array, ""]:
        """The distance between the data and a particle from the prior."""
        return self.draw(number).distance

    def move(self, row) -> Moved:
        """Make moves that leave the softened posterior invariant."""
        number, u = row
        key = jax.random.fold_in(self.key, number)
        if self.directed is not None:
            return self._by_parameters(key, u)
        return self._by_slices(key, u)

    def _by_parameters(self, key, u) -> Moved:
        directed, spread = self.directed, self.spread
        assert directed is not None
        assert spread is not None

        def sweep(i, carry: tuple[Simulated, Array]):
            at, total = carry
            change_key, move_key = jax.random.split(jax.random.fold_in(key, i))
            change = spread @ jax.random.normal(change_key, (spread.shape[0],))
            at, probability = move_parameters(self.target, directed, move_key, at, change)
            return at, total + probability

        start = self.target.simulate(u), jnp.zeros(())
        at, total = jax.lax.fori_loop(0, self.sweeps, sweep, start)
        return _moved(at, total / self.sweeps, self.sweeps + 1)

    def _by_slices(self, key, u) -> Moved:
        def sweep(i, carry: tuple[Turned, Array]):
            at, total = carry
            at, count = self.slices.turn(jax.random.fold_in(key, i), at)
            return at, total + count

        start = self.slices.init(key, u), jnp.asarray(0)
        at, count = jax.lax.fori_loop(0, self.sweeps, sweep, start)
        rate = self.sweeps * len(self.slices.groups) / count
        return _moved(self.target.simulate(at.u), rate, count + 2)


def _moved(at: Simulated, rate, simulations) -> Moved:
    return Moved(at.u, at.distance, at.log_likelihood, at.latents, rate, simulations)


class _Population:
    """The particles, and the levels passed so far."""

    def __init__(self, target: Softened, directed: Directed | None, particles: int, seed: int):
        self._target, self._directed = target, directed
        self._keys = iter(jax.random.split(key_from_seed(seed), 4 * _MOST_LEVELS))
        self._batch = min(batch_size(target.num_inputs), max(1, math.ceil(particles / 8)))
        self._slices = group_places(target.model, None)
        self._simulations = 0
        self.epsilon = np.inf
        self.history: list[Level] = []
        self._at: Any = self._finite(particles)  # a Moved of NumPy arrays, one row per particle

    def _finite(self, particles: int) -> Moved:
        """The first `particles` finite simulations from the prior, with infinite tolerance."""
        first = self._mover(np.inf, 1)
        found = np.empty(0, dtype=int)
        while found.size < particles and self._simulations < _MOST_DRAWN * particles:
            numbers = self._simulations + np.arange(max(particles, self._simulations))
            distance, _ = map_batches(first.drawn_distance, numbers, self._batch)
            found = np.concatenate([found, numbers[np.isfinite(distance)]])[:particles]
            self._simulations += numbers.size
        if found.size < particles:
            raise nothing_accepted(np.inf, self._simulations, self._target)
        return map_batches(first.draw, found, self._batch)[0]

    def descend(self, smallest: float) -> str | None:
        """Lower the tolerance to `smallest`; return None, or the reason for stopping early."""
        self.epsilon, last = np.inf, self._at
        try:
            while not self.history or self.epsilon > smallest:
                epsilon, surviving = self._next_tolerance(self.epsilon, smallest)
                if epsilon >= self.epsilon and self.history:
                    return "no simulation is nearer to the data. More particles may find some."
                rate = self._move(epsilon)
                last, self.epsilon = self._at, epsilon
                self.history.append(Level(epsilon, rate, self._simulations, surviving))
                if rate < _LEAST_ACCEPTANCE or len(self.history) == _MOST_LEVELS:
                    return (
                        f"only {rate:.2%} of the moves were still accepted, so that many particles "
                        "are copies. moves='inputs', summary statistics or coarea.condition go "
                        "further."
                    )
        except KeyboardInterrupt:
            self._at = last
            return "it was interrupted."
        return None

    def _next_tolerance(self, last: float, smallest: float) -> tuple[float, float]:
        """Resample for the least tolerance, not below `smallest`, that enough particles survive.

        It is found by bisection on the effective sample size of the weights. For the uniform kernel
        that is the number of particles within the tolerance.
        """
        distance = self._at.distance
        largest = min(last, 100 * float(distance.max()) + smallest)
        weigh = functools.partial(_log_weights, self._target, self._at, jnp.asarray(last))
        epsilon = float(_bisect(weigh, jnp.asarray(smallest), jnp.asarray(largest)))
        if self._target.kernel == "uniform" and epsilon > (1 - 1e-6) * last:
            # Many distances are equal, as with count data, so that bisection excluded none.
            # Exclude the farthest, even if fewer particles than wanted survive.
            nearer = distance[distance < last]
            epsilon = max(smallest, float(nearer.max())) if nearer.size else last
        log_weights = weigh(jnp.asarray(epsilon))
        weights = jnp.asarray(normalised(np.asarray(log_weights)))
        chosen = systematic(next(self._keys), weights, distance.size)
        surviving = float(effective_size(log_weights)) / distance.size
        self._at = jax.tree.map(lambda x: x[np.sort(np.asarray(chosen))], self._at)
        return epsilon, surviving

    def _move(self, epsilon: float) -> float:
        """Move all particles, until most have moved; return the acceptance rate."""
        rate = self._sweep(epsilon, 1)
        more = math.ceil(math.log(1 - _MOVED) / math.log(1 - min(max(rate, 1e-3), 0.99))) - 1
        more = min(more, _MOST_SWEEPS if self._directed is not None else _MOST_SLICES)
        return self._sweep(epsilon, more) if more > 0 and rate >= _LEAST_ACCEPTANCE else rate

    def _sweep(self, epsilon: float, sweeps: int) -> float:
        mover = self._mover(epsilon, sweeps)
        rows = (np.arange(self._at.distance.size), self._at.u)
        self._at, _ = map_batches(mover.move, rows, self._batch)
        self._simulations += int(np.sum(self._at.simulations))
        return float(np.mean(self._at.acceptance_rate))

    def _mover(self, epsilon: float, sweeps: int) -> Mover:
        target = self._target.at(jnp.asarray(float(epsilon)))
        spread = None
        if self._directed is not None:
            d = self._directed.places.size
            spread = jnp.eye(d)
            if np.isfinite(epsilon):
                z = self._at.u[:, self._directed.places]
                covariance = np.atleast_2d(np.cov(z.T)) + 1e-12 * np.eye(d)
                spread = jnp.asarray(2.38 / math.sqrt(d) * np.linalg.cholesky(covariance))
        slices = EllipticalSlice(target, self._slices)
        return Mover(target, self._directed, spread, slices, next(self._keys), jnp.asarray(sweeps))

    def as_datatree(self, keep, seed: int) -> "DataTree":
        """The particles as draws of one chain, and the history."""
        import xarray as xr

        at = self._at
        _, copies = np.unique(at.u, axis=0, return_counts=True)
        result = accepted(
            self._target.at(jnp.asarray(self.epsilon)),
            at.u,
            at.latents,
            at.distance,
            None,
            keep,
            {
                "method": "ABC-SMC",
                "seed": seed,
                "simulations": self._simulations,
                "effective_size": float(at.distance.size**2 / np.sum(copies**2)),
            },
        )
        rows = np.array(self.history, dtype=float).reshape(-1, len(Level._fields))
        columns = {name: ("level", rows[:, i]) for i, name in enumerate(Level._fields)}
        result["history"] = xr.DataTree(xr.Dataset(columns))
        return result


def _log_weights(target: Softened, at: "Moved", last, epsilon) -> Float[Array, " particles"]:
    """The weights of particles of the last tolerance for a smaller one."""
    now, before = (target.at(e).log_closeness(jnp.asarray(at.distance)) for e in (epsilon, last))
    change = now - jnp.where(jnp.isneginf(before), 0.0, before)
    # At the first level the prior draws are not yet weighted by the model's own factor.
    change = change + jnp.where(jnp.isinf(last), at.log_likelihood, 0.0)
    return jnp.where(jnp.isneginf(now) | jnp.isnan(change), -jnp.inf, change)


@jit_bounded
def _bisect(weigh, smallest, largest):
    """The least tolerance whose effective sample size is the wanted part of all particles."""

    def spare(log_precision):
        log_weights = weigh(jnp.exp(-log_precision))
        return effective_size(log_weights) - _SURVIVAL * log_weights.size

    found = dichotomy(spare, -jnp.log(largest), -jnp.log(smallest), eps=1e-9)
    epsilon = jnp.where(jnp.isnan(found), largest, jnp.exp(-found))
    return jnp.where(spare(-jnp.log(smallest)) >= 0, smallest, epsilon)
