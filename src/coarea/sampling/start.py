"""Points on the manifold to start from: Gauss–Newton from prior draws, a few constraints at a time.

A simulator that steps through time may overflow for most prior draws, and then all of its outputs
together say nothing about where to go. The first outputs still do. So constraints are put in the
order of how many inputs they respond to (for such a simulator, the order of time); all are tried
first, then half as many as long as that fails, and from each success the next ones are added. Each
step is the smallest change of the inputs that meets the linearised constraints, so that the point
found stays near the prior draw that it came from.
"""

import contextlib
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.scipy.linalg import cho_solve
from jaxtyping import Array, Bool, Float, Int, Key

from coarea.dynamics import Rattle
from coarea.dynamics.solvers import Tolerance
from coarea.errors import JacobianError, ModelError, SettingError, StartError
from coarea.manifolds import AbstractTarget
from coarea.manifolds.dense import Dense
from coarea.precision import in_float64
from coarea.sampling.settings import check_count, check_target, one_blas_thread

# Prior draws tried at once for each chain, and how often.
_CANDIDATES = 8
_ROUNDS = 4
_MAX_LINEARISATIONS = 500
# Gauss–Newton iterations for several constraints, which else are halved; for one there is no less.
_MAX_ITERATIONS = 10
_MAX_ITERATIONS_FOR_ONE = 50
_LINE_SEARCH = 8
# The largest Jacobian whose rank is looked at.
_MOST_ELEMENTS = 1_000_000
# A smallest pivot above this, with rows of unit length, needs no singular values to be believed.
_FULL_RANK = 1e-4


class Start(NamedTuple):
    """A point, how far it is from the manifold, and the log density there.

    The error is max|c| relative to the size of the data, infinite where the next Gauss–Newton step
    would still be long: a small residual alone does not say that a point is near.
    """

    u: Float[Array, " M"]
    error: Float[Array, ""]
    log_density: Float[Array, ""]


@in_float64
def find_start(target: AbstractTarget, key: Key[Array, ""], chains: int) -> np.ndarray:
    """Points on the manifold, one for each chain: an array (chains, inputs) for `sample(start=)`.

    >>> import coarea as co, jax
    >>> model = co.Generator(lambda u: {"z": u["z"], "y": u["z"] ** 3 + u["n"]}, {"z": (), "n": ()})
    >>> posterior = co.condition(model, {"y": 1.5})
    >>> co.find_start(posterior, jax.random.key(0), chains=3).shape
    (3, 2)
    """
    check_target(target, "find_start")
    check_count("chains", chains, 1)
    tolerance = Rattle().tolerance_for(jnp.float64)
    with one_blas_thread():
        found = [
            search(target.ambient, chain_keys(key, chain).start[None], tolerance)
            for chain in range(chains)
        ]
    starts = jax.tree.map(lambda *x: jnp.concatenate(x), *found)
    check_starts(target.ambient, starts, tolerance)
    return np.asarray(jax.vmap(target.restrict)(starts.u))


class ChainKeys(NamedTuple):
    """A chain's random streams: they depend on the seed and the chain's number alone."""

    start: Key[Array, ""]
    run: Key[Array, ""]


def chain_keys(key: Key[Array, ""], chain: int | Int[Array, ""]) -> ChainKeys:
    """The streams of one chain."""
    return ChainKeys(*jax.vmap(jax.random.fold_in, (None, 0))(key, 2 * chain + jnp.arange(2)))


def search(target: AbstractTarget, keys: Key[Array, " chains"], tolerance: Tolerance) -> Start:
    """A start for each key: of its candidates that reached the manifold, the most probable.

    There are rounds of candidates until every chain has one. Each is made of programs that are
    compiled once, which takes less long than all rounds as one program would.
    """

    def infinite(*shape):
        return jnp.asarray(np.full((*keys.shape, *shape), np.inf))

    def another_round(carry):
        tries, _, best = carry
        found = improve(target, _guesses(target, keys, tries), tolerance)
        return tries + 1, *_better(best, found, tolerance)

    def unfinished(carry):
        tries, is_over, _ = carry
        return ~is_over & (tries < _ROUNDS)

    # NumPy's zero is an argument of a program, where Python's would be a part of it.
    nowhere = Start(infinite(target.num_inputs), infinite(), infinite())
    carry = np.array(0), np.array(False), nowhere
    if isinstance(keys, Tracer):
        return jax.lax.while_loop(unfinished, another_round, carry)[2]
    for _ in range(_ROUNDS):
        carry = another_round(carry)
        if carry[1]:
            break
    return carry[2]


@eqx.filter_jit
def _guesses(target, keys, tries) -> Float[Array, "candidates M"]:
    """One chain's after another's."""
    split = jax.vmap(lambda key: jax.random.split(key, (_ROUNDS, _CANDIDATES))[tries])(keys)
    return jax.vmap(target.guess)(split.ravel())


@eqx.filter_jit
def _better(best: Start, found: Start, tolerance: Tolerance) -> tuple[Bool[Array, ""], Start]:
    """For each chain the best of its candidates, unless it has a start; whether now all have."""

    def one(best: Start, found: Start) -> Start:
        usable = _is_usable(found, tolerance)
        probable = jnp.where(usable, found.log_density, -jnp.inf)
        choice = jnp.where(jnp.any(usable), jnp.argmax(probable), jnp.argmin(found.error))
        chosen = jax.tree.map(lambda x: x[choice], found)
        # An infinite error is better than none: at least it was a candidate's.
        better = ~_is_usable(best, tolerance) & (usable[choice] | (chosen.error <= best.error))
        return jax.tree.map(lambda a, b: jnp.where(better, a, b), chosen, best)

    by_chain = jax.tree.map(lambda x: x.reshape(-1, _CANDIDATES, *x.shape[1:]), found)
    best = jax.vmap(one)(best, by_chain)
    return jnp.all(_is_usable(best, tolerance)), best


@eqx.filter_jit
def improve(target: AbstractTarget, u: Float[Array, "chains M"], tolerance: Tolerance) -> Start:
    """Move each given point onto the manifold."""
    return jax.vmap(lambda u: _approach(target, u, tolerance))(u)


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


def check_starts(target: AbstractTarget, starts: Start, tolerance: Tolerance) -> None:
    """Raise if a chain has no start, with the likeliest reason, or a start where J is singular."""
    error = np.asarray(starts.error)
    found = error <= tolerance.residual
    closest = starts.u[int(np.argmin(error))]
    check_rank(target, closest)
    if not np.all(found) and not np.any(np.isfinite(target.residual(closest))):
        raise ModelError(
            "the constrained quantities were NaN or infinite at every point that was tried "
            f"({_CANDIDATES * _ROUNDS} a chain). Check what the generator gives for draws from its "
            "prior (`model.simulate(key, 10)`); work on a scale (such as logarithms) on which the "
            "simulation stays finite."
        )
    if not np.all(found):
        raise StartError(
            f"no inputs that reproduce the data were found for {int(np.sum(~found))} of "
            f"{error.size} chains: the closest left a largest error of "
            f"{float(np.min(error[~found])):.2g} relative to the size of the data. Can these be "
            "produced at all (compare `model.simulate(key, 1000)`)? If they can, give "
            "`sample(start=…)` points near ones that do, or rescale the outputs so that errors in "
            "each count alike."
        )
    if not np.all(np.isfinite(np.asarray(starts.log_density))):
        raise StartError(
            "points that reproduce the data were found, but the log density there is not finite. "
            "Give `sample(start=…)` points inside its support (for a coarea.Manifold, a `point` "
            "well inside)."
        )


def check_rank(target: AbstractTarget, u: Float[Array, " M"]) -> None:
    """Raise if the constraints do not respond to the inputs independently at u.

    Not looked at where it would cost more than the run.
    """
    if target.num_constraints * target.num_inputs > _MOST_ELEMENTS:
        return
    rows = target.constraints
    J = np.asarray(_jacobian(target, u))[rows]
    if not np.all(np.isfinite(J)):
        return
    size = np.linalg.norm(J, axis=1)
    if np.any(size == 0):
        raise JacobianError(
            f"{_names(target, rows[size == 0])}: the derivative with respect to every "
            "input is zero, so no change of the inputs can bring about the observed value. An "
            "output that is constant, rounded, thresholded or integer-valued inside cannot be "
            "conditioned on."
        )
    J = J / size[:, None]
    with contextlib.suppress(np.linalg.LinAlgError):
        if np.min(np.diagonal(np.linalg.cholesky(J @ J.T))) > _FULL_RANK:
            return
    left, singular, _ = np.linalg.svd(J, full_matrices=False)
    if singular[-1] <= 4 * J.shape[1] * np.finfo(J.dtype).eps:
        involved = rows[np.abs(left[:, -1]) > 1e-6]
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
    return Dense.for_size(target.num_constraints, target.num_inputs).jacobian(target.residual)(u)


def _is_usable(start: Start, tolerance: Tolerance):
    return (start.error <= tolerance.residual) & jnp.isfinite(start.log_density)


class _Attempt(NamedTuple):
    """Gauss–Newton under way: where, its largest error, the last full step, whether it goes on."""

    u: Float[Array, " M"]
    error: Float[Array, ""]
    step: Float[Array, ""]
    iterations: Int[Array, ""]
    stuck: Bool[Array, ""]


class _Progress(NamedTuple):
    """u meets the first `met` constraints; `more` are tried next."""

    u: Float[Array, " M"]
    met: Int[Array, ""]
    more: Int[Array, ""]
    linearisations: Int[Array, ""]
    stuck: Bool[Array, ""]


def _approach(target: AbstractTarget, u: Float[Array, " M"], tolerance: Tolerance) -> Start:
    """From u to the manifold."""
    if target.is_cheap:
        return _approach_at_once(target, u, tolerance)
    return _approach_in_turn(target, u, tolerance)


def _approach_at_once(target, u, tolerance) -> Start:
    """All constraints together, each step at the cost of a linearisation."""

    def error(u):
        c = target.residual(u)
        return jnp.max(jnp.where(jnp.isnan(c), jnp.inf, jnp.abs(c)))

    def unfinished(at: _Attempt):
        met = tolerance.is_met(target, at.u, at.error, at.step)
        return ~met & (at.iterations < _MAX_LINEARISATIONS) & ~at.stuck

    def gauss_newton(at: _Attempt):
        full = target.linearise(at.u).pseudo_inverse(target.residual(at.u))
        return _searched_along(target, at, full, error, tolerance)

    far = jnp.asarray(jnp.inf, u.dtype)
    end = jax.lax.while_loop(
        unfinished,
        gauss_newton,
        _Attempt(u, error(u), far, jnp.asarray(0), jnp.asarray(False)),
    )
    met = tolerance.is_met(target, end.u, end.error, end.step)
    return _judged(target, end.u, end.error / target.scale, met, tolerance)


def _judged(target, u, error, met, tolerance) -> Start:
    """What is called found must have met every constraint, not only have a small residual."""
    small = (error <= tolerance.residual) & ~met
    return Start(u, jnp.where(small, jnp.inf, error), target.evaluate(u).log_density)


def _searched_along(target, at: _Attempt, full, error, tolerance) -> _Attempt:
    """The best of a full step and its halves, unless rounding already decides."""
    lengths = 0.5 ** jnp.arange(_LINE_SEARCH, dtype=full.dtype)
    errors = jax.vmap(lambda length: error(at.u - length * full))(lengths)
    best = jnp.argmin(errors)
    # Near the manifold rounding decides whether the error still falls: step all the same.
    near = tolerance.is_met(target, at.u, at.error, jnp.zeros(()))
    better = (errors[best] < at.error) | (near & jnp.isfinite(errors[best]))
    step = jnp.max(jnp.abs(full))
    moves = better & ~tolerance.is_met(target, at.u, at.error, step)
    return _Attempt(
        jnp.where(moves, at.u - lengths[best] * full, at.u),
        jnp.where(moves, errors[best], at.error),
        step,
        at.iterations + 1,
        ~better,
    )


def _approach_in_turn(target, u, tolerance) -> Start:
    """Adding constraints as earlier ones are met."""
    N = target.num_constraints
    jacobian = Dense.for_size(N, target.num_inputs).jacobian(target.residual)
    # Constraints by how many inputs they respond to. An overflow counts as a response.
    responses = jnp.sum(jacobian(u) != 0, axis=1)
    rank = jnp.argsort(jnp.argsort(responses))

    def error(u, wanted):
        c = jnp.where(wanted, target.residual(u), 0.0)
        return jnp.max(jnp.where(jnp.isnan(c), jnp.inf, jnp.abs(c)))

    def attempt(u, wanted, most) -> _Attempt:
        def unfinished(at: _Attempt):
            met = tolerance.is_met(target, at.u, at.error, at.step)
            return ~met & (at.iterations < most) & ~at.stuck

        def gauss_newton(at: _Attempt):
            J = jnp.where(wanted[:, None], jacobian(at.u), 0.0)
            c = jnp.where(wanted, target.residual(at.u), 0.0)
            gram = J @ J.T + jnp.diag(jnp.where(wanted, 0.0, 1.0))
            full = J.T @ cho_solve((jnp.linalg.cholesky(gram), True), c)
            return _searched_along(target, at, full, lambda u: error(u, wanted), tolerance)

        far = jnp.asarray(jnp.inf, u.dtype)
        start = _Attempt(u, error(u, wanted), far, jnp.asarray(0), jnp.asarray(False))
        return jax.lax.while_loop(unfinished, gauss_newton, start)

    def unfinished(at: _Progress):
        return (at.met < N) & ~at.stuck & (at.linearisations < _MAX_LINEARISATIONS)

    def extend(at: _Progress):
        aim = jnp.minimum(at.met + at.more, N)
        most = jnp.where(at.more == 1, _MAX_ITERATIONS_FOR_ONE, _MAX_ITERATIONS)
        tried = attempt(at.u, rank < aim, most)
        success = tolerance.is_met(target, tried.u, tried.error, tried.step)
        return _Progress(
            jnp.where(success, tried.u, at.u),
            jnp.where(success, aim, at.met),
            jnp.where(success, 2 * at.more, jnp.maximum(at.more // 2, 1)),
            at.linearisations + tried.iterations,
            ~success & (at.more == 1),
        )

    zero = jnp.asarray(0)
    end = jax.lax.while_loop(
        unfinished, extend, _Progress(u, zero, jnp.asarray(N), zero, jnp.asarray(False))
    )
    left = error(end.u, jnp.full(N, True)) / target.scale
    return _judged(target, end.u, left, end.met == N, tolerance)
