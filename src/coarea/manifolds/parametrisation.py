"""Parametrisations: what chains move on, and which point of the posterior a position stands for.

Points of the posterior are the inputs that `condition` speaks of. Chains may move them along the
manifold, or move other inputs alone, from which the noise follows.
"""

from abc import abstractmethod
from dataclasses import replace
from typing import Any, Literal, get_args

import equinox as eqx
from jaxtyping import Array, Float
from typing_extensions import override

from coarea.errors import ModelError, SettingError
from coarea.generators.explicit import ExplicitNoise
from coarea.generators.generator import prior_draws
from coarea.jacobians.choose import StructureProblem, choose_structure
from coarea.jacobians.noise import NoiseSolver
from coarea.manifolds.chart import Chart
from coarea.manifolds.density import Density
from coarea.manifolds.lifted import LiftedPosterior
from coarea.manifolds.posterior import Posterior
from coarea.manifolds.target import AbstractReporter, AbstractTarget

ParametrisationName = Literal["auto", "manifold", "chart"]


class AbstractParametrisation(eqx.Module):
    """How the positions of chains stand for points of a posterior."""

    @property
    @abstractmethod
    def target(self) -> AbstractTarget:
        """What chains move on."""

    @property
    @abstractmethod
    def words(self) -> str:
        """What positions are, for people."""

    @abstractmethod
    def to_whole(self, u: Float[Array, " M"]) -> Float[Array, " K"]:
        """The point of the posterior that a position stands for."""

    @abstractmethod
    def from_whole(self, u: Float[Array, " K"]) -> Float[Array, " M"]:
        """The position that stands for a point of the posterior."""

    @property
    def reporter(self) -> AbstractReporter:
        """What positions mean to the user."""
        return self.target.reporter


class Ambient(AbstractParametrisation):
    """Positions are the points themselves."""

    whole: AbstractTarget

    @property
    @override
    def target(self):
        return self.whole

    @property
    @override
    def words(self):
        return "manifold: all inputs move together"

    @override
    def to_whole(self, u):
        return u

    @override
    def from_whole(self, u):
        return u


class NoiseSolved(AbstractParametrisation):
    """Positions are the inputs other than the noise, which is solved for.

    The points of a `lifted` posterior have states beside inputs.
    """

    chart: Chart
    lifted: LiftedPosterior | None = None

    @property
    @override
    def target(self):
        return self.chart

    @property
    @override
    def words(self):
        num_noise = self.chart.posterior.num_constraints
        return (
            f"chart: {self.chart.num_inputs} inputs move, and the noise of {num_noise} observed "
            "values is solved for"
        )

    @override
    def to_whole(self, u):
        inputs = self.chart.to_manifold(u)
        return inputs if self.lifted is None else self.lifted.lift(inputs)

    @override
    def from_whole(self, u):
        return self.chart.from_manifold(u if self.lifted is None else self.lifted.unlift(u))


class NoiseExplicit(AbstractParametrisation):
    """Positions are the inputs other than the noise, and the noise has an explicit density."""

    part: Posterior | Density
    explicit: ExplicitNoise

    @property
    @override
    def target(self):
        return self.part

    @property
    @override
    def words(self):
        sites = ", ".join(self.explicit.sites)
        return f"chart: {self.part.num_inputs} inputs move, and {sites} enters through its density"

    @override
    def to_whole(self, u):
        return self.explicit.complete(u)

    @override
    def from_whole(self, u):
        return self.explicit.restrict(u)

    @property
    @override
    def reporter(self):
        return ExplicitReporter(self.part.reporter, self.explicit)


class ExplicitReporter(AbstractReporter):
    """Latents are computed without the noise; the inputs include it."""

    part: AbstractReporter
    explicit: ExplicitNoise

    @override
    def latents(self, u):
        return self.part.latents(u)

    @override
    def inputs(self, u):
        return self.explicit.whole.values(self.explicit.complete(u))

    @property
    @override
    def fixed(self):
        return self.part.fixed

    @property
    @override
    def observed(self):
        return self.part.observed

    @override
    def describe(self, constraint):
        return self.part.describe(constraint)


def check_name(name: Any) -> None:
    """Refuse an unknown name of a parametrisation."""
    if not isinstance(name, str) or name not in get_args(ParametrisationName):
        raise SettingError(f"parametrisation={name!r}: choose 'auto', 'manifold' or 'chart'.")


def without_chart(target: AbstractTarget) -> AbstractTarget:
    """The target alone, so that programs for it do not depend on how its noise is solved for."""
    if isinstance(target, Posterior | LiftedPosterior):
        return replace(target, noise_solver=None)
    return target


def chart_of(target: AbstractTarget) -> AbstractParametrisation:
    """The chart of a posterior. Raise if it has none."""
    lifted = None
    if isinstance(target, LiftedPosterior):
        target, lifted = target.unlifted, target
    if not isinstance(target, Posterior):
        raise ModelError(
            "parametrisation='chart' is for posteriors whose observed values have noise of their "
            "own, and this is not one. Leave parametrisation out."
        )
    explicit = target.generator.explicit
    if explicit is not None:
        return NoiseExplicit(_without_noise(target, explicit), explicit)
    solver = target.noise_solver
    if not isinstance(solver, NoiseSolver):
        raise ModelError(
            "parametrisation='chart' solves for noise in every observed value, such as location + "
            f"scale * noise, which does not fit: {solver}. Leave parametrisation out."
        )
    plain = replace(target, noise_solver=None)
    return NoiseSolved(
        Chart(plain, solver), None if lifted is None else replace(lifted, noise_solver=None)
    )


def _without_noise(target: Posterior, explicit: ExplicitNoise) -> Posterior | Density:
    left = tuple(o for o in target.observations if o.name not in explicit.sites)
    if not left:
        return Density(explicit.generator, sum(o.values.size for o in target.observations))
    part = Posterior(explicit.generator, left, target.jacobian, "")
    generator = explicit.generator
    problem = StructureProblem(
        part.residual, prior_draws(generator), part.num_constraints, generator.inputs.sizes
    )
    found = choose_structure("auto", problem)
    return replace(part, jacobian=found.structure, structure=found.words)
