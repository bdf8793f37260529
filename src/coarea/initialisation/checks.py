"""Checks of start points, with errors that name the likeliest reason for a failure."""

import contextlib
import warnings

import numpy as np
from jaxtyping import Array, Float

from coarea.dynamics.projection import Tolerance
from coarea.errors import JacobianError, ModelError, SamplingWarning, SettingError, StartError
from coarea.initialisation.approach import Start
from coarea.initialisation.search import CANDIDATES, ROUNDS, is_usable
from coarea.jacobians.dense import Dense
from coarea.manifolds.target import AbstractConstrainedTarget, AbstractTarget
from coarea.xla import jit_fast_compile

# Number of elements of the largest Jacobian whose rank is checked.
_MOST_ELEMENTS = 1_000_000
# Derivatives beyond this size, or below its inverse, overflow when they are squared.
_EXTREME = 1e140
# With rows of unit length, a smallest Cholesky pivot above this proves full rank without an SVD.
_FULL_RANK = 1e-4


def check_given(target: AbstractTarget, given, chains: int) -> np.ndarray:
    """Check that the user's start points are finite and that there is one for each chain."""
    try:
        u = np.asarray(given, dtype=float)
    except (TypeError, ValueError):
        raise SettingError(
            "start must be an array with a row for each chain, such as coarea.find_start returns, "
            f"or the draws of an earlier call; got a {type(given).__name__}."
        ) from None
    expected = (chains, target.num_inputs)
    if u.shape != expected:
        raise SettingError(
            f"start has shape {u.shape}, but {chains} chains on {target.num_inputs} inputs need "
            f"{expected}: one row a chain."
        )
    if not np.all(np.isfinite(u)):
        raise SettingError("start has elements that are not finite.")
    return u


def with_shared_starts(starts: Start, tolerance: Tolerance, stacklevel: int) -> Start:
    """Replace starts that were not found by those of other chains, with a warning.

    A failed search of one chain does not mean that the model cannot produce the data.
    """
    usable = np.asarray(is_usable(starts, tolerance))
    found = np.flatnonzero(usable)
    if usable.all() or not found.size:
        return starts
    warnings.warn(
        f"no start of their own was found for {np.sum(~usable)} of {usable.size} chains: they "
        "start where others do, so that their agreement says less. find_start with another key, "
        "or start=…, may give them some.",
        SamplingWarning,
        stacklevel=stacklevel,
    )
    mine = np.where(usable, np.arange(usable.size), np.resize(found, usable.size))
    return Start(*(np.asarray(x)[mine] for x in starts))  # pyright: ignore[reportArgumentType]


def check_starts(
    target: AbstractTarget, starts: Start, tolerance: Tolerance, are_given: bool = False
) -> None:
    """Raise if a chain has no start, naming the likeliest reason, or if J is singular there."""
    error = np.asarray(starts.error)
    found = error <= tolerance.residual
    if not isinstance(target, AbstractConstrainedTarget):
        if not np.all(found):
            raise StartError(
                f"the log density or its gradient was not finite for {int(np.sum(~found))} of "
                f"{error.size} chains at "
                + ("the points given as start. " if are_given else "all draws from the prior. ")
                + "Give `sample(start=…)` points where it is finite."
            )
        return
    closest = starts.u[int(np.argmin(error))]
    check_rank(target, closest)
    if not np.all(found) and not np.any(np.isfinite(target.residual(closest))):
        raise ModelError(
            "the constrained quantities were NaN or infinite at "
            + ("the points given as start. " if are_given else "every point that was tried ")
            + ("" if are_given else f"({CANDIDATES * ROUNDS} a chain). ")
            + "Check what the generator gives for draws from its "
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


def check_rank(target: AbstractConstrainedTarget, u: Float[Array, " M"]) -> None:
    """Raise if the Jacobian of the constraints at u does not have full rank.

    Large Jacobians are skipped, because the check would cost more than the run.
    """
    if target.num_constraints * target.num_inputs > _MOST_ELEMENTS:
        return
    rows = target.reporter.active_constraints(target.num_constraints)
    J = np.asarray(_jacobian(target, u))[rows]
    digits = np.finfo(J.dtype).eps
    J = J.astype(float)
    if not np.all(np.isfinite(J)):
        return
    largest = np.max(np.abs(J), axis=1)
    if np.any(largest == 0):
        raise JacobianError(
            f"{_names(target, rows[largest == 0])}: the derivative with respect to every "
            "input is zero, so no change of the inputs can bring about the observed value. An "
            "output that is constant, rounded, thresholded or integer-valued inside cannot be "
            "conditioned on."
        )
    extreme = (largest > _EXTREME) | (largest < 1 / _EXTREME)
    if np.any(extreme):
        raise JacobianError(
            f"{_names(target, rows[extreme])}: the derivatives are of size "
            f"{largest[extreme][0]:.0e}, of which no squares can be computed. Measure in other "
            "units, in which values are nearer to one."
        )
    J = J / largest[:, None]  # before squaring, which may overflow
    J = J / np.linalg.norm(J, axis=1, keepdims=True)
    with contextlib.suppress(np.linalg.LinAlgError):
        if np.min(np.diagonal(np.linalg.cholesky(J @ J.T))) > _FULL_RANK:
            return
    left, singular, _ = np.linalg.svd(J, full_matrices=False)
    if singular[-1] <= 4 * J.shape[1] * digits:
        involved = rows[np.abs(left[:, -1]) > 1e-6]
        raise JacobianError(
            f"{_names(target, involved)} are not independent: to first order one of them follows "
            "from the others, so the Jacobian has no full rank. Leave out those that repeat what "
            "others say, or give each its own noise."
        )


def _names(target, constraints) -> str:
    shown = ", ".join(target.reporter.describe(int(i)) for i in constraints[:6])
    return shown + (f" and {len(constraints) - 6} more" if len(constraints) > 6 else "")


@jit_fast_compile
def _jacobian(target, u):
    return Dense(target.num_constraints, target.num_inputs).jacobian(target.residual)(u)
