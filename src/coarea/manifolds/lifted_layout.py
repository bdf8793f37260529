"""Where inputs and states stand in the position of a lifted posterior, and what they mean."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from typing_extensions import override

from coarea.generators import Markov
from coarea.generators.markov import size_of
from coarea.manifolds.target import AbstractReporter


class LiftedLayout(eqx.Module):
    """A Markov simulator, its data, and the layout of a position.

    A position is: the shared inputs and the initial noise; then for each of the K intervals between
    observations its noise, the noise of its observation, and its last state. States and data are
    measured in units of their own.
    """

    model: Markov
    data: np.ndarray  # (K, dy), anything where missing
    is_seen: np.ndarray  # (K, dy)
    has_gaps: bool = eqx.field(static=True)
    state_shape: tuple[int, ...] = eqx.field(static=True)
    data_shape: tuple[int, ...] = eqx.field(static=True)
    state_unit: np.ndarray  # (dx,)
    data_unit: np.ndarray  # (dy,)

    @property
    def sizes(self) -> tuple[int, int, int, int, int]:
        """L, the noise of an interval, that of its observation, dx, dy."""
        model = self.model
        return (
            model.shared.size + size_of(model.initial_noise),
            model.observe_every * size_of(model.noise),
            size_of(model.observe_noise),
            int(np.prod(self.state_shape)),
            self.data.shape[1],
        )

    @property
    def num_intervals(self) -> int:
        """K."""
        return self.data.shape[0]

    @property
    def intervals(self) -> Array:
        """The intervals, numbered."""
        return jnp.arange(self.num_intervals)

    @property
    def num_inputs(self) -> int:
        """The length of a position."""
        L, noise, observe_noise, dx, _ = self.sizes
        return L + self.num_intervals * (noise + observe_noise + dx)

    @property
    def gaussian(self) -> np.ndarray:
        """All but the states, and shared inputs of another density."""
        (_, noise, observe_noise, dx, _), model = self.sizes, self.model
        local = np.ones((self.num_intervals, noise + observe_noise + dx))
        local[:, -dx:] = 0
        initial = np.ones(size_of(model.initial_noise))
        return np.concatenate([model.shared.normals, initial, local.ravel()]).astype(bool)

    def parts(self, u: Float[Array, " M"]):
        """Shared inputs, local ones, and the state before each interval (zero for the first)."""
        L, dx = self.sizes[0], self.sizes[3]
        local = u[L:].reshape(self.num_intervals, -1)
        before = jnp.concatenate([jnp.zeros_like(local[:1, -dx:]), local[:-1, -dx:]])
        return u[:L], local, before

    def shared(self, v: Float[Array, " L"]) -> dict[str, Array]:
        """The shared inputs by name."""
        return self.model.shared.values(v[: self.model.shared.size])

    def first_noise(self, v: Float[Array, " L"]) -> Array | None:
        """The noise of the first state, if it has any."""
        shape = self.model.initial_noise
        return None if shape is None else v[self.model.shared.size :].reshape(shape)

    def ahead(self, k, v, before, n) -> Float[Array, " dx"]:
        """The state after interval k from the one before it, flat and in its unit."""
        s = self.shared(v)
        model = self.model
        first = model.first_state(s, self.first_noise(v)).astype(n.dtype)
        x = jnp.where(k == 0, first, (before * self.state_unit).reshape(self.state_shape))
        x = model.advance(s, x, n.reshape(model.observe_every, *model.noise), k)
        return x.ravel() / self.state_unit

    def seen(self, k, v, e, x) -> Float[Array, " dy"]:
        """The observation of a state, flat and in its unit."""
        noise = self.model.observe_noise
        x = (x * self.state_unit).reshape(self.state_shape)
        e = None if noise is None else e.reshape(noise)
        return self.model.seen(self.shared(v), x, e, k).ravel() / self.data_unit

    def interval(self, v, before, local, k) -> tuple[Float[Array, " dx"], Float[Array, " dy"]]:
        """The state that interval k leads to, and the observation of the state that it ends in."""
        _, noise, observe_noise, *_ = self.sizes
        n, e, x = (
            local[:noise],
            local[noise : noise + observe_noise],
            local[noise + observe_noise :],
        )
        return self.ahead(k, v, before, n), self.seen(k, v, e, x)


class LiftedReporter(AbstractReporter):
    """The simulator's outputs and inputs by name."""

    layout: LiftedLayout

    @override
    def latents(self, u):
        """Outputs of the shared inputs, the states, and what was not seen of the data."""
        at = self.layout
        v, local, _ = at.parts(u)
        _, noise, _, dx, _ = at.sizes
        x = (local[:, -dx:] * at.state_unit[None]).reshape(-1, *at.state_shape)
        latents = {**at.model.reported(at.shared(v)), "x": x}
        if at.has_gaps:
            seen = jax.vmap(lambda loc, k: at.seen(k, v, loc[noise:-dx], loc[-dx:]))(
                local, at.intervals
            )
            latents["y"] = (seen * at.data_unit[None]).reshape(-1, *at.data_shape)
        return latents

    @override
    def inputs(self, u):
        at, model = self.layout, self.layout.model
        v, local, _ = at.parts(u)
        _, noise, observe_noise, _, _ = at.sizes
        values = dict(at.shared(v))
        if (first := at.first_noise(v)) is not None:
            values["initial_noise"] = first
        values["noise"] = local[:, :noise].reshape(model.steps, *model.noise)
        if model.observe_noise is not None:
            seen = local[:, noise : noise + observe_noise]
            values["observe_noise"] = seen.reshape(-1, *model.observe_noise)
        return values

    @property
    @override
    def observed(self):
        at = self.layout
        y = np.ma.masked_array(at.data, ~at.is_seen)
        return {"y": y.reshape(at.model.num_observations, *at.data_shape)}

    @override
    def describe(self, constraint):
        at = self.layout
        _, _, _, dx, dy = at.sizes
        k, i = divmod(constraint, dx + dy)
        name, shape = ("x", at.state_shape) if i < dx else ("y", at.data_shape)
        place = np.unravel_index(i if i < dx else i - dx, shape)
        return f"{name}[{', '.join(str(int(j)) for j in (k, *place))}]"

    @override
    def active_constraints(self, num_constraints):
        """All but the rows of what was not seen."""
        del num_constraints
        at = self.layout
        states = np.ones((at.num_intervals, at.sizes[3]), dtype=bool)
        return np.flatnonzero(np.concatenate([states, np.asarray(at.is_seen)], axis=1))
