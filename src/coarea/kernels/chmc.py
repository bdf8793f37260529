"""Constrained Hamiltonian Monte Carlo with trajectories of fixed or random length (Algorithm 1)."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
from blackjax.base import SamplingAlgorithm
from typing_extensions import override

from coarea.dynamics import AbstractIntegrator
from coarea.kernels.delayed_rejection import accept_or_retry, acceptance, energy_error
from coarea.kernels.kernel import (
    DIVERGENCE,
    AbstractKernel,
    Mass,
    TransitionInfo,
    as_algorithm,
    step_range,
)
from coarea.manifolds.target import AbstractTarget

# A trajectory that has not turned after so many steps is cut: as many as in the deepest NUTS tree.
_MOST_STEPS = 1024


class CHMC(AbstractKernel):
    """The paper's kernel: `num_steps` integration steps, then accept or reject.

    A pair spreads the number evenly over transitions, both ends included, by a sequence that is the
    same for all chains of a run, so that chains in lockstep do not wait for one another
    (`coarea.kernels.chmc`, where each chain is alone, draws it); the paper's
    Lotka–Volterra run is `CHMC(num_steps=(4, 8), geodesic_steps=3, step_size=0.25)`. Left out,
    warm-up finds the range with most effective draws per operation. With `target_acceptance` the
    number follows from how long trajectories took to turn back during warm-up (Wu, Stoehr & Robert
    2018): it is spread evenly up to that, so that the mean is half of it.
    """

    num_steps: int | tuple[int, int] | None = eqx.field(static=True, default=None)
    geodesic_steps: int | None = eqx.field(static=True, default=None)
    step_size: float | None = None
    target_acceptance: float | None = None
    mass: Mass = eqx.field(static=True, default="auto")
    integrator: AbstractIntegrator | None = None

    @override
    def __check_init__(self):
        if self.num_steps is not None:
            step_range(self.num_steps)

    @property
    @override
    def adapts(self):
        return super().adapts or ("num_steps" if self.num_steps is None else None)

    @property
    @override
    def seeks_efficiency(self):
        return self.adapts is not None and self.target_acceptance is None

    @property
    @override
    def given_steps(self):
        return None if self.num_steps is None else self._range

    @override
    def without_settings(self):
        return replace(super().without_settings(), num_steps=None)

    @property
    def _range(self) -> tuple[int, int]:
        return step_range(self.num_steps)

    @property
    @override
    def has_common_length(self):
        return True

    @override
    def longest_step(self, target):
        """`max_flow_time` divided by the mean number of steps: longer trajectories come back."""
        mean = 1 if self.num_steps is None else sum(self._range) / 2
        return self.integrator_for(target).max_flow_time(target) / mean

    @override
    def step(self, target, key, state, tuning):
        momentum_key, key = jax.random.split(key)
        start = self.integrator_for(target).refresh(momentum_key, state)
        length, level = jax.random.uniform(key, (2,), state.position.dtype)
        num_steps = tuning.num_steps
        if num_steps is None:
            num_steps = self._chosen_length(tuning, length)
        if tuning.retry_step_size is not None:
            return self._step_with_retry(target, key, start, num_steps, tuning, level)
        end, count, u_turn_time = self._trajectory(target, start, num_steps, tuning)
        error, probability = energy_error(start, end), acceptance(start, end)
        accepted = level < probability
        chosen = jax.tree.map(lambda a, b: jnp.where(accepted, a, b), end, start)
        info = _info(probability, accepted, error, end, chosen, count, u_turn_time, end.work)
        return chosen, info

    def _step_with_retry(self, target, key, start, num_steps, tuning, level):
        """The same, with a second try if the first is rejected."""

        def follow(state, step_size):
            count, end = self._steps(target, state, num_steps, step_size)
            return end, count

        other = jax.random.uniform(jax.random.fold_in(key, 1), (), level.dtype)
        found = accept_or_retry(
            follow, start, tuning.step_size, tuning.retry_step_size, jnp.stack([level, other])
        )
        return found.chosen, _info(
            acceptance(start, found.first),
            found.is_accepted,
            found.error,
            found.first,
            found.chosen,
            found.num_steps,
            tuning.u_turn_time,
            found.work,
        )

    def _steps(self, target, start, num_steps, step_size):
        """So many steps, or fewer if one fails: their number, and the state after them."""
        integrator, geodesic_steps = self.integrator_for(target), self.geodesic_steps_for(target)

        def unfinished(carry):
            count, state = carry
            return (count < num_steps) & ~state.failed

        def advance(carry):
            count, state = carry
            return count + 1, integrator.step(target, state, step_size, geodesic_steps)

        return jax.lax.while_loop(unfinished, advance, (jnp.asarray(0), start))

    def _chosen_length(self, tuning, length):
        """The number of steps that the settings or the time until a turn allow, by a quantile."""
        if self.num_steps is None:
            until_turn = jnp.round(tuning.u_turn_time / tuning.step_size)
            fewest, most = 1, jnp.clip(until_turn, 2, _MOST_STEPS).astype(int) - 1
        else:
            fewest, most = self._range
        quantile = length if tuning.length_quantile is None else tuning.length_quantile
        return jnp.minimum(fewest + (quantile * (most + 1 - fewest)).astype(int), most)

    def _trajectory(self, target, start, num_steps, tuning):
        """The state after `num_steps` or at a failure, the steps made, and when it turned back."""

        def advance(state):
            return self.integrator_for(target).step(
                target, state, tuning.step_size, self.geodesic_steps_for(target)
            )

        if tuning.num_steps is None and self.num_steps is not None and self._range == (1, 1):
            return advance(start), jnp.ones((), int), tuning.u_turn_time
        if tuning.num_steps is not None or self.num_steps is not None:
            count, end = self._steps(target, start, num_steps, tuning.step_size)
            return end, count, tuning.u_turn_time

        def is_lost(state):
            return state.failed | ~(state.energy - start.energy <= DIVERGENCE)

        def unfinished_or_adapting(carry):
            count, turned, state = carry
            # While adapting it is followed until it turns, and the draw made there: a length that
            # depends on the way is no exact kernel's, but these draws are not kept.
            adapts_more = ~turned & (count < _MOST_STEPS) & ~is_lost(state)
            goes_on = jnp.where(tuning.is_adapting, adapts_more, count < num_steps)
            return goes_on & ~state.failed

        def follow(carry):
            count, _, state = carry
            state = advance(state)
            turned = (state.position - start.position) @ state.momentum < 0
            return count + 1, turned, state

        count, _, end = jax.lax.while_loop(
            unfinished_or_adapting, follow, (jnp.asarray(0), jnp.asarray(False), start)
        )
        # One that is lost before it turns tells nothing.
        adapts = tuning.is_adapting & ~is_lost(end)
        # It turned during the last step.
        seen = (count - 0.5) * tuning.step_size
        return end, count, jnp.where(adapts, seen, tuning.u_turn_time)


def _info(probability, accepted, error, end, chosen, count, u_turn_time, work) -> TransitionInfo:
    """What happened, given the end of the first trajectory and the state that was chosen."""
    return TransitionInfo(
        acceptance_rate=probability,
        is_accepted=accepted,
        is_divergent=end.failed | (error > DIVERGENCE),
        convergence_error=end.convergence_error,
        non_reversible_step=end.non_reversible_step,
        energy=chosen.energy,
        num_integration_steps=count,
        tree_depth=jnp.asarray(0),
        u_turn_time=u_turn_time,
        work=work,
    )


def chmc(
    target: AbstractTarget,
    step_size: float,
    num_steps: int | tuple[int, int] = (4, 8),
    geodesic_steps: int | None = None,
    integrator: AbstractIntegrator | None = None,
) -> SamplingAlgorithm:
    """Constrained HMC after BlackJAX's contract. Call it, and use it, in double precision.

    >>> import coarea as co, jax, jax.numpy as jnp, numpy as np
    >>> circle = co.Manifold(lambda x: x @ x - 1.0, lambda x: x[0], point=jnp.array([0.0, 1.0]))
    >>> with jax.enable_x64(True):
    ...     algorithm = co.kernels.chmc(circle, step_size=0.1, num_steps=3)
    ...     state = algorithm.init(jnp.array([0.0, 1.0]))
    ...     state, info = jax.jit(algorithm.step)(jax.random.key(0), state)
    >>> f"{np.linalg.norm(state.position):.6f}"
    '1.000000'
    """
    kernel = CHMC(num_steps=num_steps, geodesic_steps=geodesic_steps, integrator=integrator)
    return as_algorithm(kernel, target, step_size)
