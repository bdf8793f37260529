"""The structures that fit a sparsity pattern, with the cost of a step for each."""

import collections
import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from coarea.jacobians.blocks import Blocks
from coarea.jacobians.dense import Dense
from coarea.jacobians.elementwise import Elementwise
from coarea.jacobians.indices import PAD, Indices
from coarea.jacobians.structure import AbstractStructure
from coarea.jacobians.triangular import Triangular

# No triangular order is searched for if there are more nonzero elements than this.
_MOST_NONZEROS = 2_000_000


# All combinations of up to this many named inputs are tried as noise.
_MOST_NAMES = 12


class Candidate(NamedTuple):
    """A structure, its approximate cost in operations per step, and a description."""

    structure: AbstractStructure
    cost: float
    words: str


def square_splits(pattern: Any, groups: np.ndarray) -> Iterator[Candidate]:
    """Candidates with as many local inputs as constraints, which a chart needs.

    The local inputs are the noise, and are all elements of some of the named inputs. Combinations
    of inputs that few constraints depend on come first.
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


def dense_candidate(N: int, M: int) -> Candidate:
    """The dense structure, which fits every pattern."""
    cost = float(N) ** 2 * M
    words = f"dense: {N} constraints on {M} inputs; a step costs about N²M = {cost:.0e} operations."
    return Candidate(Dense(N, M), cost, words)


def all_candidates(pattern: Any, groups: np.ndarray) -> Iterator[Candidate]:
    """All candidates other than dense that the pattern allows."""
    N: int = pattern.shape[0]
    by_column = pattern.tocsc()
    counts = np.diff(by_column.indptr)
    width = np.bincount(groups, weights=counts) / np.bincount(groups)
    used = np.flatnonzero(counts)
    # Sort by the number of dependent constraints, largest first: by the mean over the named input,
    # then by the element's own count.
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
    """Candidates whose rows form groups that no local input connects."""
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
        return  # local inputs alone cannot satisfy some rows
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
    """A padded table whose rows are the members of each group."""
    table = np.full((num_groups, longest), PAD)
    order = np.argsort(labels, kind="stable")
    labels = labels[order]
    place = np.arange(len(labels)) - np.searchsorted(labels, labels)
    table[labels, place] = members[order]
    return Indices(table)


def _triangle(by_row: Any, by_column: Any, order: np.ndarray) -> Iterator[Candidate]:
    """A candidate whose rows are ordered so that each depends on one new local input.

    If no row has exactly one unassigned local input, the unassigned input that most constraints
    depend on becomes a shared input.
    """
    N, M = by_row.shape
    left = np.diff(by_row.indptr)  # number of unassigned local inputs of each row
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
            return  # two rows need the same local input
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
