"""Approximate methods draw from what they claim to: the posterior given softened data."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import stats

import coarea as co
from coarea.approximate.hamiltonian import Synthetic
from coarea.approximate.smc import _log_weights, _Population
from coarea.approximate.softened import Directed, soften
from coarea.approximate.weights import normalised
from coarea.errors import StartError
from exact import assert_mean

SIGMA = 0.5
Y = np.array([0.9, 0.3])


def location(num=2):
    """A standard normal location seen `num` times with normal noise."""
    return co.Generator(
        lambda u: {"z": u["z"], "y": u["z"] + SIGMA * u["n"]},
        inputs={"z": (), "n": num},
        parameters=["z"],
    )


def moments(log_likelihood):
    """Mean and variance of a standard normal location given a likelihood, by quadrature."""
    z = np.linspace(-8, 8, 20_001)
    log_density = stats.norm.logpdf(z) + log_likelihood(z)
    weight = np.exp(log_density - log_density.max())
    mean = np.sum(weight * z) / np.sum(weight)
    return mean, np.sum(weight * (z - mean) ** 2) / np.sum(weight)


def log_likelihood(kernel, epsilon, y=Y):
    """The log of the probability that a simulation is close to the data, as a function of z."""
    if kernel == "gaussian":
        sd = np.hypot(SIGMA, epsilon)
        return lambda z: stats.norm.logpdf(y[:, None], z, sd).sum(axis=0)
    squares = lambda z: np.sum((y[:, None] - z) ** 2, axis=0) / SIGMA**2  # noqa: E731
    return lambda z: np.log(
        np.maximum(stats.ncx2.cdf((epsilon / SIGMA) ** 2, y.size, squares(z)), 1e-300)
    )


CHAINS = {"draws": 2500, "chains": 4, "progress": False}


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("mcmc", {"kernel": "uniform"}),
        ("mcmc", {"kernel": "gaussian"}),
        ("elliptical_slice", {"kernel": "uniform"}),
        ("elliptical_slice", {"kernel": "gaussian"}),
        ("hmc", {}),
        ("nuts", {}),
    ],
)
def test_chains_have_the_moments_of_the_softened_posterior(method, options):
    run = getattr(co.approximate, method)
    draws = run(location(), {"y": Y}, epsilon=0.4, **options, **CHAINS)
    z = draws.posterior["z"].values
    kernel = options.get("kernel", "gaussian")
    mean, variance = moments(log_likelihood(kernel, 0.4))
    assert_mean(z, mean)
    assert_mean((z - mean) ** 2, variance)


def weighted_error(draws, mean):
    """How many standard errors the weighted mean of independent draws is off."""
    z, w = draws.posterior["z"].values[0], draws.sample_stats["weight"].values[0]
    return np.sum(w * (z - mean)) / np.sqrt(np.sum(w**2 * (z - mean) ** 2))


def test_rejection_accepts_what_is_near_with_the_probability_that_it_has():
    simulations = 40_000
    z = np.linspace(-8, 8, 4001)
    for num, epsilon in [(1, 0.5), (2, 1.0), (2, 0.5), (2, 0.25), (5, 0.5)]:
        y = np.resize(Y, num)
        draws = co.approximate.reject(
            location(num), {"y": y}, epsilon=epsilon, simulations=simulations
        )
        close = np.exp(log_likelihood("uniform", epsilon, y)(z))
        expected = np.trapezoid(stats.norm.pdf(z) * close, z)
        error = np.sqrt(expected * (1 - expected) / simulations)
        assert abs(draws.attrs["accepted"] / simulations - expected) < 4 * error
        mean, variance = moments(log_likelihood("uniform", epsilon, y))
        found = draws.posterior["z"].values
        assert abs(found.mean() - mean) < 4 * np.sqrt(variance / found.size)


def test_rejection_weighs_by_a_gaussian_kernel():
    draws = co.approximate.reject(
        location(), {"y": Y}, epsilon=0.4, kernel="gaussian", simulations=20_000, keep="inputs"
    )
    mean, _ = moments(log_likelihood("gaussian", 0.4))
    assert abs(weighted_error(draws, mean)) < 4
    size = draws.attrs["effective_size"]
    again = co.approximate.resample(draws, 4000)
    assert again.inputs["n"].shape == (1, 4000, 2)
    sd = float(again.posterior["z"].std())
    assert abs(float(again.posterior["z"].mean()) - mean) < 4 * sd / np.sqrt(size)


def test_rejection_by_quantile_keeps_the_nearest():
    draws = co.approximate.reject(location(), {"y": Y}, quantile=0.01, simulations=10_000)
    same = co.approximate.reject(
        location(), {"y": Y}, epsilon=draws.attrs["epsilon"], simulations=10_000
    )
    assert draws.posterior["z"].shape == same.posterior["z"].shape == (1, 100)
    assert set(draws.posterior["z"].values[0]) == set(same.posterior["z"].values[0])


def test_rejection_takes_models_without_derivatives_and_those_with_a_factor():
    model = co.Generator(
        lambda u: {"z": u["z"], "count": jnp.round(u["z"] + u["n"]).astype(int)},
        inputs={"z": (), "n": ()},
        log_factor=lambda outputs: -0.5 * (outputs["z"] - 1.0) ** 2,
    )
    draws = co.approximate.reject(model, {"count": 1}, epsilon=0.5, simulations=40_000)
    mean, _ = moments(
        lambda z: (
            np.log(stats.norm.cdf(1.5 - z) - stats.norm.cdf(0.5 - z) + 1e-300)
            - 0.5 * (z - 1.0) ** 2
        )
    )
    assert abs(weighted_error(draws, mean)) < 4


@pytest.mark.parametrize(
    ("kernel", "moves"),
    [("uniform", "parameters"), ("gaussian", "parameters"), ("uniform", "inputs")],
)
def test_sequential_abc_has_the_moments_of_the_softened_posterior(kernel, moves):
    mean, variance = moments(log_likelihood(kernel, 0.3))
    model, means, variances = location(), [], []
    for seed in range(100, 112):
        draws = co.approximate.smc(
            model,
            {"y": Y},
            epsilon=0.3,
            particles=400,
            kernel=kernel,
            moves=moves,
            seed=seed,
        )
        z = draws.posterior["z"].values
        means.append(z.mean())
        variances.append(np.mean((z - mean) ** 2))
    for found, exact in ((means, mean), (variances, variance)):
        # Student's t with 11 degrees of freedom exceeds 4.4 once in 1 000.
        assert abs(np.mean(found) - exact) < 4.4 * np.std(found, ddof=1) / np.sqrt(len(found))
    history = draws["history"]
    assert np.all(np.diff(history["epsilon"]) < 0)
    assert history["epsilon"][-1] == 0.3 == draws.attrs["epsilon"]


def test_sequential_abc_that_cannot_go_on_says_how_far_it_came():
    model, y = location(30), np.full(30, 0.2)
    with pytest.warns(co.errors.SamplingWarning, match="stopped at epsilon"):
        draws = co.approximate.smc(model, {"y": y}, epsilon=0.5, particles=200)
    assert 0.5 < draws.attrs["epsilon"] < 30
    assert draws.sample_stats["distance"].max() <= draws.attrs["epsilon"]


def test_as_the_tolerance_falls_the_posterior_becomes_the_exact_one():
    mean, variance = moments(lambda z: stats.norm.logpdf(Y[:1, None], z, SIGMA).sum(axis=0))
    model, off = location(1), []
    for epsilon in (1.5, 0.02):
        draws = co.approximate.reject(model, {"y": Y[:1]}, epsilon=epsilon, simulations=100_000)
        z = draws.posterior["z"].values.ravel()
        off.append((np.mean((z - mean) ** 2) / variance - 1) / np.sqrt(2 / z.size))
    assert off[0] > 20
    assert abs(off[1]) < 4


def test_elliptical_slices_leave_the_prior_invariant_when_the_tolerance_is_infinite():
    model = co.Generator(
        lambda u: {"rate": u["rate"], "z": u["z"], "y": u["rate"] * u["z"]},
        # A distribution without a map from normals, so that its density counts.
        inputs={"rate": dist.Gamma(3.0, 2.0), "z": ()},
    )
    draws = co.approximate.elliptical_slice(
        model, {"y": 5.0}, epsilon=np.inf, groups=["rate", "z"], **CHAINS
    )
    z, rate = draws.posterior["z"].values, draws.posterior["rate"].values
    assert_mean(z, 0.0)
    assert_mean(z**2, 1.0)
    assert_mean(rate, 1.5)
    assert_mean(rate**2, 3.0)


def test_optimisation_monte_carlo_is_exact_for_a_linear_model_with_as_many_values_as_parameters():
    A, B = np.array([[1.0, 0.5], [-0.3, 0.8]]), np.array([[0.5, 0.1], [0.0, 0.4]])
    model = co.Generator(
        lambda u: {"z": u["z"], "y": A @ u["z"] + B @ u["n"]},
        inputs={"z": 2, "n": 2},
        parameters=["z"],
    )
    y = np.array([0.7, -0.4])
    precision = np.eye(2) + A.T @ np.linalg.inv(B @ B.T) @ A
    mean = np.linalg.solve(precision, A.T @ np.linalg.inv(B @ B.T) @ y)
    draws = co.approximate.optimisation_monte_carlo(model, {"y": y}, epsilon=1e-6, simulations=4000)
    z, w = draws.posterior["z"].values[0], draws.sample_stats["weight"].values[0]
    off = np.sum(w[:, None] * (z - mean), axis=0)
    assert np.all(np.abs(off) < 4 * np.sqrt(np.sum(w[:, None] ** 2 * (z - mean) ** 2, axis=0)))
    assert draws.attrs["accepted"] == 4000
    assert 500 < draws.attrs["effective_size"] < 4000


def test_optimisation_monte_carlo_weighs_by_the_jacobian():
    """With y = z³ + n a solution z belongs to a noise of density 1/(3z²) as large."""
    model = co.Generator(
        lambda u: {"z": u["z"], "y": u["z"] ** 3 + 0.5 * u["n"]},
        inputs={"z": (), "n": ()},
        parameters=["z"],
    )
    draws = co.approximate.optimisation_monte_carlo(
        model, {"y": 1.5}, epsilon=1e-5, simulations=4000
    )
    mean, _ = moments(lambda z: stats.norm.logpdf(1.5, z**3, 0.5))
    assert abs(weighted_error(draws, mean)) < 4


def synthetic(num, epsilon, simulations):
    target = soften(location(num), {"y": np.resize(Y, num)}, epsilon, "gaussian")
    return Synthetic(target, Directed(location(num), "test"), dict, simulations)


def test_the_gradient_of_the_synthetic_likelihood_is_the_exact_one_but_for_noise(x64):
    likelihood = synthetic(2, 0.4, 2000)
    gradient = jax.jit(
        jax.vmap(jax.grad(lambda z, seed: likelihood.log_likelihood(z, seed)), in_axes=(None, 0))
    )
    for z in (-1.0, 0.2, 2.0):
        found = gradient(jnp.array([z]), jax.random.split(jax.random.key(0), 64))[:, 0]
        exact = np.sum(Y - z) / (SIGMA**2 + 0.4**2)
        # The moments' own errors bias it by about 2/2000 of itself.
        error = np.std(found) / 8 + 2e-3 * abs(exact)
        assert abs(np.mean(found) - exact) < 4 * error


def test_hamiltonian_abc_has_the_moments_of_the_synthetic_posterior():
    """The expected likelihood: the mean of s simulations is normal, their variance χ²."""
    s, epsilon = 5, 0.4
    draws = co.approximate.hamiltonian(
        location(), {"y": Y}, epsilon=epsilon, simulations=s, **CHAINS
    )
    chi = stats.chi2(s - 1)
    levels = chi.ppf((np.arange(2000) + 0.5) / 2000)
    variance = SIGMA**2 * (levels / (s - 1) + 1 / s) + epsilon**2

    def log_likelihood(z):
        each = stats.norm.pdf(Y[:, None, None], z[:, None], np.sqrt(variance)).mean(axis=-1)
        return np.log(each + 1e-300).sum(axis=0)

    z = np.linspace(-6, 6, 601)
    weight = np.exp(stats.norm.logpdf(z) + log_likelihood(z))
    mean = np.sum(weight * z) / np.sum(weight)
    spread = np.sum(weight * (z - mean) ** 2) / np.sum(weight)
    found = draws.posterior["z"].values
    assert_mean(found, mean)
    assert_mean((found - mean) ** 2, spread)


def test_the_tractable_baseline_is_exact():
    def known(parameters, observed):
        assert observed["y"].shape == (2,)
        return -0.5 * jnp.sum((observed["y"] - parameters["z"]) ** 2) / SIGMA**2

    mean, variance = moments(lambda z: stats.norm.logpdf(Y[:, None], z, SIGMA).sum(axis=0))
    for num_steps in (None, (3, 8)):
        draws = co.approximate.tractable(location(), {"y": Y}, known, num_steps=num_steps, **CHAINS)
        z = draws.posterior["z"].values
        assert_mean(z, mean)
        assert_mean((z - mean) ** 2, variance)


def test_conditioning_on_sufficient_statistics_is_conditioning_on_the_data():
    y = np.array([0.3, -0.4, 1.2, 0.9, 0.1])
    model = co.Generator(
        lambda u: {
            "mean": u["mean"],
            "log_sd": u["log_sd"],
            "y": u["mean"] + jnp.exp(u["log_sd"]) * u["n"],
        },
        inputs={"mean": (), "log_sd": (), "n": 5},
        parameters=["mean", "log_sd"],
    )

    def summarise(outputs):
        return {"y": jnp.stack([outputs["y"].mean(), jnp.log(outputs["y"].var())])}

    summarised = model.summarise(summarise)
    assert summarised.parameters == ("mean", "log_sd")
    draws = co.sample(
        co.condition(summarised, {"y": [y.mean(), np.log(y.var())]}), draws=2000, warmup=400
    )
    m, s = np.meshgrid(np.linspace(-5, 5, 801), np.linspace(-4, 4, 801))
    log_density = stats.norm.logpdf(m) + stats.norm.logpdf(s)
    log_density += stats.norm.logpdf(y[:, None, None], m, np.exp(s)).sum(axis=0)
    weight = np.exp(log_density - log_density.max())
    assert_mean(draws.posterior["mean"].values, np.sum(weight * m) / weight.sum())
    assert_mean(draws.posterior["log_sd"].values, np.sum(weight * s) / weight.sum())


def test_a_markov_model_knows_its_parameters_and_its_runs_can_be_diagnosed():
    model = co.Markov(
        shared={"rate": ()},
        noise=(),
        steps=4,
        initial=lambda s, n: jnp.ones(()),
        step=lambda s, x, n, t: jnp.tanh(s["rate"]) * x + 0.5 * n,
    )
    y = np.array([0.5, 0.4, 0.1, 0.3])
    draws = co.approximate.mcmc(model, {"y": y}, epsilon=1.5, draws=100, chains=2, progress=False)
    assert draws.posterior["rate"].shape == (2, 100)
    said = str(co.diagnose(draws))
    assert "approximated" in said
    assert "projection" not in said
    weighed = co.approximate.reject(model, {"y": y}, epsilon=0.1, kernel="gaussian")
    assert "effective draws" in str(co.diagnose(weighed))


COUNTS = co.Generator(
    lambda u: {"z": u["z"], "y": jnp.round(10 * u["z"] + 3 * u["n"]).astype(jnp.int8)},
    inputs={"z": (), "n": ()},
    parameters=["z"],
)


def test_counts_are_compared_as_numbers_and_the_tolerance_falls_though_many_are_equally_far():
    draws = co.approximate.smc(COUNTS, {"y": 3}, epsilon=0.5, particles=300)
    assert draws.attrs["epsilon"] < 1
    assert draws.attrs["simulations"] < 100_000
    assert 50 < draws.attrs["effective_size"] <= 300
    near = co.approximate.reject(COUNTS, {"y": 3.4}, epsilon=0.5, simulations=5000)
    np.testing.assert_allclose(near.sample_stats["distance"], 0.4)
    assert abs(float(near.posterior["z"].mean()) - 0.28) < 0.1


def test_models_that_factor_matrices_do_not_deadlock_in_threads():
    def simulate(u):
        A = jnp.eye(10) + 0.1 * u["A"] @ u["A"].T
        return {"z": u["z"], "y": u["z"] + jnp.linalg.solve(A, jnp.ones(10))[0]}

    model = co.Generator(simulate, inputs={"z": (), "A": (10, 10)}, parameters=["z"])
    draws = co.approximate.reject(model, {"y": 1.0}, epsilon=0.1, simulations=20_000)
    assert draws.attrs["accepted"] > 100


def test_chains_start_where_the_models_own_factor_allows():
    model = co.Generator(
        lambda u: {"z": u["z"], "y": u["z"] + u["n"]},
        inputs={"z": (), "n": ()},
        parameters=["z"],
        log_factor=lambda outputs: jnp.where(outputs["z"] > 1.0, 0.0, -jnp.inf),
    )
    options = {"epsilon": 0.5, "draws": 50, "warmup": 20, "chains": 2, "progress": False}
    for method in (co.approximate.elliptical_slice, co.approximate.mcmc):
        assert float(method(model, {"y": 0.0}, **options).posterior["z"].min()) > 1.0
    with pytest.raises(StartError, match="possible"):
        co.approximate.elliptical_slice(model, {"y": 0.0}, start=np.zeros((2, 2)), **options)


def test_hamiltonian_abc_reports_what_the_parameters_determine():
    draws = co.approximate.hamiltonian(
        location(),
        {"y": Y},
        outputs=lambda parameters: {"twice": 2 * parameters["z"]},
        draws=20,
        warmup=30,
        chains=2,
        progress=False,
    )
    assert list(draws.posterior) == ["twice"]


def test_sequential_abc_keeps_its_last_level_when_interrupted(monkeypatch):

    move = _Population._move

    def interrupted(self, epsilon):
        if len(self.history) == 2:
            raise KeyboardInterrupt
        return move(self, epsilon)

    monkeypatch.setattr(_Population, "_move", interrupted)
    with pytest.warns(co.errors.SamplingWarning, match="interrupted"):
        draws = co.approximate.smc(location(), {"y": Y}, epsilon=0.1, particles=200)
    assert draws.posterior["z"].shape == (1, 200)
    assert draws.sample_stats["distance"].max() <= draws.attrs["epsilon"]


@pytest.mark.parametrize("kernel", ["uniform", "gaussian"])
def test_particles_are_copied_in_proportion_to_their_weights(kernel, x64):
    target = soften(location(), {"y": Y}, 0.1, kernel)
    population, same = (_Population(target, None, 500, 0) for _ in range(2))
    epsilon, _ = population._next_tolerance(np.inf, 0.1)
    weights = normalised(np.asarray(_log_weights(target, same._at, np.inf, epsilon)))
    copies = np.array([np.sum(np.all(population._at.u == u, axis=1)) for u in same._at.u])
    assert np.all(np.abs(copies - 500 * weights) < 1)
