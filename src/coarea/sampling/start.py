"""Points on the manifold to start from: Gauss–Newton from prior draws, a few constraints at a time.

A simulator that steps through time may overflow for most prior draws, and then all of its outputs
together say nothing about where to go. The first outputs still do. So constraints are put in the
order of how many inputs they respond to (for such a simulator, the order of time); all are tried
first, then half as many as long as that fails, and from each success the next ones are added. Each
step is the smallest change of the inputs that meets the linearised constraints, so that the point
found stays near the prior draw that it came from.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_solve
from jaxtyping import Array, Bool, Float, Int, Key

from coarea.errors import JacobianError, ModelError, SettingError, StartError
from coarea.manifolds import AbstractTarget
from coarea.manifolds.dense import Dense
from coarea.precision import in_float64

# Prior draws tried at once for each chain, and how often.
_CANDIDATES = 8
_ROUNDS = 4
_MAX_LINEARISATIONS = 500
_MAX_ITERATIONS = 10
_LINE_SEARCH = 8


class Start(NamedTuple):
    """A point and how far it is from the manifold: max|c|, relative to the size of the data."""

    u: Float[Array, " M"]
    error: Float[Array, ""]


@in_float64
def find_start(target: AbstractTarget, key: Key[Array, ""], chains: int) -> np.ndarray:
    """Points on the manifold, one for each chain: an array (chains, inputs) for `sample(start=)`.

    >>> import coarea as co, jax
    >>> model = co.Generator(lambda u: {"z": u["z"], "y": u["z"] ** 3 + u["n"]}, {"z": (), "n": ()})
    >>> posterior = co.condition(model, {"y": 1.5})
    >>> co.find_start(posterior, jax.random.key(0), chains=3).shape
    (3, 2)
    """
    keys = jax.vmap(lambda chain: chain_keys(key, chain).start)(jnp.arange(chains))
    starts = search(target, keys)
    check_starts(target, starts)
    return np.asarray(starts.u)


class ChainKeys(NamedTuple):
    """A chain's random streams: they depend on the seed and the chain's number alone."""

    start: Key[Array, ""]
    run: Key[Array, ""]


def chain_keys(key: Key[Array, ""], chain: Int[Array, ""]) -> ChainKeys:
    """The streams of one chain."""
    return ChainKeys(*jax.random.split(jax.random.fold_in(key, chain)))


@eqx.filter_jit
def search(target: AbstractTarget, keys: Key[Array, " chains"]) -> Start:
    """A start for each key: of its candidates that reached the manifold, the most probable."""
    return jax.vmap(lambda key: _search_one(target, key))(keys)


@eqx.filter_jit
def improve(target: AbstractTarget, u: Float[Array, "chains M"]) -> Start:
    """Move each given point onto the manifold."""
    return jax.vmap(lambda u: _approach(target, u))(u)


def check_given(target: AbstractTarget, given, chains: int) -> np.ndarray:
    """The user's start points, refused unless there is one for each chain."""
    u = np.asarray(given, dtype=float)
    expected = (chains, target.num_inputs)
    if u.shape != expected:
        raise SettingError(
            f"start has shape {u.shape}, but {chains} chains on {target.num_inputs} inputs need "
            f"{expected}: one row a chain."
        )
    if not np.all(np.isfinite(u)):
        raise SettingError("start has elements that are not finite.")
    return u


def check_starts(target: AbstractTarget, starts: Start) -> None:
    """Raise if a chain has no start, with the likeliest reason, or a start where J is singular."""
    error = np.asarray(starts.error)
    found = error <= _tolerance(starts.u.dtype)
    check_rank(target, starts.u[int(np.argmin(error))])
    if np.all(found):
        return
    if not np.any(np.isfinite(error)):
        raise ModelError(
            "the generator's observed outputs were NaN or infinite for every draw of its inputs "
            f"that was tried ({_CANDIDATES * _ROUNDS} a chain). Check `model.simulate(key, 10)`; "
            "work on a scale (such as logarithms) on which the simulation stays finite."
        )
    worst = float(np.max(error[~found], initial=0.0, where=np.isfinite(error[~found])))
    raise StartError(
        f"no inputs that reproduce the data were found for {int(np.sum(~found))} of {error.size} "
        f"chains: the closest left a largest error of {float(np.min(error)):.2g} relative to the "
        f"size of the data, the worst {worst:.2g}. Can the generator produce these values at all "
        "(compare `model.simulate(key, 1000)`)? If it can, give `sample(start=…)` points near "
        "ones that do, or rescale the outputs so that errors in each count alike."
    )


def check_rank(target: AbstractTarget, u: Float[Array, " M"]) -> None:
    """Raise if the constraints do not respond to the inputs independently at u."""
    J = np.asarray(_jacobian(target, u))
    if not np.all(np.isfinite(J)):
        return
    size = np.linalg.norm(J, axis=1)
    if np.any(size == 0):
        raise JacobianError(
            f"{_names(target, np.flatnonzero(size == 0))}: the derivative with respect to every "
            "input is zero, so no change of the inputs can bring about the observed value. An "
            "output that is constant, rounded, thresholded or integer-valued inside cannot be "
            "conditioned on."
        )
    left, singular, _ = np.linalg.svd(J / size[:, None])
    if singular[-1] <= 4 * J.shape[1] * np.finfo(J.dtype).eps:
        involved = np.flatnonzero(np.abs(left[:, -1]) > 1e-6)
        raise JacobianError(
            f"{_names(target, involved)} are not independent: to first order one of them follows "
            "from the others, so the Jacobian has no full rank. Leave out those that repeat what "
            "others say, or give each its own noise."
        )


def _names(target, constraints) -> str:
    shown = ", ".join(target.describe(int(i)) for i in constraints[:6])
    return shown + (f" and {len(constraints) - 6} more" if len(constraints) > 6 else "")


@eqx.filter_jit
def _jacobian(target, u):
    return Dense.for_size(target.num_constraints, target.num_inputs).jacobian(target.residual)(u)[0]


def _tolerance(dtype) -> float:
    return 1e-9 if dtype == jnp.float64 else 1e-4


def _search_one(target, key) -> Start:
    """Rounds of candidates until one reaches the manifold; the most probable of those that do."""

    def unfinished(carry):
        tries, best = carry
        return ~(best.error <= _tolerance(best.u.dtype)) & (tries < _ROUNDS)

    def another_round(carry):
        tries, best = carry
        keys = jax.random.split(jax.random.fold_in(key, tries), _CANDIDATES)
        found = jax.vmap(lambda k: _approach(target, target.guess(k)))(keys)
        on_manifold = found.error <= _tolerance(found.u.dtype)
        log_density = jax.vmap(lambda u: target.evaluate(u).log_density)(found.u)
        probable = jnp.where(on_manifold & ~jnp.isnan(log_density), log_density, -jnp.inf)
        choice = jnp.where(jnp.any(on_manifold), jnp.argmax(probable), jnp.argmin(found.error))
        chosen = jax.tree.map(lambda x: x[choice], found)
        nearer = chosen.error < best.error
        return tries + 1, jax.tree.map(lambda a, b: jnp.where(nearer, a, b), chosen, best)

    u = target.guess(key)
    nowhere = Start(u, jnp.asarray(jnp.inf, u.dtype))
    return jax.lax.while_loop(unfinished, another_round, (0, nowhere))[1]


class _Progress(NamedTuple):
    """u meets the first `met` constraints; `more` are tried next."""

    u: Float[Array, " M"]
    met: Int[Array, ""]
    more: Int[Array, ""]
    linearisations: Int[Array, ""]
    stuck: Bool[Array, ""]


def _approach(target: AbstractTarget, u: Float[Array, " M"]) -> Start:
    """From u to the manifold, adding constraints as earlier ones are met."""
    N = target.num_constraints
    jacobian = Dense.for_size(N, target.num_inputs).jacobian(target.residual)
    tolerance = _tolerance(u.dtype) * target.scale
    # Constraints by how many inputs they respond to. An overflow counts as a response.
    responses = jnp.sum(jacobian(u)[0] != 0, axis=1)
    rank = jnp.argsort(jnp.argsort(responses))

    def error(u, wanted):
        c = jnp.where(wanted, target.residual(u), 0.0)
        return jnp.max(jnp.where(jnp.isnan(c), jnp.inf, jnp.abs(c)))

    def attempt(u, wanted):
        def unfinished(carry):
            _, error_now, count, stuck = carry
            return (error_now > tolerance) & (count < _MAX_ITERATIONS) & ~stuck

        def gauss_newton(carry):
            u, error_now, count, _ = carry
            J, c = jacobian(u)
            J = jnp.where(wanted[:, None], J, 0.0)
            c = jnp.where(wanted, c, 0.0)
            gram = J @ J.T + jnp.diag(jnp.where(wanted, 0.0, 1.0))
            full = J.T @ cho_solve((jnp.linalg.cholesky(gram), True), c)
            full = jnp.where(jnp.isfinite(full), full, 0.0)
            lengths = 0.5 ** jnp.arange(_LINE_SEARCH, dtype=u.dtype)
            errors = jax.vmap(lambda length: error(u - length * full, wanted))(lengths)
            best = jnp.argmin(errors)
            better = errors[best] < error_now
            u = jnp.where(better, u - lengths[best] * full, u)
            return u, jnp.minimum(errors[best], error_now), count + 1, ~better

        start = (u, error(u, wanted), 0, jnp.asarray(False))
        u, reached, count, _ = jax.lax.while_loop(unfinished, gauss_newton, start)
        return u, reached <= tolerance, count

    def unfinished(at: _Progress):
        return (at.met < N) & ~at.stuck & (at.linearisations < _MAX_LINEARISATIONS)

    def extend(at: _Progress):
        aim = jnp.minimum(at.met + at.more, N)
        u, success, count = attempt(at.u, rank < aim)
        return _Progress(
            jnp.where(success, u, at.u),
            jnp.where(success, aim, at.met),
            jnp.where(success, 2 * at.more, jnp.maximum(at.more // 2, 1)),
            at.linearisations + count,
            ~success & (at.more == 1),
        )

    zero = jnp.asarray(0)
    end = jax.lax.while_loop(
        unfinished, extend, _Progress(u, zero, jnp.asarray(N), zero, jnp.asarray(False))
    )
    return Start(end.u, error(end.u, jnp.full(N, True)) / target.scale)
