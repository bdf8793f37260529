"""The choice of a shape: the cheapest that the Jacobian's pattern of zeros allows.

The pattern is read off the traced function and so holds at every point. It does not prove that
the local part B has full rank: that is checked at draws from the prior. Dense is always right.
"""

import collections
import functools
import importlib
import itertools
import warnings
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from coarea.errors import ModelError, StructureWarning
from coarea.jacobians.blocks import Blocks
from coarea.jacobians.dense import Dense
from coarea.jacobians.elementwise import Elementwise
from coarea.jacobians.indices import PAD, Indices
from coarea.jacobians.split import AbstractSplit
from coarea.jacobians.structure import AbstractStructure
from coarea.jacobians.triangular import Triangular
from coarea.xla import jit_fast_compile

Structure = Literal["auto", "dense", "elementwise", "triangular", "blocks", "markov", "chart"]

# A shape must promise at least this much of a gain before the dense one is given up.
_WORTH = 0.7
# Beyond this many nonzero elements the order of a triangle is not looked for.
_MOST_NONZEROS = 2_000_000
# Where B has a pivot so much smaller than they usually are, it is singular for all we know.
_VANISHING = 1e-6
# Noise that enters as a summand departs from that by no more than rounding.
_AFFINE = 1e-9
# Of so many named inputs all combinations are tried for noise.
_MOST_NAMES = 12


class Candidate(NamedTuple):
    """A shape, about how many operations a step costs, and what it is in words."""

    shape: AbstractStructure
    cost: float
    words: str


def choose_structure(
    wanted: Structure,
    residual,
    draws: Float[Array, "draws M"],
    num_constraints: int,
    groups: np.ndarray,
) -> Candidate:
    """The shape that is wanted; for "auto" the cheapest that fits.

    `draws` are from the prior. `groups` numbers the named input that each element belongs to: of
    elements with equal patterns, those of an input that is seen more widely are shared first.
    """
    N, M = num_constraints, draws.shape[1]
    dense = _dense(N, M)
    if wanted == "dense":
        return dense
    if wanted not in ("auto", "elementwise", "triangular", "blocks", "chart"):
        raise ModelError(
            f"structure={wanted!r}: choose 'auto', 'dense', 'elementwise', 'triangular', "
            "'blocks', 'chart' or, for a coarea.Markov model, 'markov'."
        )
    try:
        if (why := _reader_is_missing()) is not None:
            raise ImportError(why)
        pattern = _pattern(residual, draws[0])
    except Exception as error:  # asdex raises many kinds
        if wanted != "auto":
            raise ModelError(
                f"structure={wanted!r}: the pattern of the Jacobian cannot be read ({error})."
            ) from error
        return dense._replace(words=f"{dense.words} Its pattern cannot be read: {_brief(error)}")
    if wanted == "chart":
        return _chart(pattern, groups, residual, draws)
    found = list(_candidates(pattern, groups))
    if wanted == "auto":
        found = [f for f in found if f.cost < _WORTH * dense.cost]
    else:
        kind = {"elementwise": Elementwise, "triangular": Triangular, "blocks": Blocks}[wanted]
        found = [f for f in found if isinstance(f.shape, kind)]
    for candidate in sorted(found, key=lambda f: f.cost):
        if wanted != "auto" or _has_rank(candidate.shape, residual, draws):
            return candidate
        dense = dense._replace(
            words=f"{_dense(N, M).words} Its pattern would be {candidate.words.split(':')[0]}, but "
            "the derivative with respect to some local input vanishes."
        )
    if wanted != "auto":
        raise ModelError(
            f"structure={wanted!r} does not fit: the constraints do not couple the inputs in that "
            "way. Leave it out; `posterior.structure` then says what was found."
        )
    return dense


def _chart(pattern, groups, residual, draws) -> Candidate:
    """A split into coordinates and noise that can be solved for."""
    reason = "each needs noise of its own, as many noises as observed values"
    for candidate in _square_splits(pattern, groups):
        shape = candidate.shape
        assert isinstance(shape, AbstractSplit)
        try:
            is_affine = _is_affine(shape, residual, draws)
        except Exception as error:  # asdex raises many kinds
            reason = f"whether noise enters as a summand cannot be read ({_brief(error)})"
            continue
        if not is_affine:
            reason = "noise must enter as a summand, with a factor or without"
        elif not _has_rank(shape, residual, draws):
            reason = "the derivative of an observed value with respect to its noise vanishes"
        else:
            N, M = pattern.shape
            cost = "a gradient"
            if isinstance(shape, Blocks):
                cost += f" and factors of {shape.rows.shape[1]} × {shape.rows.shape[1]} blocks"
            return candidate._replace(
                words=f"chart: {M - N} coordinates, with which the noise of {N} observed values is "
                f"solved for; a step costs about {cost}."
            )
    raise ModelError(
        "structure='chart' solves for noise in every observed value (location + scale * noise), "
        f"which does not fit: {reason}. Leave structure out; `posterior.structure` then says what "
        "was found."
    )


def _is_affine(shape: AbstractSplit, residual, draws) -> bool:
    """Whether no element of B depends on local inputs, so that they enter as summands.

    Read off the function, in reverse, where what each input contributes stays apart: forward, the
    zeros of a tangent count as numbers like others. A function made of affine pieces passes that,
    so that it is also looked at from both sides of zero, near it and far.
    """
    local = shape.local_inputs
    u = draws[0]

    def columns_of_B(n):
        value, pull_back = jax.vjp(lambda n: residual(local.put(u, n)), n)
        return pull_back(np.ones(value.shape))[0]

    if _pattern(columns_of_B, np.zeros(local.flat.size)).nnz:
        return False

    found = np.asarray(_departures(residual, shape, draws))
    return bool(np.all(found[np.isfinite(found)] < _AFFINE))


@jit_fast_compile
def _departures(residual, shape: AbstractSplit, draws):
    """How far the residual is from a linear function of the noise, at several sizes of it."""
    local = shape.local_inputs

    def departures(u):
        noise = local.take(u).ravel()
        value, push = jax.linearize(lambda n: residual(local.put(u, n)), 0.0 * noise)

        def departure(size):
            exact = residual(local.put(u, size * noise))
            return jnp.max(jnp.abs(exact - value - push(size * noise)))

        scale = jnp.max(jnp.abs(value)) + jnp.max(jnp.abs(push(noise)))
        return jnp.stack([departure(size) for size in (1.0, -1.0, 4.0, -4.0)]) / scale

    return jax.lax.map(departures, draws)


def _square_splits(pattern: Any, groups: np.ndarray) -> Iterator[Candidate]:
    """Those in which as many local inputs as constraints couple with nothing else.

    Noise are some of the named inputs, and rather those that few constraints see.
    """
    by_column = pattern.tocsc()
    counts = np.diff(by_column.indptr)
    sizes = np.bincount(groups, weights=counts > 0).astype(int)
    width = np.bincount(groups, weights=counts) / np.maximum(sizes, 1)
    names = [group for group in np.argsort(width, kind="stable") if sizes[group]][:_MOST_NAMES]
    chosen = [
        some
        for number in range(1, len(names) + 1)
        for some in itertools.combinations(names, number)
        if sum(sizes[group] for group in some) == pattern.shape[0]
    ]
    for some in sorted(chosen, key=lambda some: max(width[group] for group in some)):
        local = (counts > 0) & np.isin(groups, some)
        yield from _split(by_column, np.flatnonzero(~local), np.flatnonzero(local), 1)


def _brief(error: Exception) -> str:
    return str(error).split(". ")[0].splitlines()[0] + "."


@functools.cache
def _reader_is_missing() -> str | None:
    """Why asdex cannot be imported, if so. It is told once, as it concerns every model."""
    try:
        importlib.import_module("asdex")
    except Exception as error:  # an ImportError, or what its use of JAX's internals raises
        warnings.warn(
            f"asdex cannot be imported ({_brief(error)}), so that no structure is found in any "
            "model and each is treated as dense, which is slow for hundreds of observed values. "
            "pip install 'jax<0.12' asdex",
            StructureWarning,
            stacklevel=5,
        )
        return _brief(error)
    return None


def _pattern(residual, u):
    # Imported where the pattern is looked for, as it takes a while.
    import asdex
    from scipy.sparse import csr_array

    found = asdex.jacobian_sparsity(lambda u: residual(u), np.zeros(u.shape))
    ones = np.ones(found.nnz, dtype=np.int8)
    return csr_array((ones, (np.asarray(found.rows), np.asarray(found.cols))), shape=found.shape)


def _has_rank(shape: AbstractStructure, residual, draws) -> bool:
    """Whether no pivot of B is far smaller than they usually are, at draws from the prior."""
    assert isinstance(shape, AbstractSplit)
    sizes = np.abs(np.asarray(_pivots(residual, shape, draws)))
    sizes = sizes[np.all(np.isfinite(sizes), axis=1)]
    return not sizes.size or bool(np.min(sizes) > _VANISHING * np.median(sizes))


@jit_fast_compile
def _pivots(residual, shape: AbstractSplit, draws):
    def pivots(u):
        _, B = shape.pieces(residual, u)
        return shape.local(B).pivots()

    return jax.lax.map(pivots, draws)


def _dense(N: int, M: int) -> Candidate:
    cost = float(N) ** 2 * M
    words = f"dense: {N} constraints on {M} inputs; a step costs about N²M = {cost:.0e} operations."
    return Candidate(Dense.for_size(N, M), cost, words)


def _candidates(pattern: Any, groups: np.ndarray) -> Iterator[Candidate]:
    N: int = pattern.shape[0]
    by_column = pattern.tocsc()
    counts = np.diff(by_column.indptr)
    width = np.bincount(groups, weights=counts) / np.bincount(groups)
    used = np.flatnonzero(counts)
    # The most widely shared first: by the named input's mean, then by the element's own count.
    order = used[np.lexsort((-counts[used], -width[groups[used]]))]
    tried = set()
    for threshold in sorted(set(width[groups[used]])) + [2**k for k in range(N.bit_length())]:
        for spread in (width[groups], counts):
            shared = np.flatnonzero((spread > threshold) & (counts > 0))
            if shared.tobytes() not in tried:
                tried.add(shared.tobytes())
                yield from _blocks(by_column, shared, used)
    if pattern.nnz <= _MOST_NONZEROS:
        yield from _triangle(pattern, by_column, order)


def _blocks(by_column, shared: np.ndarray, used: np.ndarray) -> Iterator[Candidate]:
    """Groups of rows that no local input connects."""
    N, L = by_column.shape[0], len(shared)
    local = np.setdiff1d(used, shared)
    if 0 < L < N and len(local) >= N:
        yield from _split(by_column, shared, local)


def _split(
    by_column, shared: np.ndarray, local: np.ndarray, fewest_groups: int = 2
) -> Iterator[Candidate]:
    from scipy.sparse.csgraph import connected_components, maximum_bipartite_matching

    N, L = by_column.shape[0], len(shared)
    B = by_column[:, local].tocsr()
    if np.any(maximum_bipartite_matching(B, perm_type="column") < 0):
        return  # some rows could not be met by local inputs alone
    K, labels = connected_components(_bipartite(B), directed=False)
    rows, inputs = labels[:N], labels[N:]
    r, w = np.bincount(rows, minlength=K).max(), np.bincount(inputs, minlength=K).max()
    if fewest_groups > K:
        return
    indices = Indices(shared)
    if r == w == 1:
        mine = np.empty(N, dtype=int)
        mine[B.tocoo().row] = local[B.tocoo().col]
        yield Candidate(
            Elementwise(indices, Indices(mine)),
            N * float(L + 1) ** 2,
            f"elementwise: {N} constraints, each with a local input of its own, and {L} shared "
            f"inputs; a step costs about N(L+1)² = {N * (L + 1.0) ** 2:.0e} operations "
            f"({_saved(by_column)}).",
        )
        return
    cost = K * float(r) ** 2 * w + K * r * float(L + min(w, 2 * r)) * (L + 1)
    yield Candidate(
        Blocks(indices, _grouped(local, inputs, K, w), _grouped(np.arange(N), rows, K, r), N),
        cost,
        f"blocks: {N} constraints in {K} groups of at most {r}, each with at most {w} local inputs "
        f"of its own, and {L} shared inputs; a step costs about {cost:.0e} operations "
        f"({_saved(by_column)}).",
    )


def _saved(by_column) -> str:
    N, M = by_column.shape
    return f"dense: {float(N) ** 2 * M:.0e}"


def _bipartite(B: Any) -> Any:
    N, K = B.shape
    coo = B.tocoo()
    return type(B)((coo.data, (coo.row, N + coo.col)), shape=(N + K, N + K))


def _grouped(members: np.ndarray, labels: np.ndarray, num_groups: int, longest: int) -> Indices:
    """The members of each group as a row, filled up."""
    table = np.full((num_groups, longest), PAD)
    order = np.argsort(labels, kind="stable")
    labels = labels[order]
    place = np.arange(len(labels)) - np.searchsorted(labels, labels)
    table[labels, place] = members[order]
    return Indices(table)


def _triangle(by_row: Any, by_column: Any, order: np.ndarray) -> Iterator[Candidate]:
    """Rows in an order in which each sees one local input that none before it saw.

    While no row has just one left, the most widely shared of those left is called shared.
    """
    N, M = by_row.shape
    left = np.diff(by_row.indptr)  # local inputs of each row that have no row yet
    is_left = np.zeros(M, dtype=bool)
    is_left[order] = True
    candidates = iter(order)
    ready = collections.deque(np.flatnonzero(left == 1))
    rows, local, shared = [], [], []

    def settle(column):
        is_left[column] = False
        for row in by_column.indices[by_column.indptr[column] : by_column.indptr[column + 1]]:
            left[row] -= 1
            if left[row] == 1:
                ready.append(row)

    while len(rows) < N:
        if not ready:
            column = next((c for c in candidates if is_left[c]), None)
            if column is None:
                return
            shared.append(column)
            settle(column)
            continue
        row = ready.popleft()
        if left[row] != 1:
            return  # two rows for one input
        columns = by_row.indices[by_row.indptr[row] : by_row.indptr[row + 1]]
        column = columns[is_left[columns]][0]
        rows.append(row)
        local.append(column)
        settle(column)
    shared += list(np.flatnonzero(is_left))
    L = len(shared)
    if not 0 < L < N:
        return
    cost = float(N) ** 2 * (L + 1)
    yield Candidate(
        Triangular(Indices(np.sort(shared)), Indices(local), Indices(rows)),
        cost,
        f"triangular: {N} constraints, each with one more local input than those before it, and "
        f"{L} shared inputs; a step costs about N²(L+1) = {cost:.0e} operations "
        f"({_saved(by_column)}).",
    )
