"""Constrained Hamiltonian Monte Carlo with trajectories of fixed or random length (Algorithm 1)."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from blackjax.base import SamplingAlgorithm

from coarea.dynamics import Rattle
from coarea.errors import SettingError
from coarea.kernels.kernel import DIVERGENCE, AbstractKernel, TransitionInfo, as_algorithm
from coarea.manifolds import AbstractTarget


class CHMC(AbstractKernel):
    """The paper's kernel: `num_steps` integration steps, then accept or reject.

    A pair draws the number uniformly for each transition, both ends included; the paper's
    Lotka–Volterra run is `CHMC(num_steps=(4, 8), geodesic_steps=3, step_size=0.25)`.
    """

    num_steps: int | tuple[int, int] = eqx.field(static=True, default=(4, 8))
    geodesic_steps: int = eqx.field(static=True, default=1)
    step_size: float | None = None
    target_acceptance: float = 0.8
    integrator: Rattle = Rattle()

    def __check_init__(self):
        pair = self.num_steps if isinstance(self.num_steps, tuple) else (self.num_steps,) * 2
        whole = all(isinstance(n, int | np.integer) for n in pair)
        if len(pair) != 2 or not whole or not 1 <= pair[0] <= pair[1]:
            raise SettingError(
                f"num_steps={self.num_steps!r}: give a positive whole number of steps, or a pair "
                "of them (fewest, most)."
            )

    @property
    def _range(self) -> tuple[int, int]:
        if isinstance(self.num_steps, tuple):
            return self.num_steps
        return self.num_steps, self.num_steps

    def longest_step(self, target):
        """A quarter turn in the mean number of steps: a longer trajectory comes back."""
        return 2 * self.integrator.flow_for(target).quarter_turn / sum(self._range)

    def step(self, target, key, state, step_size):  # noqa: D102
        momentum_key, length_key, accept_key = jax.random.split(key, 3)
        fewest, most = self._range
        num_steps = jax.random.randint(length_key, (), fewest, most + 1)
        start = self.integrator.refresh(momentum_key, state)

        def unfinished(carry):
            count, state = carry
            return (count < num_steps) & ~state.failed

        def advance(carry):
            count, state = carry
            return count + 1, self.integrator.step(target, state, step_size, self.geodesic_steps)

        count, end = jax.lax.while_loop(unfinished, advance, (jnp.asarray(0), start))
        error = end.energy - start.energy
        error = jnp.where(end.failed | jnp.isnan(error), jnp.inf, error)
        probability = jnp.exp(jnp.minimum(0.0, -error))
        accepted = jax.random.uniform(accept_key, dtype=error.dtype) < probability
        chosen = jax.tree.map(lambda a, b: jnp.where(accepted, a, b), end, start)
        return chosen, TransitionInfo(
            acceptance_rate=probability,
            is_accepted=accepted,
            is_divergent=end.failed | (error > DIVERGENCE),
            convergence_error=end.convergence_error,
            non_reversible_step=end.non_reversible_step,
            energy=chosen.energy,
            num_integration_steps=count,
            num_projection_iterations=end.iterations,
            tree_depth=jnp.asarray(0),
        )


def chmc(
    target: AbstractTarget,
    step_size: float,
    num_steps: int | tuple[int, int] = (4, 8),
    geodesic_steps: int = 1,
    integrator: Rattle = Rattle(),
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
