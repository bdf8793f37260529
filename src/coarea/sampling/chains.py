"""The compiled part: a group of chains, vectorised, advanced by a block of transitions."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from coarea.dynamics.rattle import PhaseState
from coarea.kernels.kernel import AbstractKernel, TransitionInfo, Tuning
from coarea.manifolds import AbstractTarget
from coarea.manifolds.target import in_own_units
from coarea.sampling.warmup import Adaptation, Learnt, Warmup


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


class Block(NamedTuple):
    """What a block of transitions brought, axes (chain, draw, …), `count` draws of it valid."""

    latents: PyTree[Array]
    inputs: PyTree[Array] | None
    stats: Stats


class Plan(eqx.Module):
    """The settings that decide which program is compiled."""

    kernel: AbstractKernel
    warmup: Warmup
    given_step: Float[Array, ""] | None
    keep_inputs: bool = eqx.field(static=True)
    longest_block: int = eqx.field(static=True)

    def tuning(self, adaptation: Adaptation, transition: Int[Array, ""]) -> Tuning:
        """What warm-up has reached, but the step size that the user gave."""
        tuning = self.warmup.tuning(adaptation, transition)
        return tuning if self.given_step is None else tuning._replace(step_size=self.given_step)

    def learnt(self, adaptation: Adaptation) -> Learnt:
        """What the draws are made with."""
        learnt = self.warmup.learnt(adaptation)
        return learnt if self.given_step is None else learnt._replace(step_size=self.given_step)


@eqx.filter_jit
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
        adaptation = warmup.init(u.size) if learnt is None else warmup.resume(learnt)
        state = plan.kernel.init(*_in_units(target, u, adaptation.units))
        return Chain(key, state, adaptation)

    return _for_each_chain(one)(keys, u, learnt)


@eqx.filter_jit
def end(plan: Plan, chains: Chain) -> Ended:
    """How chains can be taken up again later."""

    def one(chain: Chain):
        u = in_own_units(chain.state.position, chain.adaptation.units)
        return Ended(u, plan.learnt(chain.adaptation))

    return _for_each_chain(one)(chains)


@eqx.filter_jit
def advance(
    plan: Plan, target: AbstractTarget, chains: Chain, done: Int[Array, ""], count: Int[Array, ""]
) -> tuple[Chain, Block]:
    """Advance each chain by `count` transitions, at most `plan.longest_block`, after those `done`.

    That number is one for all chains of a group, so that under `vmap` what warm-up learns is not
    computed again and again when it is over.
    """
    return _for_each_chain(lambda chain: _advance_one(plan, target, chain, done, count))(chains)


def kept_of(target: AbstractTarget, u: Float[Array, " M"], keep_inputs: bool):
    """What is kept of a position: latents, and inputs if they are wanted."""
    return target.latents(u), target.inputs(u) if keep_inputs else None


def longest_block(size: int, num_chains: int) -> int:
    """The most transitions of so many chains in one block, of which each keeps `size` numbers.

    A bound on memory, and on what travels from an accelerator. Shorter blocks run the same program.
    """
    return max(4, min(1024, 2**22 // (num_chains * (1 + size))))


def _for_each_chain(function):
    """`vmap`, except that a single chain keeps its branches and loops instead of masking them."""

    def mapped(*chains):
        if jax.tree.leaves(chains)[0].shape[0] > 1:
            return jax.vmap(function)(*chains)
        only = function(*jax.tree.map(lambda x: x[0], chains))
        return jax.tree.map(lambda x: x[None], only)

    return mapped


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
    adaptation = plan.warmup.update(chain.adaptation, info, u, number)
    stats = _stats(state, info, tuning.step_size, target.residual(u) / target.scale)
    if units is not None:
        state = _measured_anew(plan, target, state, u, adaptation.units, number)
    return Chain(chain.key, state, adaptation), u, stats


def _advance_one(plan: Plan, target: AbstractTarget, chain: Chain, done, count):
    def one(chain: Chain, number):
        chain, u, stats = transition(plan, target, chain, number)
        return chain, Block(*kept_of(target, u, plan.keep_inputs), stats)

    def body(i, carry):
        chain, block = carry
        chain, draw = one(chain, done + i)
        return chain, jax.tree.map(lambda all, one: all.at[i].set(one), block, draw)

    empty = jax.tree.map(
        lambda x: jnp.zeros((plan.longest_block, *x.shape), x.dtype),
        jax.eval_shape(one, chain, done)[1],
    )
    return jax.lax.fori_loop(0, count, body, (chain, empty))


def _in_units(target, u, units):
    """The target and a position in given units."""
    return (target, u) if units is None else (target.in_units(units), u / units)


def _measured_anew(plan, target, state, u, units, transition):
    """The state in a new window's units; else, for `vmap`'s sake, a loop that is not entered."""

    def remeasure(carry):
        return False, plan.kernel.init(*_in_units(target, u, units))

    begins = (transition < plan.warmup.length) & plan.warmup.starts_window(transition)
    return jax.lax.while_loop(lambda carry: carry[0], remeasure, (begins, state))[1]


def _stats(state: PhaseState, info: TransitionInfo, step_size, residual) -> Stats:
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
        constraint_error=jnp.max(jnp.abs(residual)),
    )
