"""Alternating elliptical slice updates of groups of inputs."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from blackjax.mcmc import elliptical_slice as blackjax_slice
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
from coarea.approximate.softened import Closeness, Softened, soften
from coarea.approximate.starts import near_the_data
from coarea.errors import SettingError
from coarea.generators import AbstractSimulator
from coarea.precision import top_level

if TYPE_CHECKING:
    from xarray import DataTree


@top_level
def elliptical_slice(
    model: Any,
    observed: Mapping[str, Any],
    *,
    epsilon: float,
    kernel: Closeness = "uniform",
    groups: Iterable[str | Sequence[str]] | None = None,
    **run: Unpack[Run],
) -> "DataTree":
    """Elliptical slice sampling of the inputs given softened data (Murray & Graham 2016).

    A transition updates the groups of inputs one after another. It rotates each group on the
    ellipse through its current value and a fresh draw. The angle is found by shrinking a bracket
    until the simulation is close enough to the data. The draws come from the posterior given data
    softened by `kernel` and `epsilon`.

    The method needs neither derivatives nor tuning. A move changes only part of a simulation that
    is already close to the data. It therefore reaches a smaller ε than methods that redraw all the
    noise, but its moves still shrink with ε.

    `groups` lists names of inputs, or tuples of names. By default a directed model has two groups,
    its parameters and its noise, and any other model has one. Of the options of `coarea.sample`,
    this function takes `draws`, `warmup`, `chains`, `seed`, `start`, `keep`, `devices` and
    `progress`.

    >>> import coarea as co
    >>> model = co.Generator(lambda u: {"z": u["z"], "y": u["z"] + u["n"]}, {"z": (), "n": ()})
    >>> draws = co.approximate.elliptical_slice(model, {"y": 1.0}, epsilon=0.1, groups=["z", "n"])
    >>> bool((draws.sample_stats["distance"] <= 0.1).all())
    True
    """
    options = options_from(run)
    target = soften(model, observed, epsilon, kernel)
    method = EllipticalSlice(target, group_places(model, groups))
    starts = near_the_data(target, options)
    return run_chains(
        method,
        starts,
        options,
        "elliptical slice ABC",
        options.warmup,
        epsilon=epsilon,
        kernel=kernel,
    )


class Turned(NamedTuple):
    """Inputs u, and the log of the target density relative to a standard normal density of u."""

    u: Float[Array, " M"]
    log_ratio: Float[Array, ""]


class EllipticalSlice(AbstractMethod):
    """Elliptical slice updates of groups of inputs, one group after another."""

    target: Softened
    groups: tuple[np.ndarray, ...]

    @override
    def init(self, key, u):
        del key
        return Turned(u, self._log_ratio(u))

    @override
    def step(self, key, state: Turned, number):
        del number
        state, count = self.turn(key, state)
        at = self.target.simulate(state.u)
        stats = MethodStats(
            acceptance_rate=len(self.groups) / count,
            diverging=jnp.asarray(False),
            lp=self.target.model.inputs.log_density(at.u) + at.log_likelihood,
            n_steps=count,
            distance=at.distance,
        )
        return state, MethodDraw(at.u, at.latents, stats)

    def turn(self, key: Key[Array, ""], state: Turned) -> tuple[Turned, Int[Array, ""]]:
        """Update every group once; also return the number of simulations used."""
        count = jnp.asarray(0)
        for places, group_key in zip(
            self.groups, jax.random.split(key, len(self.groups)), strict=True
        ):
            state, tried = self._turn_group(group_key, state, places)
            count = count + tried
        return state, count

    def _turn_group(self, key, state: Turned, places):
        kernel = blackjax_slice.build_kernel(jnp.ones(places.size), jnp.zeros(places.size))
        turned, info = kernel(
            key,
            blackjax_slice.EllipSliceState(state.u[places], state.log_ratio),
            lambda part: self._log_ratio(state.u.at[places].set(part)),
        )
        u = state.u.at[places].set(turned.position)
        return Turned(u, jnp.asarray(turned.logdensity)), info.subiter

    def _log_ratio(self, u):
        return self.target.log_ratio_to_normal(self.target.simulate(u))


def group_places(
    model: AbstractSimulator, groups: Iterable[str | Sequence[str]] | None
) -> tuple[np.ndarray, ...]:
    """The positions of each group's inputs in u, with default groups if none are given."""
    names = model.inputs.names
    if groups is None:
        parameters = model.parameters or ()
        rest = tuple(name for name in names if name not in parameters)
        groups = [group for group in (parameters, rest) if group]
    groups = _listed(groups)
    grouped = {name for group in groups for name in group}
    if grouped != set(names):
        what = "never moves" if set(names) - grouped else "is not an input"
        raise SettingError(
            f"groups={groups!r}: {min(set(names) ^ grouped)!r} {what}; the inputs are "
            f"{', '.join(names)}."
        )
    return tuple(model.inputs.places(group) for group in groups)


def _listed(groups: Any) -> list[tuple[str, ...]]:
    """The names of each group; refuse anything but names in at most one level of nesting."""
    try:
        listed = [(group,) if isinstance(group, str) else tuple(group) for group in groups]
    except TypeError:  # not iterable
        listed = [(None,)]
    if isinstance(groups, str) or not all(isinstance(x, str) for group in listed for x in group):
        raise SettingError(f"groups={groups!r}: give a list of names, or of tuples of names.")
    return listed
