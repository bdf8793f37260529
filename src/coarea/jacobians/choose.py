"""Choose a structure: the cheapest one that the sparsity pattern of the Jacobian allows.

The pattern is read off the traced function, so it holds at every point. It does not prove that the
local part B has full rank; that is checked at draws from the prior. The dense structure is always
valid.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from coarea.errors import ModelError
from coarea.jacobians.blocks import Blocks
from coarea.jacobians.candidates import Candidate, all_candidates, dense_candidate, square_splits
from coarea.jacobians.elementwise import Elementwise
from coarea.jacobians.noise import NoiseSolver
from coarea.jacobians.pattern import brief, read_pattern, reader_is_missing
from coarea.jacobians.split import AbstractSplit, AbstractUncoupled
from coarea.jacobians.structure import AbstractStructure
from coarea.jacobians.triangular import Triangular
from coarea.tracing import NotInvertibleError
from coarea.xla import jit_fast_compile

StructureName = Literal["auto", "dense", "elementwise", "triangular", "blocks", "markov"]

# The structures that candidates.py finds in a pattern, by name.
FOUND_IN_PATTERN: dict[str, type[AbstractSplit]] = {
    "elementwise": Elementwise,
    "triangular": Triangular,
    "blocks": Blocks,
}

# A structure is chosen only if its cost is below this fraction of the dense cost.
_WORTH = 0.7
# B counts as singular if a pivot is smaller than the median pivot by this factor.
_VANISHING = 1e-6
# Noise counts as a summand if the relative deviation from an affine function is below this.
_AFFINE = 1e-9
# Noise counts as solved for if it reproduces the data to within this, relative to their size.
_SOLVED = 1e-8


class StructureProblem:
    """A constraint whose Jacobian's structure is wanted.

    `draws` are from the prior. `sizes` are those of the named inputs. Elements of inputs that more
    constraints depend on are made shared inputs first.
    """

    def __init__(
        self,
        residual: Callable,
        draws: Float[Array, "draws M"],
        num_constraints: int,
        sizes: Sequence[int],
    ):
        self.residual, self.draws, self.sizes = residual, draws, tuple(map(int, sizes))
        self.groups = np.repeat(np.arange(len(self.sizes)), self.sizes)
        self.num_constraints, self.num_inputs = num_constraints, draws.shape[1]

    @functools.cached_property
    def pattern(self) -> Any:
        """Where the Jacobian may be nonzero; a sentence that says why that is unknown."""
        try:
            if (why := reader_is_missing()) is not None:
                raise ImportError(why)
            return read_pattern(self.residual, self.draws[0])
        except Exception as error:  # asdex raises many types
            return brief(error)


def choose_structure(wanted: StructureName, problem: StructureProblem) -> Candidate:
    """The structure named `wanted`; for "auto", the cheapest one that fits."""
    N, M = problem.num_constraints, problem.num_inputs
    dense = dense_candidate(N, M)
    if wanted == "dense":
        return dense
    if wanted not in ("auto", *FOUND_IN_PATTERN):
        names = ", ".join(map(repr, ("auto", "dense", *FOUND_IN_PATTERN)))
        raise ModelError(
            f"structure={wanted!r}: choose {names} or, for a coarea.Markov model, 'markov'."
        )
    pattern = problem.pattern
    if isinstance(pattern, str):
        if wanted != "auto":
            raise ModelError(
                f"structure={wanted!r}: the pattern of the Jacobian cannot be read ({pattern})."
            )
        return dense._replace(words=f"{dense.words} Its pattern cannot be read: {pattern}")
    residual, draws, groups = problem.residual, problem.draws, problem.groups
    found = list(all_candidates(pattern, groups))
    if wanted == "auto":
        found = [f for f in found if f.cost < _WORTH * dense.cost]
    else:
        found = [f for f in found if isinstance(f.structure, FOUND_IN_PATTERN[wanted])]
    for candidate in sorted(found, key=lambda f: f.cost):
        if wanted != "auto" or _has_rank(candidate.structure, residual, draws):
            return candidate
        dense = dense._replace(
            words=f"{dense_candidate(N, M).words} Its pattern would be "
            f"{candidate.words.split(':')[0]}, but the derivative with respect to some local input "
            "vanishes."
        )
    if wanted != "auto":
        raise ModelError(
            f"structure={wanted!r} does not fit: the constraints do not couple the inputs in that "
            "way. Leave it out; `posterior.structure` then says what was found."
        )
    return dense


def find_noise_solver(problem: StructureProblem) -> NoiseSolver | str:
    """A split of the inputs into coordinates and noise that can be solved for.

    If there is none, a sentence says why.
    """
    if isinstance(problem.pattern, str):
        return f"the pattern of the Jacobian cannot be read ({problem.pattern})"
    reason = "each needs noise of its own, as many noises as observed values"
    for candidate in square_splits(problem.pattern, problem.groups):
        structure = candidate.structure
        if not isinstance(structure, AbstractUncoupled):
            continue
        try:
            is_affine = _is_affine(structure, problem.residual, problem.draws)
        except Exception as error:  # asdex raises many types
            reason = f"whether noise enters as a summand cannot be read ({brief(error)})"
            continue
        solver = NoiseSolver(structure, problem.sizes, is_affine)
        if not (is_affine or _finds_solutions(solver, problem)):
            reason = "noise must enter as a summand, or by functions that have an inverse"
        elif not _has_rank(structure, problem.residual, problem.draws):
            reason = "the derivative of an observed value with respect to its noise vanishes"
        else:
            return solver
    return reason


def _finds_solutions(solver: NoiseSolver, problem: StructureProblem) -> bool:
    """Whether undoing what the model does to its noise gives noise that reproduces the data.

    Some draws of the other inputs may allow no noise at all, but not all of them.
    """
    if not isinstance(solver.jacobian, Elementwise):
        return False
    try:
        missed = np.asarray(_missed(problem.residual, solver, problem.draws))
    except NotInvertibleError:
        return False
    is_solved = np.isfinite(missed)
    return bool(np.any(is_solved) and np.all(missed[is_solved] < _SOLVED))


@jit_fast_compile
def _missed(residual, solver: NoiseSolver, draws):
    """The largest residual at the noise that the solver finds, relative to that without noise."""

    def missed(u):
        local = solver.jacobian.local_inputs
        without_noise = local.put(u, jnp.zeros(local.flat.size))
        found, _ = solver.solve(residual, without_noise)
        left = jnp.max(jnp.abs(residual(found)))
        return left / (1.0 + jnp.max(jnp.abs(residual(without_noise))))

    return jax.lax.map(missed, draws)


def _is_affine(structure: AbstractSplit, residual, draws) -> bool:
    """Whether B does not depend on the local inputs, so that they enter as summands.

    This is read off the sparsity pattern of the reverse-mode derivative, which keeps the
    contributions of the inputs apart. In forward mode the zeros of a tangent would count as
    dependence.

    A piecewise affine function passes this test. The deviation from an affine function is therefore
    also measured, for noise of both signs and of different sizes.
    """
    local = structure.local_inputs
    u = draws[0]

    def columns_of_B(n):
        value, pull_back = jax.vjp(lambda n: residual(local.put(u, n)), n)
        return pull_back(np.ones(value.shape))[0]

    if read_pattern(columns_of_B, np.zeros(local.flat.size)).nnz:
        return False

    found = np.asarray(_departures(residual, structure, draws))
    return bool(np.all(found[np.isfinite(found)] < _AFFINE))


@jit_fast_compile
def _departures(residual, structure: AbstractSplit, draws):
    """The relative deviation of the residual from an affine function of the noise.

    It is measured at several multiples of the noise.
    """
    local = structure.local_inputs

    def departures(u):
        noise = local.take(u).ravel()
        value, push = jax.linearize(lambda n: residual(local.put(u, n)), 0.0 * noise)

        def departure(size):
            exact = residual(local.put(u, size * noise))
            return jnp.max(jnp.abs(exact - value - push(size * noise)))

        scale = jnp.max(jnp.abs(value)) + jnp.max(jnp.abs(push(noise)))
        return jnp.stack([departure(size) for size in (1.0, -1.0, 4.0, -4.0)]) / scale

    return jax.lax.map(departures, draws)


def _has_rank(structure: AbstractStructure, residual, draws) -> bool:
    """Whether, at draws from the prior, no pivot of B is far smaller than the median pivot."""
    assert isinstance(structure, AbstractSplit)
    sizes = np.abs(np.asarray(_pivots(residual, structure, draws)))
    sizes = sizes[np.all(np.isfinite(sizes), axis=1)]
    return not sizes.size or bool(np.min(sizes) > _VANISHING * np.median(sizes))


@jit_fast_compile
def _pivots(residual, structure: AbstractSplit, draws):
    def pivots(u):
        _, B = structure.pieces(residual, u)
        return structure.local(B).pivots()

    return jax.lax.map(pivots, draws)
