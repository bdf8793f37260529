"""The No-U-Turn sampler on a manifold: BlackJAX's trajectories over the RATTLE step."""

import equinox as eqx
import jax
import jax.numpy as jnp
from blackjax.base import SamplingAlgorithm
from blackjax.mcmc.nuts import iterative_nuts_proposal
from typing_extensions import override

from coarea.arguments import checked_count
from coarea.dynamics import AbstractIntegrator
from coarea.dynamics.integrator import PhaseState
from coarea.kernels.kernel import (
    DIVERGENCE,
    AbstractKernel,
    Mass,
    TransitionInfo,
    as_algorithm,
)
from coarea.manifolds.target import AbstractTarget


class NUTS(AbstractKernel):
    """Multinomial NUTS with the generalised U-turn criterion on ambient momenta.

    A trajectory doubles until it turns back; at most `2 ** max_tree_depth` steps. A step that fails
    to project or to reverse ends it as a divergence, with a flag of its own.
    """

    max_tree_depth: int = eqx.field(static=True, default=10)
    geodesic_steps: int | None = eqx.field(static=True, default=None)
    step_size: float | None = None
    target_acceptance: float | None = None
    mass: Mass = eqx.field(static=True, default="auto")
    integrator: AbstractIntegrator | None = None

    @override
    def __check_init__(self):
        checked_count("max_tree_depth", self.max_tree_depth)

    @property
    @override
    def has_common_length(self):
        return False

    @override
    def longest_step(self, target):
        """`max_flow_time`: two steps of that size, and the trajectory comes back."""
        return self.integrator_for(target).max_flow_time(target)

    @override
    def step(self, target, key, state, tuning):
        momentum_key, tree_key = jax.random.split(key)

        integrator = self.integrator_for(target)

        def integrate(state: PhaseState, step_size):
            end = integrator.step(target, state, step_size, self.geodesic_steps_for(target))
            return end._replace(logdensity=jnp.where(end.failed, -jnp.inf, end.logdensity))

        propose = iterative_nuts_proposal(
            integrate, _kinetic_energy, _is_turning, self.max_tree_depth, DIVERGENCE
        )
        start = integrator.refresh(momentum_key, state)
        chosen, tree = propose(tree_key, start, tuning.step_size)
        ends = tree.trajectory_leftmost_state, tree.trajectory_rightmost_state
        return chosen, TransitionInfo(
            acceptance_rate=tree.acceptance_rate,
            is_accepted=jnp.any(chosen.position != state.position),
            is_divergent=tree.is_divergent,
            convergence_error=ends[0].convergence_error | ends[1].convergence_error,
            non_reversible_step=ends[0].non_reversible_step | ends[1].non_reversible_step,
            energy=tree.energy,
            num_integration_steps=tree.num_integration_steps,
            tree_depth=tree.num_trajectory_expansions,
            u_turn_time=tuning.u_turn_time,
        )


def _kinetic_energy(momentum, position=None):
    del position
    return 0.5 * momentum @ momentum


def _is_turning(
    momentum_left, momentum_right, momentum_sum, position_left=None, position_right=None
):
    """Whether the trajectory's ends no longer move away from each other (Betancourt)."""
    del position_left, position_right
    along = momentum_sum - 0.5 * (momentum_left + momentum_right)
    return (momentum_left @ along <= 0) | (momentum_right @ along <= 0)


def nuts(
    target: AbstractTarget,
    step_size: float,
    max_tree_depth: int = 10,
    geodesic_steps: int | None = None,
    integrator: AbstractIntegrator | None = None,
) -> SamplingAlgorithm:
    """NUTS on a manifold after BlackJAX's contract. Call it, and use it, in double precision.

    >>> import coarea as co, jax, jax.numpy as jnp, numpy as np
    >>> circle = co.Manifold(lambda x: x @ x - 1.0, lambda x: x[0], point=jnp.array([0.0, 1.0]))
    >>> with jax.enable_x64(True):
    ...     algorithm = co.kernels.nuts(circle, step_size=0.1)
    ...     state = algorithm.init(jnp.array([0.0, 1.0]))
    ...     state, info = jax.jit(algorithm.step)(jax.random.key(0), state)
    >>> f"{np.linalg.norm(state.position):.6f}"
    '1.000000'
    """
    kernel = NUTS(
        max_tree_depth=max_tree_depth, geodesic_steps=geodesic_steps, integrator=integrator
    )
    return as_algorithm(kernel, target, step_size)
