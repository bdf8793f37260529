"""Warm-up in rounds: all groups of chains make some transitions, then the adaptation is updated."""

from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from coarea.adaptation.efficiency import quantities
from coarea.adaptation.pooled import Records, Round, Tuned
from coarea.execution.blocks import Block
from coarea.execution.progress import BlockReport
from coarea.execution.run import Group, if_it_fuses, num_cores
from coarea.execution.scheduled import (
    ScheduledChain,
    ScheduledTransition,
    begin_scheduled,
    positions_of,
)
from coarea.precision import Precision, computing_in

# Of more chains on one device, warm-up reads so many.
_MOST_READ = 256


def run_rounds(
    transition: ScheduledTransition,
    groups: Sequence[Group],
    rounds: Generator[Round, Records, Tuned],
    num_chains: int,
    precision: Precision,
    report: Callable[[BlockReport], None],
) -> tuple[ScheduledTransition, Tuned]:
    """Run the rounds that a warm-up asks for; the transition with what they found."""

    def work(group: Group):
        with computing_in(precision), group.place.active():
            return group.advance_round(transition, asked.length, _MOST_READ)

    with ThreadPoolExecutor(min(num_cores(), len(groups))) as pool:
        try:
            asked = next(rounds)
            is_first, transition = True, if_it_fuses(transition, groups[0], precision)
            while True:
                transition = _with_schedule(transition, asked, groups, precision)
                # At first, one group compiles the program; the others then find it ready.
                alone = 1 if is_first else 0
                found = [pool.submit(work, group).result() for group in groups[:alone]]
                found += list(pool.map(work, groups[alone:]))
                is_first = False
                for _, block_report in found:
                    report(block_report)
                asked = rounds.send(_records([block for block, _ in found], num_chains))
        except StopIteration as end:
            tuned: Tuned = end.value
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                "interrupted during warm-up: no draw had been made yet."
            ) from None
    return _with_schedule(transition, Round(tuned.schedule, 0), groups, precision), tuned


def _records(blocks: Sequence[Block], num_chains: int) -> Records:
    """What the chains of all groups brought; those that only pad a group do not count."""
    block: Any = jax.tree.map(lambda *x: np.concatenate(x)[:num_chains], *blocks)
    trail, stats = block.trail, block.stats
    return Records(
        values=quantities(block.latents or block.inputs),
        acceptance_rate=stats.acceptance_rate,
        diverged=stats.diverging & ~(stats.convergence_error | stats.non_reversible_step),
        num_steps=stats.n_steps,
        projections=trail.projections,
        positions=trail.position,
        gradients=trail.gradient,
    )


def _with_schedule(
    transition: ScheduledTransition, asked: Round, groups: Sequence[Group], precision: Precision
) -> ScheduledTransition:
    """The transition with another schedule. Chains begin anew if their positions are rescaled."""
    before, now = transition.schedule.rescaling, asked.schedule.rescaling
    if before is not now:
        for group in groups:
            with computing_in(precision), group.place.active():
                chains: ScheduledChain = group.begin()
                u = positions_of(chains, before)
                group.chains = begin_scheduled(
                    transition.kernel, transition.target, chains.key, u, now
                )
    return replace(transition, schedule=asked.schedule)
