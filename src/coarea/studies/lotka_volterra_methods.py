"""The methods, summary statistics and exact posterior of the Lotka–Volterra study."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

import coarea as co
from coarea.precision import in_float64
from coarea.studies.comparison import AS_IN_PAPER, Method
from coarea.studies.lotka_volterra import (
    NUM_STEPS,
    START,
    TRUTH,
    drift,
    generator,
    markov_generator,
    rates,
)

PAPER = co.CHMC(num_steps=(4, 8), geodesic_steps=3, step_size=0.25, integrator=AS_IN_PAPER)


def methods(y: np.ndarray) -> list[Method]:
    """All methods to compare; each run has one chain."""
    model, markov, data = generator(), markov_generator(), {"y": y}
    abc, slices = co.approximate, co.approximate.elliptical_slice
    of_model = {"model": model, "observed": data}

    @functools.cache
    def dense():
        return co.condition(model, data, structure="dense")

    @functools.cache
    def summarised():
        statistics = summary_statistics()
        return co.condition(model.summarise(statistics), statistics(data))

    @functools.cache
    def starts():
        # Inputs that reproduce the data also reproduce its summary statistics.
        return co.find_start(dense(), jax.random.key(0), 16)

    def exact(name: str, target: Callable, **options) -> Method:
        posterior = functools.cache(target)
        return Method.of_chain(
            name, "exact", lambda **run: co.sample(posterior(), **run), **options
        )

    def near(name: str, family: str, method: Callable, epsilon: float, **options) -> Method:
        return Method.of_chain(name, family, method, **of_model, epsilon=epsilon, **options)

    def rejection(name: str, epsilon: float) -> Method:
        return Method.of_simulations(name, abc.reject, 100_000, epsilon=epsilon, **of_model)

    return [
        exact("CHMC, paper's settings", lambda: co.condition(model, data), kernel=PAPER),
        exact("NUTS, co.Markov", lambda: co.condition(markov, data)),
        exact("NUTS, triangular", lambda: co.condition(model, data)),
        exact("NUTS, lifted", lambda: co.condition(markov, data, structure="markov")),
        exact("NUTS, dense", dense),
        exact("NUTS, 9 summary statistics", summarised, starts=starts),
        Method.of_chain(
            "NUTS given the likelihood",
            "given the likelihood",
            abc.tractable,
            **of_model,
            log_likelihood=log_likelihood,
            outputs=reported,
        ),
        near("slice, uniform, ε = 100", "slice", slices, 100.0),
        near("slice, uniform, ε = 10", "slice", slices, 10.0),
        near("slice, Gaussian, ε = 100", "slice", slices, 100.0, kernel="gaussian"),
        near("slice, Gaussian, ε = 10", "slice", slices, 10.0, kernel="gaussian"),
        near("ABC-HMC, ε = 100", "gradient", abc.hmc, 100.0, step_size=0.025),
        near("ABC-HMC, ε = 10", "gradient", abc.hmc, 10.0, step_size=0.0025),
        near("ABC-NUTS, ε = 10", "gradient", abc.nuts, 10.0, pilot=100),
        near("Hamiltonian ABC, ε = 10", "gradient", abc.hamiltonian, 10.0, outputs=reported),
        near("ABC-MCMC, ε = 1000", "parameters", abc.mcmc, 1000.0, step_size=0.2, pilot=2000),
        near("ABC-MCMC, ε = 100", "parameters", abc.mcmc, 100.0, step_size=0.001, pilot=2000),
        Method(
            "ABC-SMC, ε = 100",
            "parameters",
            lambda seed, size: abc.smc(model, data, epsilon=100.0, particles=size, seed=seed),
            1000,
            scales=False,
        ),
        Method.of_simulations(
            "ABC rejection, ε = 1000", abc.reject, 100_000, epsilon=1000.0, **of_model
        ),
        Method.of_simulations(
            "ABC rejection, ε = 100", abc.reject, 100_000, epsilon=100.0, **of_model
        ),
        Method.of_simulations(
            "optimisation MC, ε = 100",
            abc.optimisation_monte_carlo,
            2000,
            epsilon=100.0,
            **of_model,
        ),
    ]


def log_likelihood(parameters, observed):
    """The log density of the populations given the rates; a step adds normal noise."""
    y = observed["y"]
    before = jnp.concatenate([jnp.array([START]), y[:-1]])
    return -0.5 * jnp.sum((y - before - drift(rates(parameters), before)) ** 2)


def reported(parameters):
    """The rates, as the simulator's output."""
    return {"z": rates(parameters)}


@in_float64
def summary_statistics(num: int = 500_000, batch: int = 50_000):
    """The nine statistics of Papamakarios & Murray 2016, scaled by their prior standard deviation.

    The standard deviation is over the prior simulations that stay finite, 7 in 10 000. Only 1 in a
    million stays positive.
    """
    model, keys = generator(), jax.random.split(jax.random.key(0), num // batch)
    found = []
    for key in keys:
        y = model.simulate(key, batch)["y"]
        found.append(y[np.all(np.abs(y) < 1e6, axis=(1, 2))])
    spread = np.std(jax.vmap(_statistics)(np.concatenate(found)), axis=0)

    @in_float64
    def statistics(outputs):
        return {"s": _statistics(jnp.asarray(outputs["y"])) / spread}

    return statistics


def _statistics(y):
    centred = y - y.mean(axis=0)
    variance = y.var(axis=0)
    scaled = centred / jnp.sqrt(variance)

    def lagged(k):
        return jnp.sum(scaled[k:] * scaled[:-k], axis=0) / NUM_STEPS

    cross = jnp.sum(scaled[:, 0] * scaled[:, 1])[None] / NUM_STEPS
    return jnp.concatenate([y.mean(axis=0), jnp.log(variance), lagged(1), lagged(2), cross])


@in_float64
def exact_moments(y: np.ndarray, num: int = 200_000) -> tuple[np.ndarray, np.ndarray]:
    """Mean and sd of log z by importance sampling, with an error of about 1/500 of the sd.

    The posterior is nearly normal. The proposal is a heavy-tailed distribution around its mode.
    """

    def log_posterior(x):
        log_prior = -0.5 * jnp.sum((x + 2.0) ** 2)
        return log_prior + log_likelihood({"z": x + 2.0}, {"y": jnp.asarray(y)})

    mode, gradient, hessian = jnp.log(TRUTH), jax.grad(log_posterior), jax.hessian(log_posterior)
    for _ in range(50):
        mode = mode - jnp.linalg.solve(hessian(mode), gradient(mode))
    L = np.linalg.cholesky(np.linalg.inv(-hessian(mode)))
    rng, dof = np.random.default_rng(0), 10
    t = rng.normal(size=(num, 4)) * np.sqrt(dof / rng.chisquare(dof, size=(num, 1)))
    log_proposal = -0.5 * (dof + 4) * np.log1p(np.sum(t**2, axis=1) / dof)
    x = np.asarray(mode) + t @ L.T
    log_weight = np.asarray(jax.vmap(log_posterior)(x)) - log_proposal
    weight = np.exp(log_weight - log_weight.max())
    weight /= weight.sum()
    if 1 / np.sum(weight**2) < 0.5 * num:
        raise RuntimeError("the proposal does not cover the posterior of the rates.")
    mean = weight @ x
    return mean, np.sqrt(weight @ (x - mean) ** 2)
