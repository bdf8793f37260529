"""Running groups of chains on the machine's cores, block by block, until done or interrupted."""

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

import jax
import jax.numpy as jnp
import numpy as np

from coarea.manifolds import AbstractTarget
from coarea.precision import Precision, computing_in
from coarea.sampling.chains import Block, Chain, Plan, advance
from coarea.sampling.places import Place
from coarea.sampling.progress import Report

# Long enough that starting a block costs nothing, short enough for progress to be seen.
_SECONDS_PER_BLOCK = 0.2


class Group:
    """Chains that advance together, and what they have brought so far."""

    def __init__(self, place: Place, chains: Chain, warmup: int, draws: int, longest_block: int):
        self.place = place
        self.chains = chains
        self._longest_block = longest_block
        self.blocks: list[Block] = []
        self._warmup, self._total = warmup, warmup + draws
        self._done, self._count = 0, 1

    @property
    def finished(self) -> bool:
        """Whether all transitions are done."""
        return self._done == self._total

    def advance(self, plan: Plan, target: AbstractTarget) -> Report:
        """Run one block; its length follows the pace of the last one."""
        is_warmup = self._done < self._warmup
        count = min(self._count, (self._warmup if is_warmup else self._total) - self._done)
        began = time.perf_counter()
        chains, block = jax.block_until_ready(
            advance(plan, target, self.chains, jnp.asarray(self._done), jnp.asarray(count))
        )
        pace = (time.perf_counter() - began) / count
        self._count = int(np.clip(_SECONDS_PER_BLOCK / pace, 1, self._longest_block))
        self._done += count
        self.chains = chains
        if not is_warmup:
            # A copy: a view of a short block would keep the whole buffer alive.
            kept = jax.tree.map(lambda x: np.asarray(x)[:, :count].copy(), block)
            self.blocks.append(kept)
        stats = jax.tree.map(lambda x: np.asarray(x)[:, :count], block.stats)
        rates = stats.acceptance_rate
        failed = stats.convergence_error | stats.non_reversible_step
        return Report(is_warmup, rates.size, float(np.sum(rates)), int(np.sum(failed)))


def num_cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def run_groups(
    groups: Sequence[Group],
    plan: Plan,
    target: AbstractTarget,
    precision: Precision,
    report: Callable[[Report], None],
) -> bool:
    """Advance all groups in turn until each has its draws. False if interrupted by Ctrl-C.

    An interrupt lets the blocks that are under way finish; their draws are kept.
    """

    def work(group: Group) -> Report:
        with computing_in(precision), group.place.active():
            return group.advance(plan, target)

    pending: dict[Future, Group] = {}
    with ThreadPoolExecutor(min(num_cores(), len(groups))) as pool:
        try:
            # The first block compiles the program; the other groups then find it ready.
            report(pool.submit(work, groups[0]).result())
            pending = {pool.submit(work, group): group for group in groups if not group.finished}
            while pending:
                done, _ = wait(pending, return_when=FIRST_COMPLETED)
                for future in done:
                    group = pending.pop(future)
                    report(future.result())
                    if not group.finished:
                        pending[pool.submit(work, group)] = group
        except KeyboardInterrupt:
            with contextlib.suppress(KeyboardInterrupt):  # of somebody who presses it again
                pool.shutdown(cancel_futures=True)
            return False
    return True
