"""What samplers see of a target.

`AbstractTarget` is what all of them share. A constrained target is a density on a manifold, and the
dynamics move along that; an unconstrained one is a density on all of ℝᴹ. What a result reports is
the business of the `reporter`.
"""

from abc import abstractmethod
from collections.abc import Mapping
from typing import NamedTuple, Self

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key
from typing_extensions import override

from coarea.jacobians.structure import AbstractLinearisation, ExecutionHints
from coarea.manifolds.rescaling import Rescaling
from coarea.xla import jit_bounded


class Scales(NamedTuple):
    """The sizes that tolerances and first steps are relative to."""

    residual: Float[Array, ""]
    """Of the constrained quantities."""
    position: Float[Array, ""]
    """Of a position's elements."""


class Evaluation(NamedTuple):
    """All that the dynamics need to know of a target at one point."""

    linearisation: AbstractLinearisation
    log_density: Float[Array, ""]
    gradient: Float[Array, " M"]


class AbstractReporter(eqx.Module):
    """What a position means to the user. Positions are in model space."""

    @abstractmethod
    def latents(self, u: Float[Array, " M"]) -> dict[str, Array]:
        """What a user wants to know of a draw, by name."""

    @abstractmethod
    def inputs(self, u: Float[Array, " M"]) -> dict[str, Array]:
        """The draw itself, by name."""

    @property
    def fixed(self) -> Mapping[str, Array]:
        """The latents that are the same in every draw, and need not be stored with each."""
        return {}

    @property
    def observed(self) -> Mapping[str, np.ma.MaskedArray] | None:
        """The data by name, missing values masked. None if there are none."""
        return None

    @abstractmethod
    def describe(self, constraint: int) -> str:
        """The name of one constraint, for messages: `y[3, 0]`."""

    def active_constraints(self, num_constraints: int) -> np.ndarray:
        """The rows of the residual that constrain anything: all, unless some are padding."""
        return np.arange(num_constraints)


class AbstractTarget(eqx.Module):
    """A density that chains draw from."""

    @property
    @abstractmethod
    def num_inputs(self) -> int:
        """M, the length of a position."""

    @property
    @abstractmethod
    def scales(self) -> Scales:
        """The sizes of residuals and positions."""

    @property
    @abstractmethod
    def hints(self) -> ExecutionHints:
        """What evaluations cost."""

    @property
    @abstractmethod
    def reporter(self) -> AbstractReporter:
        """What positions mean to the user."""

    @abstractmethod
    def rescale(self, rescaling: Rescaling) -> Self:
        """The same distribution over positions in sampler space."""

    @abstractmethod
    def guess(self, key: Key[Array, ""]) -> Float[Array, " M"]:
        """A random point near which to look for a start."""

    @abstractmethod
    def constraint_error(self, u: Float[Array, " M"]) -> Float[Array, ""]:
        """How far a position is from reproducing the data, relative to their size."""


class AbstractGeodesicFlow(eqx.Module):
    """Free motion on a manifold in closed form (Byrne & Girolami 2013)."""

    @property
    @abstractmethod
    def max_flow_time(self) -> float:
        """About the time after which free motion has moved furthest."""

    @abstractmethod
    def project(self, u: Float[Array, " M"], p: Float[Array, " M"]) -> Float[Array, " M"]:
        """The part of p that is tangent to the manifold at u."""

    @abstractmethod
    def move(
        self, u: Float[Array, " M"], p: Float[Array, " M"], tau: Float[Array, ""]
    ) -> tuple[Float[Array, " M"], Float[Array, " M"]]:
        """Position and momentum after a time τ, without a drift away from the manifold."""


class AbstractConstrainedTarget(AbstractTarget):
    """A density on the manifold {u : residual(u) = 0}, with respect to its Hausdorff measure."""

    @property
    @abstractmethod
    def num_constraints(self) -> int:
        """N, the number of equations."""

    @property
    @abstractmethod
    def gaussian(self) -> np.ndarray:
        """Which elements are independent standard normals under the base density ρ."""

    @property
    def has_factors(self) -> bool:
        """Whether the density has factors beside ρ and the determinant, such as likelihoods."""
        return False

    @property
    def allows_full_mass(self) -> bool:
        """Whether a rescaling may mix inputs: not where J's structure tells them apart."""
        return False

    @abstractmethod
    def residual(self, u: Float[Array, " M"]) -> Float[Array, " N"]:
        """The constraint function c, zero on the manifold."""

    @abstractmethod
    def linearise(self, u: Float[Array, " M"]) -> AbstractLinearisation:
        """The constraint linearised at u."""

    @abstractmethod
    def evaluate(self, u: Float[Array, " M"]) -> Evaluation:
        """Linearisation, log density and its gradient at u, sharing their work."""

    @property
    def geodesic(self) -> AbstractGeodesicFlow | None:
        """Geodesics in closed form, if the manifold has them: then no equations are solved."""
        return None

    @property
    def unlifted(self) -> "AbstractConstrainedTarget":
        """The same distribution without state augmentation; the target itself if it has none."""
        return self

    def lift(self, u: Float[Array, " K"]) -> Float[Array, " M"]:
        """The position that stands for a position of `unlifted`."""
        return u

    @override
    def constraint_error(self, u):
        """The largest residual."""
        return jnp.max(jnp.abs(self.residual(u))) / self.scales.residual


class AbstractUnconstrainedTarget(AbstractTarget):
    """A density with respect to volume, on all positions."""

    @abstractmethod
    def log_density(self, u: Float[Array, " M"]) -> Float[Array, ""]:
        """The log density at u, up to a constant."""


# These are called in several places of a program, and in several programs: compiled on their own,
# they are traced once.


@jit_bounded
def residual(target: AbstractConstrainedTarget, u: Float[Array, " M"]) -> Float[Array, " N"]:
    """The constraint function of a target at u."""
    return target.residual(u)


@jit_bounded
def linearise(target: AbstractConstrainedTarget, u: Float[Array, " M"]) -> AbstractLinearisation:
    """A target linearised at u."""
    return target.linearise(u)


@jit_bounded
def evaluate(target: AbstractConstrainedTarget, u: Float[Array, " M"]) -> Evaluation:
    """Linearisation, log density and gradient of a target at u."""
    return target.evaluate(u)
