"""A transition of a chain on a target: its next draw, what is recorded, and the adaptation."""

from typing import NamedTuple

import equinox as eqx
import jax
from jaxtyping import Array, Bool, Float, Int, Key
from typing_extensions import override

from coarea.adaptation.plan import Plan
from coarea.adaptation.warmup import Adaptation, AdaptedParameters
from coarea.dynamics.integrator import PhaseState
from coarea.execution.blocks import AbstractTransition, Block, for_each_chain
from coarea.execution.recording import recorded
from coarea.kernels.kernel import TransitionInfo
from coarea.manifolds.rescaling import Rescaling
from coarea.manifolds.target import AbstractReporter, AbstractTarget
from coarea.xla import jit_fast_compile


class ChainState(NamedTuple):
    """Everything that one chain carries from one block to the next."""

    key: Key[Array, ""]
    state: PhaseState
    adaptation: Adaptation


class FinalState(NamedTuple):
    """Where a chain is and what it has adapted (None: nothing yet): enough to go on from."""

    position: Float[Array, " M"]
    adapted: AdaptedParameters | None


class TransitionStats(NamedTuple):
    """What is recorded of a transition, by the names ArviZ and its users know."""

    acceptance_rate: Float[Array, ""]
    diverging: Bool[Array, ""]
    energy: Float[Array, ""]
    lp: Float[Array, ""]
    n_steps: Int[Array, ""]
    tree_depth: Int[Array, ""]
    step_size: Float[Array, ""]
    convergence_error: Bool[Array, ""]
    non_reversible_step: Bool[Array, ""]
    constraint_error: Float[Array, ""]


@jit_fast_compile
def begin(
    plan: Plan,
    target: AbstractTarget,
    keys: Key[Array, " chains"],
    u: Float[Array, "chains M"],
    adapted: AdaptedParameters | None,
) -> ChainState:
    """Chains at their start points, with what an earlier run has adapted."""

    def one(key, u, adapted):
        warmup = plan.warmup
        adaptation = warmup.init(u) if adapted is None else warmup.resume(adapted, u.size)
        state = _init(plan, target, u, adaptation.rescaling)
        return ChainState(key, state, adaptation)

    return for_each_chain(one)(keys, u, adapted)


@jit_fast_compile
def end(plan: Plan, chains: ChainState) -> FinalState:
    """What is needed to take the chains up again later."""

    def one(chain: ChainState):
        u = chain.adaptation.rescaling.to_model_space(chain.state.position)
        return FinalState(u, plan.adapted(chain.adaptation))

    return for_each_chain(one)(chains)


def transition(
    plan: Plan, target: AbstractTarget, chain: ChainState, number: Int[Array, ""]
) -> tuple[ChainState, Float[Array, " M"], TransitionStats]:
    """A chain after its next transition (the first has number 0), its draw, and how it went."""
    tuning = plan.tuning(chain.adaptation, number)
    key = jax.random.fold_in(chain.key, number)
    rescaling = chain.adaptation.rescaling
    state, info = plan.kernel.step(rescaled(target, rescaling), key, chain.state, tuning)
    u = rescaling.to_model_space(state.position)
    adaptation = plan.warmup.update(chain.adaptation, info, u, number)
    stats = stats_of(state, info, tuning.step_size, target.constraint_error(u))
    if not rescaling.is_identity:
        state = _in_new_window(plan, target, state, u, adaptation.rescaling, number)
    return ChainState(chain.key, state, adaptation), u, stats


class ExactTransition(AbstractTransition):
    """Draws from a target on its manifold."""

    plan: Plan
    target: AbstractTarget
    reporter: AbstractReporter
    keep_inputs: bool = eqx.field(static=True)
    longest_block: int = eqx.field(static=True)
    fuse: bool = eqx.field(static=True, default=False)

    @property
    @override
    def is_lockstep(self):
        """Trajectories have one length, and no solver iterates for longer than another."""
        kernel = self.plan.kernel
        return kernel.has_common_length and not kernel.integrator_for(self.target).is_iterative

    @override
    def draw(self, chain, number):
        chain, u, stats = transition(self.plan, self.target, chain, number)
        return chain, Block(*recorded(self.reporter, u, self.keep_inputs), stats)


def rescaled(target: AbstractTarget, rescaling: Rescaling) -> AbstractTarget:
    """The target in sampler space."""
    return target if rescaling.is_identity else target.rescale(rescaling)


def _init(plan: Plan, target: AbstractTarget, u, rescaling: Rescaling) -> PhaseState:
    """The state at a position of model space."""
    return plan.kernel.init(rescaled(target, rescaling), rescaling.to_sampler_space(u))


def _in_new_window(plan, target, state, u, rescaling, number) -> PhaseState:
    """The state with a new window's rescaling, if one begins.

    The loop is entered at most once; under `vmap` it costs nothing where no chain enters it.
    """

    def initialise(carry):
        return False, _init(plan, target, u, rescaling)

    begins = (number < plan.warmup.length) & plan.warmup.starts_window(number)
    return jax.lax.while_loop(lambda carry: carry[0], initialise, (begins, state))[1]


def stats_of(state: PhaseState, info: TransitionInfo, step_size, error) -> TransitionStats:
    """The record of a transition."""
    return TransitionStats(
        acceptance_rate=info.acceptance_rate,
        diverging=info.is_divergent,
        energy=info.energy,
        lp=state.logdensity,
        n_steps=info.num_integration_steps,
        tree_depth=info.tree_depth,
        step_size=step_size,
        convergence_error=info.convergence_error,
        non_reversible_step=info.non_reversible_step,
        constraint_error=error,
    )
