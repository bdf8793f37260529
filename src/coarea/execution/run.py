"""Groups of chains on the machine's cores, block by block, until done or interrupted."""

import contextlib
import logging
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from coarea.execution.blocks import AbstractTransition, Block, advance, compile_advance
from coarea.execution.places import Place
from coarea.execution.progress import BlockReport
from coarea.precision import Precision, computing_in

# Long enough that starting a block costs nothing, short enough for progress to be seen.
_SECONDS_PER_BLOCK = 0.2
# From an accelerator a block travels as a whole, valid or not: few that are full are better.
_SECONDS_PER_BLOCK_THAT_TRAVELS = 2.0

T = TypeVar("T")


class RunResult(NamedTuple):
    """The draws of a run, what stopped it early (None: nothing), and how many there are."""

    block: Block
    stopped: BaseException | None
    seen: str


def gather(groups: Sequence[Block], chains: int) -> Block:
    """All groups' draws as one, axes (chain, draw, …), cut to the shortest chain."""
    shortest = min(block.stats.acceptance_rate.shape[1] for block in groups)
    cut = [jax.tree.map(lambda x: x[:chains, :shortest], block) for block in groups]
    # With thousands of chains copying is what takes time: those of one group are left as they are.
    return cut[0] if len(cut) == 1 else joined(cut, chains)


def joined(parts: Sequence[T], chains: int) -> T:
    """Groups' arrays with a row for each chain as one."""
    return jax.tree.map(lambda *x: np.concatenate(x)[:chains], *parts)


class Group:
    """Chains that advance together, and what they have brought so far."""

    def __init__(self, place: Place, begin: Callable[[], Any], warmup: int, draws: int):
        self.place = place
        self._begin = begin
        self.chains: Any = None
        self._warmup, self._total = warmup, warmup + draws
        self._done, self._count = 0, 1
        self._kept: Block | None = None
        # Copying takes as long as an accelerator takes for the next block: it is done beside it.
        self._copier = ThreadPoolExecutor(1)
        self._last_copy: Future | None = None

    @property
    def finished(self) -> bool:
        """Whether all transitions are done."""
        return self._done == self._total

    @property
    def num_draws(self) -> int:
        """How many draws of each chain there are."""
        return max(0, self._done - self._warmup)

    def begin(self) -> Any:
        """The chains, at their start points if nothing has been run yet."""
        if self.chains is None:
            self.chains = self._begin()
        return self.chains

    def advance_round(
        self, transition: AbstractTransition, count: int, most_read: int
    ) -> tuple[Block, BlockReport]:
        """Make `count` more transitions of warm-up; what the first `most_read` chains brought."""
        pieces, rates, failed, left = [], 0.0, 0, count
        while left:
            number = min(left, transition.longest_block)
            block = self._advance(transition, number)
            if self.place.is_accelerator:
                block = jax.tree.map(lambda x: x[:most_read], block)
            block = jax.tree.map(lambda x: np.asarray(x)[:most_read, :number], block)  # noqa: B023
            pieces.append(block)
            rates += float(block.stats.acceptance_rate.sum())
            failed += int(block.stats.diverging.sum())
            self._warmup, self._total = self._warmup + number, self._total + number
            self._done, left = self._done + number, left - number
        whole = jax.tree.map(lambda *x: np.concatenate(x, axis=1), *pieces)
        transitions = whole.stats.diverging.size
        return whole, BlockReport(True, transitions, rates, failed)

    def _advance(self, transition: AbstractTransition, count: int) -> Block:
        chains, block = jax.block_until_ready(
            advance(transition, self.begin(), jnp.asarray(self._done), jnp.asarray(count))
        )
        self.chains = chains
        return block

    def advance(self, transition: AbstractTransition) -> BlockReport:
        """Run one block; its length follows the pace of the last one."""
        is_warmup = self._done < self._warmup
        count = min(self._count, (self._warmup if is_warmup else self._total) - self._done)
        began = time.perf_counter()
        block = self._advance(transition, count)
        pace = (time.perf_counter() - began) / count
        travels = self.place.is_accelerator
        seconds = _SECONDS_PER_BLOCK_THAT_TRAVELS if travels else _SECONDS_PER_BLOCK
        self._count = int(np.clip(seconds / pace, 1, transition.longest_block))
        if not is_warmup:
            self._wait_for_copy()
            kept = block._replace(trail=None)
            self._last_copy = self._copier.submit(self._copy, kept, self.num_draws, count)
        self._done += count
        # What is not valid is zero. Where arrays travel, only the sums do here.
        rates, failed = block.stats.acceptance_rate, block.stats.diverging
        if not travels:
            rates, failed = np.asarray(rates), np.asarray(failed)
        return BlockReport(is_warmup, len(rates) * count, float(rates.sum()), int(failed.sum()))

    def draws(self) -> Block:
        """All draws made so far, axes (chain, draw, …)."""
        self._wait_for_copy()
        self._copier.shutdown()
        return jax.tree.map(lambda x: x[:, : self.num_draws], self._kept)

    def _wait_for_copy(self) -> None:
        if self._last_copy is not None:
            self._last_copy.result()

    def _copy(self, block: Block, at: int, count: int) -> None:
        """Put the first draws of a block where they, after so many earlier ones, belong."""
        if self._kept is None:
            num_draws = self._total - self._warmup
            self._kept = jax.tree.map(
                lambda x: np.empty((x.shape[0], num_draws, *x.shape[2:]), x.dtype), block
            )

        def put(whole, part):
            whole[:, at : at + count] = part[:, :count]

        wholes, parts = map(jax.tree.leaves, (self._kept, self.place.fetched(block)))
        # From an accelerator these are gigabytes, and one thread would take longer than the chains.
        with ThreadPoolExecutor(num_cores() if self.place.is_accelerator else 1) as pool:
            list(pool.map(put, wholes, parts))


def num_cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def draw(
    transition: AbstractTransition,
    groups: Sequence[Group],
    chains: int,
    draws: int,
    precision: Precision,
    report: Callable[[BlockReport], None],
) -> tuple[RunResult, list[Group]]:
    """All draws of all groups, and the groups that brought some: all, unless it ended early."""
    stopped = _run(transition, groups, precision, report)
    drawn = [group for group in groups if group.num_draws]
    if not drawn and isinstance(stopped, KeyboardInterrupt):
        raise KeyboardInterrupt("interrupted during warm-up: no draw had been made yet.")
    if not drawn:
        assert stopped is not None
        raise stopped
    block = gather([group.draws() for group in drawn], chains)
    num_chains, num_draws = block.stats.acceptance_rate.shape
    seen = f"{num_draws} of {draws} draws from {num_chains} of {chains} chains"
    return RunResult(block, stopped, seen), drawn


def _run(transition, groups, precision, report) -> BaseException | None:
    """Run all groups concurrently, a block at a time; return what stopped them early, if anything.

    An interrupt or an error lets the blocks that are under way finish; their draws are kept.
    """

    def work(group: Group) -> BlockReport:
        with computing_in(precision), group.place.active():
            return group.advance(transition)

    def begin() -> BlockReport:
        """The first block compiles the program; the other groups then find it ready."""
        nonlocal transition
        transition = if_it_fuses(transition, groups[0], precision)
        return work(groups[0])

    pending: dict[Future, Group] = {}
    with ThreadPoolExecutor(min(num_cores(), len(groups))) as pool:
        try:
            report(pool.submit(begin).result())
            pending = {pool.submit(work, group): group for group in groups if not group.finished}
            while pending:
                done, _ = wait(pending, return_when=FIRST_COMPLETED)
                for future in done:
                    group = pending.pop(future)
                    report(future.result())
                    if not group.finished:
                        pending[pool.submit(work, group)] = group
        except (KeyboardInterrupt, Exception) as stop:
            with contextlib.suppress(KeyboardInterrupt):  # of somebody who presses it again
                pool.shutdown(cancel_futures=True)
            return stop
    return None


A = TypeVar("A", bound=AbstractTransition)


def compiled_for(transition: A, chains: Any) -> A:
    """The transition, compiled; as ordinary kernels if the compiler refuses to fuse them.

    `chains` may be shapes. Fusion relies on an undocumented feature of XLA. What fails while
    running is not caught.
    """
    if not transition.fuse:
        compile_advance(transition, chains)
        return transition
    try:
        compile_advance(transition, chains)
    except jax.errors.JaxRuntimeError as error:
        logging.getLogger("coarea").warning(
            "XLA could not compile the transitions as one kernel (%s): they run as many, which is "
            "slower for small models.",
            str(error).split("\n")[0],
        )
        return compiled_for(replace(transition, fuse=False), chains)
    return transition


def if_it_fuses(transition: A, group: Group, precision: Precision) -> A:
    """The transition, not fused if the compiler refuses that."""
    if not transition.fuse:
        return transition
    with computing_in(precision), group.place.active():
        return compiled_for(transition, group.begin())
