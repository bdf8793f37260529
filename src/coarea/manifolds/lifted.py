"""Lifting: a Markov simulator seen in part, with its states at observation times as variables.

Beside the inputs (v, n) the states x_k become variables, and x_k − F(v, x_{k−1}, n_k) = 0
constraints beside h(v, x_k) − ȳ_k = 0. The first kind is unit triangular in x, so that with the
density ρ(v, n) |JJᵀ|^(−½) on the lifted manifold the marginal on the inputs is exactly the
posterior. All intervals are computed at once, and J couples only neighbours.
"""

from dataclasses import replace
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float
from typing_extensions import override

from coarea.generators import Markov
from coarea.generators.markov import size_of
from coarea.jacobians.block_bidiagonal import Bidiagonal, Lifted
from coarea.jacobians.dense import Dense
from coarea.jacobians.indices import Indices
from coarea.manifolds.observation import Observation
from coarea.manifolds.posterior import Posterior
from coarea.manifolds.target import AbstractTarget, Evaluation, to_model_space

# States are measured in a unit larger than their size, so that the metric is nearly that of the
# inputs alone. Measured on FitzHugh–Nagumo: 10 allows steps twice as long as 1 and 100.
_STATE_UNIT = 10.0


class LiftedPosterior(AbstractTarget):
    """The exact posterior of a Markov simulator's inputs and states. Made by `condition`.

    A position is (shared inputs and initial noise, then for each interval its noise, the noise of
    its observation and its last state, in units of `state_unit`).
    """

    model: Markov
    data: np.ndarray  # (K, dy), anything where missing
    is_seen: np.ndarray  # (K, dy)
    shape: Lifted
    structure: str = eqx.field(static=True)
    has_gaps: bool = eqx.field(static=True)
    state_shape: tuple[int, ...] = eqx.field(static=True)
    data_shape: tuple[int, ...] = eqx.field(static=True)
    state_unit: np.ndarray  # (dx,)
    data_unit: np.ndarray  # (dy,)
    units: Float[Array, " M"] | None = None

    @property
    def _sizes(self) -> tuple[int, int, int, int, int]:
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
    @override
    def num_inputs(self):
        L, noise, observe_noise, dx, _ = self._sizes
        return L + self.data.shape[0] * (noise + observe_noise + dx)

    @property
    @override
    def num_constraints(self):
        _, _, _, dx, dy = self._sizes
        return self.data.shape[0] * (dx + dy)

    @property
    @override
    def scale(self):
        return jnp.ones(())

    @property
    @override
    def extent(self):
        return jnp.ones(())

    @property
    def normals(self):
        """All but the states, and shared inputs of another density."""
        dx, model = self._sizes[3], self.model
        local = np.ones((self.data.shape[0], self.shape.local_inputs.flat.size // len(self.data)))
        local[:, -dx:] = 0
        initial = np.ones(size_of(model.initial_noise))
        normals = np.concatenate([model.shared.normals, initial, local.ravel()]).astype(bool)
        return normals & (self.units is None)

    @property
    def constraints(self):
        """All but the rows of what was not seen."""
        states = np.ones((len(self.data), self._sizes[3]), dtype=bool)
        return np.flatnonzero(np.concatenate([states, np.asarray(self.is_seen)], axis=1))

    @property
    def observed(self):
        """The data by name, missing values masked."""
        y = np.ma.masked_array(self.data, ~self.is_seen)
        return {"y": y.reshape(self.model.num_observations, *self.data_shape)}

    @property
    @override
    def is_cheap(self):
        return self.shape.is_cheap

    @property
    @override
    def is_light(self):
        return self.shape.is_light

    @property
    @override
    def geodesic_steps(self):
        return 2

    @property
    @override
    def is_sequential(self):
        return True

    @override
    def vmap_width(self, num_chains):
        return self.shape.vmap_width(num_chains)

    @override
    def in_units(self, units):
        return replace(self, units=units)

    @override
    def residual(self, u):
        v, local, before = self._parts(u)
        ahead, seen = jax.vmap(self._interval, in_axes=(None, 0, 0, 0))(
            v, before, local, self._numbers
        )
        return self._rows(local, ahead, seen).ravel()

    def blocks(self, u):
        """(Vᵀ, B): the Jacobian by reverse mode, a cotangent for each state element."""
        v, local, before = self._parts(u)
        L, noise, observe_noise, dx, dy = self._sizes

        def one(before, local, k):
            dv, dbefore, dn = jax.jacrev(
                lambda v, before, n: self._ahead(k, v, before, n), argnums=(0, 1, 2)
            )(v, before, local[:noise])
            hv, he, hx = jax.jacrev(lambda v, e, x: self._seen(k, v, e, x), argnums=(0, 1, 2))(
                v, local[noise : noise + observe_noise], local[noise + observe_noise :]
            )
            top = jnp.concatenate([-dn, jnp.zeros((dx, observe_noise), u.dtype), jnp.eye(dx)], 1)
            bottom = jnp.concatenate([jnp.zeros((dy, noise), u.dtype), he, hx], 1)
            V = jnp.concatenate([-dv, hv])
            D = jnp.concatenate([top, bottom])
            E = jnp.concatenate([-dbefore, jnp.zeros((dy, dx), u.dtype)])
            return V, D, E

        V, D, E = jax.vmap(one)(before, local, self._numbers)
        is_met = jnp.concatenate(
            [jnp.ones((self.data.shape[0], dx)), jnp.asarray(self.is_seen, float)], axis=1
        )
        V, D, E = (x * is_met[..., None].astype(u.dtype) for x in (V, D, E))
        B = Bidiagonal(D, E, 1.0 - is_met.astype(u.dtype))
        V = V.reshape(-1, L).T
        return (V, B) if self.units is None else self._in_units(V, B)

    def inner_product(self, u, V, B):
        """Σ V ∘ ∂c/∂v + Σ B ∘ ∂c/∂(local): row i's derivative in the direction of row i."""
        L, noise, _, dx, _ = self._sizes
        if self.units is not None:
            V, B = self._in_units(V, B)
        v, local, before = self._parts(u)
        V = V.T.reshape(len(self.data), -1, L)

        def one(before, local, k, V, D, E, is_seen):
            def ahead(dv, dbefore, dn):
                at = (v, before, local[:noise])
                return jax.jvp(partial(self._ahead, k), at, (dv, dbefore, dn))[1]

            def seen(dv, de, dx_):
                at = (v, local[noise:-dx], local[-dx:])
                return jax.jvp(partial(self._seen, k), at, (dv, de, dx_))[1]

            along = jax.vmap(ahead)(V[:dx], E[:dx], D[:dx, :noise])
            across = jax.vmap(seen)(V[dx:], D[dx:, noise:-dx], D[dx:, -dx:])
            return jnp.where(is_seen, jnp.diagonal(across), 0.0).sum() - jnp.trace(along)

        return jnp.sum(
            jax.vmap(one)(before, local, self._numbers, V, B.D, B.E, jnp.asarray(self.is_seen))
        )

    @override
    def linearise(self, u):
        return self.shape.linearise(self, u)

    @override
    def evaluate(self, u):
        linearisation, volume_gradient = self.shape.linearise_and_differentiate(self, u)
        log_base, base_gradient = jax.value_and_grad(self._log_base)(u)
        return Evaluation(
            linearisation,
            log_base - linearisation.half_log_det(),
            base_gradient - volume_gradient,
        )

    def guess(self, key):
        """Prior draws of the inputs, and states that agree with what was seen.

        Where nothing was seen, they lie on a straight path between those before and after.
        """
        L, noise, observe_noise, *_ = self._sizes
        K = self.data.shape[0]
        shared_key, noise_key = jax.random.split(key)
        v = self.model.shared.draw(shared_key)
        rest = jax.random.normal(noise_key, (L - v.size + K * (noise + observe_noise),))
        v = jnp.concatenate([v, rest[: L - v.size]])
        local = rest[L - self.model.shared.size :].reshape(K, -1)
        x = jax.vmap(lambda e, k: self._state_seen_as(v, e, k))(local[:, noise:], self._numbers)
        is_known = jnp.any(jnp.asarray(self.is_seen), axis=1)
        x = jax.vmap(lambda x: _interpolated(x, is_known), in_axes=1, out_axes=1)(x)
        u = jnp.concatenate([v, jnp.concatenate([local, x], axis=1).ravel()])
        return u if self.units is None else u / self.units

    @property
    def unlifted(self) -> Posterior:
        """The same posterior among the inputs alone. It costs more, but simulates."""
        shape = (self.model.num_observations, *self.data_shape)
        seen = np.asarray(self.is_seen).ravel()
        index = np.flatnonzero(seen) if self.has_gaps else None
        observation = Observation("y", shape, np.asarray(self.data).ravel()[seen], index)
        dense = Dense.for_size(observation.values.size, self.model.inputs.size)
        return Posterior(self.model, (observation,), dense, "")

    def lift(self, u: Float[Array, " K"]) -> Float[Array, " M"]:
        """The position that stands for inputs: these, and the states that they lead to."""
        inputs, K = self.model.inputs, self.data.shape[0]
        parts = dict(zip(inputs.names, inputs.split(u), strict=True))
        own = [parts.pop(name, u[:0]) for name in ("initial_noise", "noise", "observe_noise")]
        x = self.model.outputs(u)["x"].reshape(K, -1) / self.state_unit[None]
        local = jnp.concatenate([own[1].reshape(K, -1), own[2].reshape(K, -1), x], axis=1)
        return jnp.concatenate([*parts.values(), own[0], local.ravel()])

    def latents(self, u):
        """Outputs of the shared inputs, the states, and what was not seen of the data."""
        v, local, _ = self._parts(u)
        dx = self._sizes[3]
        x = (local[:, -dx:] * self.state_unit[None]).reshape(-1, *self.state_shape)
        latents = {**self.model.reported(self._shared(v)), "x": x}
        if self.has_gaps:
            noise = self._sizes[1]
            seen = jax.vmap(lambda loc, k: self._seen(k, v, loc[noise:-dx], loc[-dx:]))(
                local, self._numbers
            )
            latents["y"] = (seen * self.data_unit[None]).reshape(-1, *self.data_shape)
        return latents

    @override
    def inputs(self, u):
        v, local, _ = self._parts(u)
        model = self.model
        _, noise, observe_noise, _, _ = self._sizes
        values = dict(self._shared(v))
        if (first := self._first_noise(v)) is not None:
            values["initial_noise"] = first
        values["noise"] = local[:, :noise].reshape(model.steps, *model.noise)
        if model.observe_noise is not None:
            seen = local[:, noise : noise + observe_noise]
            values["observe_noise"] = seen.reshape(-1, *model.observe_noise)
        return values

    @override
    def describe(self, constraint):
        _, _, _, dx, dy = self._sizes
        k, i = divmod(constraint, dx + dy)
        name, shape = ("x", self.state_shape) if i < dx else ("y", self.data_shape)
        place = np.unravel_index(i if i < dx else i - dx, shape)
        return f"{name}[{', '.join(str(int(j)) for j in (k, *place))}]"

    @property
    def _numbers(self):
        return jnp.arange(self.data.shape[0])

    def _parts(self, u):
        """Shared inputs, local ones, and the state before each interval (nothing for the first)."""
        u = to_model_space(u, self.units)
        L, dx = self._sizes[0], self._sizes[3]
        local = u[L:].reshape(self.data.shape[0], -1)
        before = jnp.concatenate([jnp.zeros_like(local[:1, -dx:]), local[:-1, -dx:]])
        return u[:L], local, before

    def _in_units(self, V, B: Bidiagonal):
        assert self.units is not None
        L, dx = self._sizes[0], self._sizes[3]
        own = self.units[L:].reshape(len(self.data), 1, -1)
        before = jnp.concatenate([own[:1], own[:-1]])[..., -dx:]
        return V * self.units[:L, None], Bidiagonal(B.D * own, B.E * before, B.fill)

    def _shared(self, v):
        return self.model.shared.values(v[: self.model.shared.size])

    def _first_noise(self, v):
        shape = self.model.initial_noise
        return None if shape is None else v[self.model.shared.size :].reshape(shape)

    def _ahead(self, k, v, before, n):
        """The state that the interval leads to, flat and in its unit."""
        s = self._shared(v)
        model = self.model
        first = model.first_state(s, self._first_noise(v)).astype(n.dtype)
        x = jnp.where(k == 0, first, (before * self.state_unit).reshape(self.state_shape))
        x = model.advance(s, x, n.reshape(model.observe_every, *model.noise), k)
        return x.ravel() / self.state_unit

    def _seen(self, k, v, e, x):
        """What is seen of a state, flat and in its unit."""
        noise = self.model.observe_noise
        x = (x * self.state_unit).reshape(self.state_shape)
        e = None if noise is None else e.reshape(noise)
        return self.model.seen(self._shared(v), x, e, k).ravel() / self.data_unit

    def _interval(self, v, before, local, k):
        _, noise, observe_noise, *_ = self._sizes
        n, e, x = (
            local[:noise],
            local[noise : noise + observe_noise],
            local[noise + observe_noise :],
        )
        return self._ahead(k, v, before, n), self._seen(k, v, e, x)

    def _rows(self, local, ahead, seen):
        missed = jnp.where(self.is_seen, seen - self.data / self.data_unit[None], 0.0)
        return jnp.concatenate([local[:, -ahead.shape[1] :] - ahead, missed], axis=1)

    def _log_base(self, u):
        v, local, _ = self._parts(u)
        dx, num_shared = self._sizes[3], self.model.shared.size
        n = jnp.concatenate([v[num_shared:], local[:, :-dx].ravel()])
        return self.model.shared.log_density(v[:num_shared]) - 0.5 * n @ n

    def _state_seen_as(self, v, e, k):
        """A state that would be seen as the data say: a few Gauss–Newton steps from the first."""
        first = self.model.first_state(self._shared(v), self._first_noise(v))
        is_seen, data = jnp.asarray(self.is_seen)[k], jnp.asarray(self.data)[k] / self.data_unit

        def missed(x):
            return jnp.where(is_seen, self._seen(k, v, e, x) - data, 0.0)

        def closer(_, x):
            full = jnp.linalg.pinv(jax.jacrev(missed)(x)) @ missed(x)
            lengths = 0.5 ** jnp.arange(12, dtype=full.dtype)
            errors = jax.vmap(lambda length: jnp.max(jnp.abs(missed(x - length * full))))(lengths)
            best = jnp.nanargmin(jnp.append(errors, jnp.max(jnp.abs(missed(x)))))
            return x - jnp.append(lengths, 0.0)[best] * jnp.where(jnp.isfinite(full), full, 0.0)

        return jax.lax.fori_loop(0, 20, closer, first.ravel().astype(float) / self.state_unit)


def _interpolated(x: Float[Array, " K"], is_known: Bool[Array, " K"]) -> Float[Array, " K"]:
    """x with unknown elements on a straight line between the nearest known ones."""
    K = x.size
    k = jnp.arange(K)
    before = jax.lax.cummax(jnp.where(is_known, k, -1))
    after = jax.lax.cummin(jnp.where(is_known, k, K), reverse=True)
    before, after = jnp.where(before < 0, after, before), jnp.where(after == K, before, after)
    weight = (k - before) / jnp.maximum(after - before, 1)
    return (1 - weight) * x[before] + weight * x[after]


def with_states(
    model: Markov, data: np.ndarray, is_seen: np.ndarray, state_shape
) -> LiftedPosterior:
    """The lifted posterior given observations (K, …), those not seen left out."""
    K = model.num_observations
    dx = int(np.prod(state_shape))
    flat, flat_seen = data.reshape(K, -1), is_seen.reshape(K, -1)
    flat = np.where(flat_seen, flat, 0.0)
    L = model.shared.size + size_of(model.initial_noise)
    width = model.observe_every * size_of(model.noise) + size_of(model.observe_noise) + dx
    rows = dx + flat.shape[1]
    cost = K * (rows**2 * (width + rows) + rows * float(L + 1) ** 2)
    words = (
        f"markov: {K} intervals with {rows} rows and {width} local inputs each, states included, "
        f"and {L} shared inputs; a step costs about {cost:.0e} operations, linear in the intervals."
    )
    return LiftedPosterior(
        model,
        flat,
        flat_seen,
        Lifted(Indices(np.arange(L)), Indices(L + np.arange(K * width))),
        words,
        not np.all(flat_seen),
        tuple(state_shape),
        data.shape[1:],
        np.full(dx, _STATE_UNIT),
        1.0 + np.max(np.abs(flat), axis=0),
    )
