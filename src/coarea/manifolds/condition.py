"""`condition`: the posterior of a model given observed outputs."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from coarea.errors import DataError, ModelError, PrecisionError
from coarea.generators import AbstractGenerator, Markov
from coarea.generators.generator import prior_draws
from coarea.jacobians.choose import (
    StructureName,
    StructureProblem,
    choose_structure,
    find_noise_solver,
)
from coarea.jacobians.dense import Dense
from coarea.jacobians.noise import NoiseSolver
from coarea.manifolds.density import Density
from coarea.manifolds.lifted import LiftedPosterior, with_states
from coarea.manifolds.observation import Observation, observe
from coarea.manifolds.posterior import Posterior
from coarea.manifolds.teacher_forced import TeacherForced
from coarea.manifolds.validation import check_density, check_derivatives, check_digits
from coarea.precision import top_level


@top_level
def condition(
    model: AbstractGenerator | Callable,
    observed: Mapping[str, Any] | None = None,
    *,
    args: tuple = (),
    kwargs: Mapping[str, Any] | None = None,
    structure: StructureName = "auto",
    noise_inputs: Iterable[str] | None = None,
) -> Posterior | LiftedPosterior | Density:
    """The posterior of a model's inputs, given observed values of some of its outputs.

    Outputs that were not observed are the latents. Mask missing values
    (`numpy.ma.masked_invalid(data)`).

    A NumPyro model is called with `args` and `kwargs`. Any of its sites may be observed, including
    deterministic ones; data given by `obs=` count as observed. If the distribution of an observed
    sample site is a function of normals, the site gets a noise input and is observed exactly. Other
    observed sample sites stay likelihoods. `noise_inputs=` names the sites that get noise inputs,
    if not all of them should.

    The structure of the Jacobian is read off the model, and a step costs only what the model
    couples: `posterior.structure` says in words what was found. `structure="dense"` assumes
    nothing. Another name requires that structure.

    A model whose data are all likelihoods (Poisson counts, `Generator(log_factor=…)`) has no
    manifold: its posterior is an ordinary density of the inputs, which `sample` draws from too.

    >>> import coarea as co
    >>> model = co.Generator(lambda u: {"z": u["z"], "y": u["z"] ** 2 + u["n"]}, {"z": (), "n": ()})
    >>> posterior = co.condition(model, {"y": 1.5})
    >>> posterior.num_inputs, posterior.num_constraints
    (2, 1)
    """
    generator, observed = _generator(model, observed, args, kwargs, noise_inputs)
    if structure == "markov" and not isinstance(generator, Markov):
        raise ModelError("structure='markov' is for a coarea.Markov model: write the model as one.")
    if not observed and (generator.given or generator.has_factor):
        return _density(generator, structure)
    observations, outputs = observe(generator, observed)
    for observation in observations:
        _check_real(observation.name, outputs[observation.name].dtype)
    u = generator.inputs.example
    N, M = sum(o.values.size for o in observations), generator.inputs.size
    if N >= M:
        raise DataError(
            f"{N} values are observed but there are only {M} random inputs, so the inputs that "
            "reproduce the data are isolated points or none. Observe fewer values, or give the "
            "generator the noise it lacks (an input of the shape of the observed output)."
        )
    if isinstance(generator, Markov) and [o.name for o in observations] == ["y"]:
        if _sees_all(generator, observations[0]) and structure in (
            "auto",
            "elementwise",
            "blocks",
        ):
            generator = TeacherForced(generator, observations[0].values.reshape(outputs["y"].shape))
        elif structure in ("auto", "markov"):
            lifted = with_states(generator, *_with_gaps(observations[0]), outputs["x"].shape[1:])
            check_digits(lifted.residual, _flat(lifted.num_inputs), "simulator")
            check_derivatives(lifted, "simulator")
            return replace(lifted, noise_solver=_noise_of_readings(lifted))
    posterior = Posterior(generator, observations, Dense(N, M), "")
    check_digits(posterior.residual, u, "generator")
    check_derivatives(posterior, "generator")
    problem = StructureProblem(
        posterior.residual, prior_draws(generator), N, generator.inputs.sizes
    )
    found = choose_structure(structure, problem)
    return replace(
        posterior,
        jacobian=found.structure,
        structure=found.words,
        noise_solver=None if generator.explicit else find_noise_solver(problem),
    )


def _noise_of_readings(lifted: LiftedPosterior) -> NoiseSolver | str:
    """How to solve for the noise of the observations, if they have any."""
    model, posterior = lifted.layout.model, lifted.unlifted
    if "observe_noise" not in model.inputs.names:
        return "the observations have no noise of their own"
    draws = prior_draws(model)
    N = posterior.num_constraints
    return find_noise_solver(StructureProblem(posterior.residual, draws, N, model.inputs.sizes))


def _density(generator: AbstractGenerator, structure: StructureName) -> Density:
    """The posterior of a model that observes nothing exactly."""
    if structure not in ("auto", "dense"):
        raise ModelError(
            f"structure={structure!r}: nothing is observed exactly, so there is no Jacobian. Leave "
            "structure out."
        )
    check_density(generator)
    return Density(generator, sum(np.size(x) for x in generator.given.values()))


def _generator(
    model, observed, args, kwargs, noise_inputs
) -> tuple[AbstractGenerator, Mapping[str, Any]]:
    """A traced copy of the model, and the data of its outputs."""
    observed = {} if observed is None else observed
    if not isinstance(model, AbstractGenerator):
        return _from_numpyro(model, observed, args, kwargs or {}, noise_inputs)
    if args or kwargs or noise_inputs is not None:
        raise ModelError(
            "args, kwargs and noise_inputs are for NumPyro models; a coarea generator has no "
            "arguments."
        )
    return model.frozen(), observed


def _from_numpyro(model, observed, args, kwargs, noise_inputs):
    if not callable(model):
        raise ModelError(
            "condition takes a coarea.Generator, a coarea.Markov or a NumPyro model, not a "
            f"{type(model).__name__}."
        )
    if not isinstance(observed, Mapping):
        raise DataError("observed must be a dictionary from the names of sites to values.")
    if not (isinstance(kwargs, Mapping) and isinstance(args, tuple)):
        raise ModelError(
            f"args={args!r}, kwargs={kwargs!r}: give a tuple and a dictionary of the model's "
            "arguments."
        )
    from coarea.generators.numpyro_model import from_numpyro  # NumPyro is slow to import

    try:
        inspect.signature(model).bind(*args, **kwargs)
    except TypeError as error:
        raise ModelError(
            f"the model cannot be called with args={args!r} and kwargs={dict(kwargs)!r}: {error}. "
            "Arguments of a NumPyro model go there; a simulator that takes its random inputs as a "
            "dictionary is wrapped: coarea.Generator(function, inputs={…})."
        ) from error
    return from_numpyro(model, observed, args, kwargs, noise_inputs)


def _sees_all(model: Markov, observation: Observation) -> bool:
    return model.observe is None and model.observe_every == 1 and observation.index is None


def _with_gaps(observation: Observation) -> tuple[np.ndarray, np.ndarray]:
    """The data with NaN for missing values, and which values were observed."""
    given = observation.as_given()
    return given.filled(np.nan), ~np.ma.getmaskarray(given)


def _flat(size):
    return jax.ShapeDtypeStruct((size,), jnp.float64)


def _check_real(name: str, dtype) -> None:
    if not jnp.issubdtype(dtype, jnp.floating):
        raise ModelError(
            f"output {name!r} has dtype {dtype}, which has no derivative: only real-valued "
            "outputs can be conditioned on. Observe the continuous quantity behind it."
        )
    if dtype != jnp.float64:
        raise PrecisionError(
            f"output {name!r} has dtype {dtype}: the generator casts to it. Exact "
            "conditioning needs float64; let the computation follow the dtype of its inputs."
        )
