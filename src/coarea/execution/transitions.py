"""A transition of a chain on a manifold: its next draw, and what is learnt of it."""

from typing import NamedTuple

import equinox as eqx
import jax
from jaxtyping import Array, Bool, Float, Int, Key
from typing_extensions import override

from coarea.adaptation.warmup import Adaptation, AdaptedParameters, Warmup
from coarea.dynamics.rattle import PhaseState
from coarea.execution.blocks import AbstractTransition, Block, for_each_chain
from coarea.kernels.chmc import CHMC
from coarea.kernels.kernel import AbstractKernel, TransitionInfo, Tuning
from coarea.manifolds import AbstractTarget
from coarea.manifolds.target import to_model_space, to_sampler_space
from coarea.xla import jit_fast_compile


class ChainState(NamedTuple):
    """Everything that one chain carries from one block to the next."""

    key: Key[Array, ""]
    state: PhaseState
    adaptation: Adaptation


class FinalState(NamedTuple):
    """Where a chain is and what it has learnt (None: nothing yet): enough to go on from."""

    position: Float[Array, " M"]
    learnt: AdaptedParameters | None


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


class Plan(eqx.Module):
    """The kernel, and how it is tuned."""

    kernel: AbstractKernel
    warmup: Warmup
    given_step: Float[Array, ""] | None

    def tuning(self, adaptation: Adaptation, transition: Int[Array, ""]) -> Tuning:
        """What warm-up has reached, but the step size that the user gave."""
        tuning = self.warmup.tuning(adaptation, transition)
        return tuning if self.given_step is None else tuning._replace(step_size=self.given_step)

    def learnt(self, adaptation: Adaptation) -> AdaptedParameters:
        """What the draws are made with."""
        learnt = self.warmup.learnt(adaptation)
        return learnt if self.given_step is None else learnt._replace(step_size=self.given_step)


@jit_fast_compile
def begin(
    plan: Plan,
    target: AbstractTarget,
    keys: Key[Array, " chains"],
    u: Float[Array, "chains M"],
    learnt: AdaptedParameters | None,
) -> ChainState:
    """Chains at their start points, with what was learnt of them earlier."""

    def one(key, u, learnt):
        warmup = plan.warmup
        adaptation = warmup.init(target, u) if learnt is None else warmup.resume(learnt, u.size)
        state = plan.kernel.init(*_in_units(target, u, adaptation.units))
        return ChainState(key, state, adaptation)

    return for_each_chain(one)(keys, u, learnt)


@jit_fast_compile
def end(plan: Plan, chains: ChainState) -> FinalState:
    """How chains can be taken up again later."""

    def one(chain: ChainState):
        u = to_model_space(chain.state.position, chain.adaptation.units)
        return FinalState(u, plan.learnt(chain.adaptation))

    return for_each_chain(one)(chains)


def kept_of(target: AbstractTarget, u: Float[Array, " M"], keep_inputs: bool):
    """What is kept of a position: latents, and inputs if they are wanted."""
    latents = {name: x for name, x in target.latents(u).items() if name not in target.fixed}
    return latents, target.inputs(u) if keep_inputs else None


def transition(
    plan: Plan, target: AbstractTarget, chain: ChainState, number: Int[Array, ""]
) -> tuple[ChainState, Float[Array, " M"], TransitionStats]:
    """A chain's next draw, what is learnt of it, and how it went. Its first has number 0."""
    tuning = plan.tuning(chain.adaptation, number)
    key = jax.random.fold_in(chain.key, number)
    units = chain.adaptation.units
    measured = target if units is None else target.in_units(units)
    state, info = plan.kernel.step(measured, key, chain.state, tuning)
    u = to_model_space(state.position, units)
    adaptation = plan.warmup.update(target, chain.adaptation, info, u, number)
    stats = _stats(state, info, tuning.step_size, target.constraint_error(u))
    if units is not None:
        state = _measured_anew(plan, target, state, u, adaptation.units, number)
    return ChainState(chain.key, state, adaptation), u, stats


class ExactTransition(AbstractTransition):
    """Draws from a target on its manifold."""

    plan: Plan
    target: AbstractTarget
    keep_inputs: bool = eqx.field(static=True)
    longest_block: int = eqx.field(static=True)
    fuse: bool = eqx.field(static=True, default=False)

    @property
    def lockstep(self):
        """Where nothing is solved for, and every trajectory takes the same steps."""
        return self.target.num_constraints == 0 and isinstance(self.plan.kernel, CHMC)

    @override
    def draw(self, chain, number):
        chain, u, stats = transition(self.plan, self.target, chain, number)
        return chain, Block(*kept_of(self.target, u, self.keep_inputs), stats)


def _in_units(target, u, units):
    """The target and a position in given units."""
    return (target if units is None else target.in_units(units)), to_sampler_space(u, units)


def _measured_anew(plan, target, state, u, units, transition):
    """The state in a new window's units; else, for `vmap`'s sake, a loop that is not entered."""

    def remeasure(carry):
        return False, plan.kernel.init(*_in_units(target, u, units))

    begins = (transition < plan.warmup.length) & plan.warmup.starts_window(transition)
    return jax.lax.while_loop(lambda carry: carry[0], remeasure, (begins, state))[1]


def _stats(state: PhaseState, info: TransitionInfo, step_size, constraint_error) -> TransitionStats:
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
        constraint_error=constraint_error,
    )
