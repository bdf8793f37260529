"""What every kernel shares: its state, the record of a transition, and the `(init, step)` pair."""

from abc import abstractmethod
from typing import Literal, NamedTuple, Self

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from blackjax.base import SamplingAlgorithm
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, Int, Key

from coarea.arguments import checked_count, checked_number
from coarea.dynamics import AbstractIntegrator, integrator_for
from coarea.dynamics.integrator import PhaseState
from coarea.dynamics.projection import Tolerance
from coarea.errors import ModelError, SettingError, StartError
from coarea.manifolds.target import AbstractTarget
from coarea.precision import require_float64

# An energy error above this is a divergence, as in Stan and BlackJAX.
DIVERGENCE = 1000.0

Mass = Literal["auto", "identity", "diagonal"]


class TransitionInfo(NamedTuple):
    """What happened in one transition; every kind of failure has its flag."""

    acceptance_rate: Float[Array, ""]
    is_accepted: Bool[Array, ""]
    is_divergent: Bool[Array, ""]
    convergence_error: Bool[Array, ""]
    non_reversible_step: Bool[Array, ""]
    energy: Float[Array, ""]
    num_integration_steps: Int[Array, ""]
    tree_depth: Int[Array, ""]
    u_turn_time: Float[Array, ""]
    work: Int[Array, ""] | None = None
    """What projections cost, in evaluations of the residual; None if it was not counted."""


class Tuning(NamedTuple):
    """The parameters of one transition of one chain, which warm-up adapts.

    `u_turn_time` is how long trajectories take to turn back, for a kernel whose trajectory length
    was not given. While it `is_adapting`, each trajectory is followed until it turns.
    `length_quantile`, from 0 to 1, chooses this trajectory's length from those it may have; without
    it a kernel draws one. `num_steps`, if there is one, is its length. If a trajectory is rejected
    and there is a `retry_step_size` above zero, a second one with steps of that size is tried.
    """

    step_size: Float[Array, ""]
    u_turn_time: Float[Array, ""]
    is_adapting: Bool[Array, ""]
    length_quantile: Float[Array, ""] | None = None
    num_steps: Int[Array, ""] | None = None
    retry_step_size: Float[Array, ""] | None = None


class AbstractKernel(eqx.Module):
    """A kernel's settings. What can be adapted is passed to each step.

    A `step_size` that is given is used as it is. `mass="diagonal"` lets warm-up scale every input
    by its standard deviation, and `mass="identity"` scales none. `geodesic_steps` are the projected
    sub-steps of a step, and `integrator` what makes it; left out, those that suit the target.
    """

    integrator: eqx.AbstractVar[AbstractIntegrator | None]
    geodesic_steps: eqx.AbstractVar[int | None]
    step_size: eqx.AbstractVar[float | None]
    target_acceptance: eqx.AbstractVar[float | None]
    mass: eqx.AbstractVar[Mass]

    def __check_init__(self):
        check_step_size(self.step_size)
        if self.geodesic_steps is not None:
            checked_count("geodesic_steps", self.geodesic_steps)
        if self.target_acceptance is not None:
            checked_number("target_acceptance", self.target_acceptance, 0.0, 1.0, 0.8)
        if not isinstance(self.mass, str) or self.mass not in ("auto", "identity", "diagonal"):
            raise SettingError(f"mass={self.mass!r}: choose 'auto', 'identity' or 'diagonal'.")
        if not (self.integrator is None or isinstance(self.integrator, AbstractIntegrator)):
            raise SettingError(
                f"integrator={self.integrator!r}: leave it out, or give a coarea.dynamics.Rattle."
            )

    @property
    def seeks_efficiency(self) -> bool:
        """Whether warm-up compares settings by how well they explore, not by acceptance alone."""
        return False

    @property
    def given_steps(self) -> tuple[int, int] | None:
        """The fewest and the most steps of a trajectory, if the user gave them."""
        return None

    def without_settings(self) -> Self:
        """The kernel without what `Tuning` supplies: all settings share one compiled program."""
        return eqx.tree_at(lambda k: k.step_size, self, None, is_leaf=lambda x: x is None)

    @property
    def adapts(self) -> str | None:
        """What warm-up must find, by name. None if everything was given."""
        if self.step_size is None:
            return "step_size"
        return None

    def geodesic_steps_for(self, target: AbstractTarget) -> int:
        """The number given, or the one that suits the target."""
        return target.hints.geodesic_steps if self.geodesic_steps is None else self.geodesic_steps

    def integrator_for(self, target: AbstractTarget) -> AbstractIntegrator:
        """The integrator given, or the one that suits the target."""
        return integrator_for(target, self.integrator)

    def tolerance_for(self, dtype) -> Tolerance:
        """The tolerance with which points count as on the manifold."""
        given = self.integrator
        return Tolerance.default(dtype) if given is None else given.tolerance_for(dtype)

    @property
    @abstractmethod
    def has_common_length(self) -> bool:
        """Whether all chains make the same number of steps at the same time."""

    def init(self, target: AbstractTarget, u: Float[Array, " M"]) -> PhaseState:
        """The state of a chain at u."""
        return self.integrator_for(target).init(target, u)

    @abstractmethod
    def longest_step(self, target: AbstractTarget) -> float:
        """The step size beyond which a longer step gains nothing."""

    @abstractmethod
    def step(
        self,
        target: AbstractTarget,
        key: Key[Array, ""],
        state: PhaseState,
        tuning: Tuning,
    ) -> tuple[PhaseState, TransitionInfo]:
        """One transition that leaves the target invariant."""


def check_step_size(step_size) -> None:
    """Refuse a step size that is not a positive number. None and traced values pass."""
    if step_size is not None and not isinstance(step_size, Tracer):
        checked_number("step_size", step_size)


def step_range(num_steps) -> tuple[int, int]:
    """The fewest and the most steps; refuse what is neither a number of them nor such a pair."""
    pair = num_steps if isinstance(num_steps, tuple) else (num_steps, num_steps)
    try:
        fewest, most = (checked_count("num_steps", n) for n in pair)
    except (SettingError, ValueError):
        fewest, most = 1, 0
    if fewest > most:
        raise SettingError(
            f"num_steps={num_steps!r}: give a positive whole number of steps, or a pair of them "
            "(fewest, most)."
        )
    return fewest, most


def as_algorithm(kernel: AbstractKernel, target: AbstractTarget, step_size) -> SamplingAlgorithm:
    """The kernel on one target with one step size: `init(u)`, `step(key, state)`."""
    require_float64("a kernel on a manifold")
    check_step_size(step_size)
    if not isinstance(target, AbstractTarget):
        raise ModelError(
            "a kernel moves on what coarea.condition(model, observed) returns, or on a "
            f"coarea.Manifold; got a {type(target).__name__}."
        )
    tolerance = kernel.tolerance_for(jnp.float64).residual

    def init(position, rng_key=None):
        del rng_key  # BlackJAX's contract allows one; these kernels start deterministically
        require_float64("a kernel on a manifold")
        if np.shape(position) != (target.num_inputs,):
            raise StartError(
                f"the position given to init is no vector of {target.num_inputs} numbers."
            )
        if not isinstance(position, Tracer):
            error = float(target.constraint_error(jnp.asarray(position)))
            if not error <= tolerance:
                raise StartError(
                    f"the position given to init is not on the manifold: its largest residual is "
                    f"{error:.2g} of the data's size. coarea.find_start(target, key, chains) finds "
                    "points that are."
                )
        return kernel.init(target, jnp.asarray(position))

    def step(rng_key, state):
        require_float64("a kernel on a manifold")
        tuning = Tuning(jnp.asarray(step_size), jnp.asarray(jnp.inf), jnp.asarray(False))
        return kernel.step(target, rng_key, state, tuning)

    return SamplingAlgorithm(init, step)
