"""Many independent simulations, in batches, a thread for each core."""

import contextlib
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

from coarea.execution.run import num_cores
from coarea.precision import computing_in
from coarea.xla import calls_lapack, jit_bounded, one_blas_thread, sequential_vmap_on_cpu

# Numbers that a batch of simulations draws: they stay in a core's cache.
_NUMBERS = 2**17


def batch_size(num_inputs: int) -> int:
    """How many simulations of so many inputs to make at once."""
    if jax.default_backend() != "cpu":
        return max(1, 2**26 // num_inputs)
    return max(1, min(4096, _NUMBERS // num_inputs))


@jit_bounded
def _mapped(function, rows, calls_lapack: bool):
    return sequential_vmap_on_cpu(function)(rows) if calls_lapack else jax.vmap(function)(rows)


def map_batches(
    function: Callable[[Any], Any],
    rows: Any,
    batch: int,
    each: Callable[[Any, slice], None] | None = None,
    partial: bool = False,
) -> tuple[Any, int]:
    """`function` of each row, as NumPy arrays, and of how many rows.

    `function` is a pytree with arrays for what changes (a bound method of a module), so that it is
    compiled once. With `each`, results are handed to it batch by batch, in order, and not kept.
    Ctrl-C ends it; if some will do (`partial`), with those that are there.
    """
    count = jax.tree.leaves(rows)[0].shape[0]
    first_row = jax.tree.map(lambda x: x[0], rows)
    with_lapack = calls_lapack(function, first_row)
    threads = 1 if with_lapack else num_cores()
    kept = []

    def work(first):
        # All batches have one size, so that they need one program: the last is filled up.
        end = min(first + batch, count)
        which = np.minimum(np.arange(first, first + batch), count - 1)
        part = jax.tree.map(lambda x: x[which], rows)
        with computing_in("float64"):
            found = _mapped(function, part, with_lapack)
        return jax.tree.map(lambda x: np.asarray(x)[: end - first], found)

    done = 0
    firsts = range(0, count, batch)
    with one_blas_thread(), ThreadPoolExecutor(threads) as pool:
        try:
            # The first batch compiles the program; the others then find it ready.
            pending = deque([pool.submit(work, 0)])
            pending[0].result()
            pending.extend(pool.submit(work, first) for first in firsts[1:])
            for first in firsts:
                found = pending.popleft().result()
                done = min(first + batch, count)
                if each is None:
                    kept.append(found)
                else:
                    each(found, slice(first, done))
        except KeyboardInterrupt:
            with contextlib.suppress(KeyboardInterrupt):
                pool.shutdown(cancel_futures=True)
            if not (partial and done):
                raise
    if each is not None:
        return None, done
    return jax.tree.map(lambda *x: np.concatenate(x), *kept), done
