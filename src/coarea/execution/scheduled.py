"""Transitions whose settings follow a schedule that all chains share."""

from typing import NamedTuple

import equinox as eqx
import jax
from jaxtyping import Array, Float, Key
from typing_extensions import override

from coarea.adaptation.schedule import Schedule
from coarea.dynamics.integrator import PhaseState
from coarea.execution.blocks import AbstractTransition, Block, for_each_chain
from coarea.execution.recording import recorded
from coarea.execution.transitions import rescaled, stats_of
from coarea.kernels.kernel import AbstractKernel
from coarea.manifolds.rescaling import Rescaling
from coarea.manifolds.target import AbstractReporter, AbstractTarget
from coarea.xla import jit_fast_compile


class ScheduledChain(NamedTuple):
    """Everything that one chain carries from one block to the next."""

    key: Key[Array, ""]
    state: PhaseState


class Trail(NamedTuple):
    """What warm-up reads of a transition. The gradient is that of sampler space."""

    projections: Array
    position: Float[Array, " M"] | None
    gradient: Float[Array, " M"] | None


class ScheduledTransition(AbstractTransition):
    """Draws from a target with the settings of a schedule."""

    kernel: AbstractKernel
    target: AbstractTarget
    reporter: AbstractReporter
    schedule: Schedule
    keep_inputs: bool = eqx.field(static=True)
    records_positions: bool = eqx.field(static=True)
    longest_block: int = eqx.field(static=True)
    fuse: bool = eqx.field(static=True, default=False)

    @property
    @override
    def is_lockstep(self):
        """Trajectories have one length, but for rare second tries, and no solver iterates."""
        return not self.kernel.integrator_for(self.target).is_iterative

    @override
    def draw(self, chain, number):
        rescaling = self.schedule.rescaling
        tuning = self.schedule.tuning(number)
        key = jax.random.fold_in(chain.key, number)
        state, info = self.kernel.step(rescaled(self.target, rescaling), key, chain.state, tuning)
        u = rescaling.to_model_space(state.position)
        stats = stats_of(state, info, tuning.step_size, self.target.constraint_error(u))
        watched = (u, state.force) if self.records_positions else (None, None)
        assert info.work is not None
        block = Block(
            *recorded(self.reporter, u, self.keep_inputs), stats, Trail(info.work, *watched)
        )
        return ScheduledChain(chain.key, state), block


@jit_fast_compile
def begin_scheduled(
    kernel: AbstractKernel,
    target: AbstractTarget,
    keys: Key[Array, " chains"],
    u: Float[Array, "chains M"],
    rescaling: Rescaling,
) -> ScheduledChain:
    """Chains at positions of model space."""

    def one(key, u):
        state = kernel.init(rescaled(target, rescaling), rescaling.to_sampler_space(u))
        return ScheduledChain(key, state)

    return for_each_chain(one)(keys, u)


@jit_fast_compile
def positions_of(chains: ScheduledChain, rescaling: Rescaling) -> Float[Array, "chains M"]:
    """Where chains are, in model space."""
    return jax.vmap(rescaling.to_model_space)(chains.state.position)
