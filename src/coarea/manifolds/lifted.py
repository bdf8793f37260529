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
from coarea.jacobians.block_bidiagonal import Bidiagonal, BlockBidiagonal
from coarea.jacobians.dense import Dense
from coarea.jacobians.indices import Indices
from coarea.jacobians.linalg.gauss_newton import gauss_newton
from coarea.jacobians.noise import NoiseSolver
from coarea.manifolds.lifted_layout import LiftedLayout, LiftedReporter
from coarea.manifolds.observation import Observation
from coarea.manifolds.posterior import Posterior
from coarea.manifolds.rescaling import Rescaling
from coarea.manifolds.target import AbstractConstrainedTarget, Evaluation, Scales

# State variables are divided by this, so that the metric is nearly that of the inputs alone. On
# FitzHugh–Nagumo 10 allows steps twice as long as 1 and 100.
_STATE_UNIT = 10.0
# A first guess of a state is good enough if it misses the data by this, relative to their size.
_SEEN_AS = 1e-6
_MOST_ITERATIONS = 20


class LiftedPosterior(AbstractConstrainedTarget):
    """The exact posterior of a Markov simulator's inputs and states. Made by `condition`."""

    layout: LiftedLayout
    jacobian: BlockBidiagonal
    structure: str = eqx.field(static=True)
    noise_solver: NoiseSolver | str | None = None
    """How a chart of the inputs alone solves for the noise of observations."""
    rescaling: Rescaling = Rescaling()

    @property
    @override
    def num_inputs(self):
        return self.layout.num_inputs

    @property
    @override
    def num_constraints(self):
        _, _, _, dx, dy = self.layout.sizes
        return self.layout.num_intervals * (dx + dy)

    @property
    @override
    def scales(self):
        return Scales(residual=jnp.ones(()), position=jnp.ones(()))

    @property
    @override
    def gaussian(self):
        return self.layout.gaussian & self.rescaling.leaves_normals

    @property
    @override
    def hints(self):
        return self.jacobian.hints

    @property
    @override
    def reporter(self):
        return LiftedReporter(self.layout)

    @override
    def rescale(self, rescaling):
        return replace(self, rescaling=rescaling)

    @override
    def residual(self, u):
        at = self.layout
        v, local, before = self._parts(u)
        ahead, seen = jax.vmap(at.interval, in_axes=(None, 0, 0, 0))(v, before, local, at.intervals)
        missed = jnp.where(at.is_seen, seen - at.data / at.data_unit[None], 0.0)
        return jnp.concatenate([local[:, -ahead.shape[1] :] - ahead, missed], axis=1).ravel()

    def blocks(self, u):
        """(Vᵀ, B): the Jacobian by reverse mode, a cotangent for each state element."""
        at = self.layout
        v, local, before = self._parts(u)
        L, noise, observe_noise, dx, dy = at.sizes

        def one(before, local, k):
            dv, dbefore, dn = jax.jacrev(
                lambda v, before, n: at.ahead(k, v, before, n), argnums=(0, 1, 2)
            )(v, before, local[:noise])
            hv, he, hx = jax.jacrev(lambda v, e, x: at.seen(k, v, e, x), argnums=(0, 1, 2))(
                v, local[noise : noise + observe_noise], local[noise + observe_noise :]
            )
            top = jnp.concatenate([-dn, jnp.zeros((dx, observe_noise), u.dtype), jnp.eye(dx)], 1)
            bottom = jnp.concatenate([jnp.zeros((dy, noise), u.dtype), he, hx], 1)
            V = jnp.concatenate([-dv, hv])
            D = jnp.concatenate([top, bottom])
            E = jnp.concatenate([-dbefore, jnp.zeros((dy, dx), u.dtype)])
            return V, D, E

        V, D, E = jax.vmap(one)(before, local, at.intervals)
        is_met = jnp.concatenate(
            [jnp.ones((at.num_intervals, dx)), jnp.asarray(at.is_seen, float)], axis=1
        )
        V, D, E = (x * is_met[..., None].astype(u.dtype) for x in (V, D, E))
        B = Bidiagonal(D, E, 1.0 - is_met.astype(u.dtype))
        return self._rescaled(V.reshape(-1, L).T, B)

    def inner_product(self, u, V, B):
        """Σ V ∘ ∂c/∂v + Σ B ∘ ∂c/∂(local): row i's derivative in the direction of row i."""
        at = self.layout
        L, noise, _, dx, _ = at.sizes
        V, B = self._rescaled(V, B)
        v, local, before = self._parts(u)
        V = V.T.reshape(at.num_intervals, -1, L)

        def one(before, local, k, V, D, E, is_seen):
            def ahead(dv, dbefore, dn):
                here = (v, before, local[:noise])
                return jax.jvp(partial(at.ahead, k), here, (dv, dbefore, dn))[1]

            def seen(dv, de, dx_):
                here = (v, local[noise:-dx], local[-dx:])
                return jax.jvp(partial(at.seen, k), here, (dv, de, dx_))[1]

            along = jax.vmap(ahead)(V[:dx], E[:dx], D[:dx, :noise])
            across = jax.vmap(seen)(V[dx:], D[dx:, noise:-dx], D[dx:, -dx:])
            return jnp.where(is_seen, jnp.diagonal(across), 0.0).sum() - jnp.trace(along)

        is_seen = jnp.asarray(at.is_seen)
        return jnp.sum(jax.vmap(one)(before, local, at.intervals, V, B.D, B.E, is_seen))

    @override
    def linearise(self, u):
        return self.jacobian.linearise(self, u)

    @override
    def evaluate(self, u):
        linearisation, volume_gradient = self.jacobian.linearise_and_differentiate(self, u)
        log_base, base_gradient = jax.value_and_grad(self._log_base)(u)
        return Evaluation(
            linearisation,
            log_base - linearisation.half_log_det(),
            base_gradient - volume_gradient,
        )

    @override
    def guess(self, key):
        """Prior draws of the inputs, and states that agree with what was seen.

        Where nothing was seen, they lie on a straight path between those before and after.
        """
        at = self.layout
        L, noise, observe_noise, *_ = at.sizes
        K = at.num_intervals
        shared_key, noise_key = jax.random.split(key)
        v = at.model.shared.draw(shared_key)
        rest = jax.random.normal(noise_key, (L - v.size + K * (noise + observe_noise),))
        v = jnp.concatenate([v, rest[: L - v.size]])
        local = rest[L - at.model.shared.size :].reshape(K, -1)
        x = jax.vmap(lambda e, k: self._state_seen_as(v, e, k))(local[:, noise:], at.intervals)
        is_known = jnp.any(jnp.asarray(at.is_seen), axis=1)
        x = jax.vmap(lambda x: _interpolated(x, is_known), in_axes=1, out_axes=1)(x)
        u = jnp.concatenate([v, jnp.concatenate([local, x], axis=1).ravel()])
        return self.rescaling.to_sampler_space(u)

    @property
    @override
    def unlifted(self):
        """The same posterior without state augmentation.

        It costs more, but its states come from simulation.
        """
        at = self.layout
        shape = (at.model.num_observations, *at.data_shape)
        seen = np.asarray(at.is_seen).ravel()
        index = np.flatnonzero(seen) if at.has_gaps else None
        observation = Observation("y", shape, np.asarray(at.data).ravel()[seen], index)
        dense = Dense(observation.values.size, at.model.inputs.size)
        return Posterior(at.model, (observation,), dense, "", self.noise_solver)

    @override
    def lift(self, u):
        """The position that stands for inputs: these, and the states that they lead to."""
        at = self.layout
        inputs, K = at.model.inputs, at.num_intervals
        parts = dict(zip(inputs.names, inputs.split(u), strict=True))
        own = [parts.pop(name, u[:0]) for name in ("initial_noise", "noise", "observe_noise")]
        x = at.model.outputs(u)["x"].reshape(K, -1) / at.state_unit[None]
        local = jnp.concatenate([own[1].reshape(K, -1), own[2].reshape(K, -1), x], axis=1)
        return jnp.concatenate([*parts.values(), own[0], local.ravel()])

    def unlift(self, u: Float[Array, " M"]) -> Float[Array, " K"]:
        """The inputs at a position."""
        at = self.layout
        v, local, _ = at.parts(u)
        noise, observe_noise = at.sizes[1], at.sizes[2]
        shared = at.model.shared
        own = {
            "initial_noise": v[shared.size :],
            "noise": local[:, :noise].ravel(),
            "observe_noise": local[:, noise : noise + observe_noise].ravel(),
        }
        parts = dict(zip(shared.names, shared.split(v[: shared.size]), strict=True)) | own
        return jnp.concatenate([parts[name] for name in at.model.inputs.names])

    def _parts(self, u):
        return self.layout.parts(self.rescaling.to_model_space(u))

    def _rescaled(self, V, B: Bidiagonal):
        """The Jacobian in model space as the one in sampler space."""
        R = self.rescaling.matrix
        if R is None:
            return V, B
        L, dx = self.layout.sizes[0], self.layout.sizes[3]
        own = R[L:].reshape(self.layout.num_intervals, 1, -1)
        before = jnp.concatenate([own[:1], own[:-1]])[..., -dx:]
        return V * R[:L, None], Bidiagonal(B.D * own, B.E * before, B.fill)

    def _log_base(self, u):
        shared = self.layout.model.shared
        v, local, _ = self._parts(u)
        dx = self.layout.sizes[3]
        n = jnp.concatenate([v[shared.size :], local[:, :-dx].ravel()])
        return shared.log_density(v[: shared.size]) - 0.5 * n @ n

    def _state_seen_as(self, v, e, k):
        """A state whose observation is the data: a few Gauss–Newton steps from the first state."""
        at = self.layout
        first = at.model.first_state(at.shared(v), at.first_noise(v))
        is_seen, data = jnp.asarray(at.is_seen)[k], jnp.asarray(at.data)[k] / at.data_unit

        def missed(x):
            return jnp.where(is_seen, at.seen(k, v, e, x) - data, 0.0)

        def full_step(x):
            return jnp.linalg.pinv(jax.jacrev(missed)(x)) @ missed(x)

        def is_met(_, error, __):
            return error <= _SEEN_AS

        start = first.ravel().astype(float) / at.state_unit
        return gauss_newton(start, missed, full_step, is_met, _MOST_ITERATIONS).u


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
    layout = LiftedLayout(
        model,
        flat,
        flat_seen,
        not np.all(flat_seen),
        tuple(state_shape),
        data.shape[1:],
        np.full(dx, _STATE_UNIT),
        1.0 + np.max(np.abs(flat), axis=0),
    )
    L, noise, observe_noise, dx, dy = layout.sizes
    width, rows = noise + observe_noise + dx, dx + dy
    cost = K * (rows**2 * (width + rows) + rows * float(L + 1) ** 2)
    words = (
        f"markov: {K} intervals with {rows} rows and {width} local inputs each, states included, "
        f"and {L} shared inputs; a step costs about {cost:.0e} operations, linear in the intervals."
    )
    local = Indices(L + np.arange(K * width))
    return LiftedPosterior(layout, BlockBidiagonal(Indices(np.arange(L)), local, rows), words)
