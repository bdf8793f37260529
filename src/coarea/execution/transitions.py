"""A transition of a chain on a manifold: its next draw, and what is learnt of it."""

from typing import NamedTuple

import equinox as eqx
import jax
from jaxtyping import Array, Bool, Float, Int, Key
from typing_extensions import override

from coarea.adaptation.warmup import Adaptation, Learnt, Warmup
from coarea.dynamics.rattle import PhaseState
from coarea.execution.blocks import AbstractProgram, Block, for_each_chain
from coarea.kernels.chmc import CHMC
from coarea.kernels.kernel import AbstractKernel, TransitionInfo, Tuning
from coarea.manifolds import AbstractTarget
from coarea.manifolds.target import in_own_units, measured_in
from coarea.xla.programs import runs_once


class Chain(NamedTuple):
    """Everything that one chain carries from one block to the next."""

    key: Key[Array, ""]
    state: PhaseState
    adaptation: Adaptation


class Ended(NamedTuple):
    """Where a chain is and what it has learnt (None: nothing yet): enough to go on from."""

    position: Float[Array, " M"]
    learnt: Learnt | None


class Stats(NamedTuple):
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

    def learnt(self, adaptation: Adaptation) -> Learnt:
        """What the draws are made with."""
        learnt = self.warmup.learnt(adaptation)
        return learnt if self.given_step is None else learnt._replace(step_size=self.given_step)


@runs_once
def begin(
    plan: Plan,
    target: AbstractTarget,
    keys: Key[Array, " chains"],
    u: Float[Array, "chains M"],
    learnt: Learnt | None,
) -> Chain:
    """Chains at their start points, with what was learnt of them earlier."""

    def one(key, u, learnt):
        warmup = plan.warmup
        adaptation = warmup.init(target, u) if learnt is None else warmup.resume(learnt, u.size)
        state = plan.kernel.init(*_in_units(target, u, adaptation.units))
        return Chain(key, state, adaptation)

    return for_each_chain(one)(keys, u, learnt)


@runs_once
def end(plan: Plan, chains: Chain) -> Ended:
    """How chains can be taken up again later."""

    def one(chain: Chain):
        u = in_own_units(chain.state.position, chain.adaptation.units)
        return Ended(u, plan.learnt(chain.adaptation))

    return for_each_chain(one)(chains)


def kept_of(target: AbstractTarget, u: Float[Array, " M"], keep_inputs: bool):
    """What is kept of a position: latents, and inputs if they are wanted."""
    latents = {name: x for name, x in target.latents(u).items() if name not in target.fixed}
    return latents, target.inputs(u) if keep_inputs else None


def transition(
    plan: Plan, target: AbstractTarget, chain: Chain, number: Int[Array, ""]
) -> tuple[Chain, Float[Array, " M"], Stats]:
    """A chain's next draw, what is learnt of it, and how it went. Its first has number 0."""
    tuning = plan.tuning(chain.adaptation, number)
    key = jax.random.fold_in(chain.key, number)
    units = chain.adaptation.units
    measured = target if units is None else target.in_units(units)
    state, info = plan.kernel.step(measured, key, chain.state, tuning)
    u = in_own_units(state.position, units)
    adaptation = plan.warmup.update(target, chain.adaptation, info, u, number)
    stats = _stats(state, info, tuning.step_size, target.constraint_error(u))
    if units is not None:
        state = _measured_anew(plan, target, state, u, adaptation.units, number)
    return Chain(chain.key, state, adaptation), u, stats


class Exact(AbstractProgram):
    """Draws from a target on its manifold."""

    plan: Plan
    target: AbstractTarget
    keep_inputs: bool = eqx.field(static=True)
    longest_block: int = eqx.field(static=True)
    as_routine: bool = eqx.field(static=True, default=False)

    @property
    def in_step(self):
        """Where nothing is solved for, and every trajectory takes the same steps."""
        return self.target.num_constraints == 0 and isinstance(self.plan.kernel, CHMC)

    @override
    def draw(self, chain, number):
        chain, u, stats = transition(self.plan, self.target, chain, number)
        return chain, Block(*kept_of(self.target, u, self.keep_inputs), stats)


def _in_units(target, u, units):
    """The target and a position in given units."""
    return (target if units is None else target.in_units(units)), measured_in(u, units)


def _measured_anew(plan, target, state, u, units, transition):
    """The state in a new window's units; else, for `vmap`'s sake, a loop that is not entered."""

    def remeasure(carry):
        return False, plan.kernel.init(*_in_units(target, u, units))

    begins = (transition < plan.warmup.length) & plan.warmup.starts_window(transition)
    return jax.lax.while_loop(lambda carry: carry[0], remeasure, (begins, state))[1]


def _stats(state: PhaseState, info: TransitionInfo, step_size, constraint_error) -> Stats:
    return Stats(
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
