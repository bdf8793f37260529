"""Run many independent simulations in batches, with one thread per core."""

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

# Random numbers drawn by one batch of simulations. This many fit in a core's cache.
_NUMBERS = 2**17


def batch_size(num_inputs: int) -> int:
    """The number of simulations to run in one batch, for a model with `num_inputs` inputs."""
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
    """Apply `function` to each row; return the results as NumPy arrays, and the number of rows.

    `function` is a pytree (a bound method of a module) that holds whatever changes as arrays, so
    that it is compiled once. With `each`, every batch of results is passed to `each`, in order, and
    is not stored. Ctrl-C interrupts; with `partial`, the rows that are done are then returned.
    """
    count = jax.tree.leaves(rows)[0].shape[0]
    first_row = jax.tree.map(lambda x: x[0], rows)
    with_lapack = calls_lapack(function, first_row)
    threads = 1 if with_lapack else num_cores()
    kept = []

    def work(first):
        # The last batch is padded: all batches then have one size and share one compiled program.
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
            # Wait for the first batch to compile the program, so that it is compiled only once.
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
