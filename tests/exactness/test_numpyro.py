"""NumPyro models observed at any site, against exact answers."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from scipy import stats
from scipy.integrate import quad

import coarea as co
from exact import assert_mean


def draws_of(model, observed=None, *, draws=2000, chains=2, **options):
    posterior = co.condition(model, observed, **options)
    return co.sample(posterior, draws=draws, chains=chains, progress=False).posterior


def exponentials():
    x = numpyro.sample("x", dist.Exponential(1.0).expand([5]).to_event(1))
    numpyro.deterministic("total", x.sum())


def test_exponentials_with_a_known_sum_are_dirichlet():
    share = draws_of(exponentials, {"total": 42.0})["x"].values / 42.0
    np.testing.assert_allclose(share.sum(-1), 1.0, rtol=1e-8)
    for i in range(5):
        assert_mean(share[..., i], 1 / 5)
        assert_mean((share[..., i] - 1 / 5) ** 2, (1 / 5) * (4 / 5) / 6)


def test_normals_with_a_known_sum_are_the_gaussian_conditional():
    mean, sd = np.array([1.0, 2.0, -1.0]), np.array([1.0, 0.5, 2.0])

    def model():
        x = numpyro.sample("x", dist.Normal(mean, sd).to_event(1))
        numpyro.deterministic("total", x @ np.array([1.0, 2.0, 3.0]))

    x = draws_of(model, {"total": 5.0})["x"].values
    a = np.array([1.0, 2.0, 3.0])
    gain = sd**2 * a / (a**2 @ sd**2)
    for i, exact in enumerate(mean + gain * (5.0 - a @ mean)):
        assert_mean(x[..., i], exact)
    for i, exact in enumerate(sd**2 - gain * a * sd**2):
        assert_mean((x[..., i] - x[..., i].mean()) ** 2, exact)


def test_a_known_product_of_log_normals():
    def model():
        with numpyro.plate("factors", 3):
            x = numpyro.sample("x", dist.LogNormal(0.0, np.array([0.5, 1.0, 1.5])))
        numpyro.deterministic("product", jnp.prod(x))

    logs = np.log(draws_of(model, {"product": 10.0})["x"].values)
    variance = np.array([0.25, 1.0, 2.25])
    for i in range(3):
        assert_mean(logs[..., i], variance[i] / variance.sum() * np.log(10.0))


def test_a_known_sum_of_gammas_gives_beta_shares():
    """Gamma has no map from normals: it enters by its density."""

    def model():
        a = numpyro.sample("a", dist.Gamma(2.0, 3.0))
        b = numpyro.sample("b", dist.Gamma(5.0, 3.0))
        numpyro.deterministic("total", a + b)

    share = draws_of(model, {"total": 4.0})["a"].values / 4.0
    exact = stats.beta(2.0, 5.0)
    assert_mean(share, exact.mean())
    assert_mean((share - exact.mean()) ** 2, exact.var())


def test_a_known_ratio_is_not_a_known_difference():
    """Borel–Kolmogorov: a/b = 2 and a − 2b = 0 hold for the same pairs, with other weights."""

    def model():
        a = numpyro.sample("a", dist.Normal(2.0, 1.0))
        b = numpyro.sample("b", dist.Normal(1.5, 0.5))
        numpyro.deterministic("ratio", a / b)
        numpyro.deterministic("difference", a - 2 * b)

    def density(b):
        return stats.norm.pdf(2 * b, 2.0, 1.0) * stats.norm.pdf(b, 1.5, 0.5)

    def mean_of(weight):
        total = quad(lambda b: weight(b) * density(b), -3, 5)[0]
        return quad(lambda b: b * weight(b) * density(b), -3, 5)[0] / total

    ratio, difference = mean_of(abs), mean_of(lambda b: 1.0)
    assert abs(ratio - difference) > 0.09
    assert_mean(draws_of(model, {"ratio": 2.0})["b"].values, ratio)
    assert_mean(draws_of(model, {"difference": 0.0})["b"].values, difference)


def test_an_exact_constraint_beside_a_poisson_likelihood():
    def model():
        a = numpyro.sample("a", dist.Gamma(2.0, 1.0))
        b = numpyro.sample("b", dist.Normal(0.0, 1.0))
        numpyro.deterministic("sum", a + b)
        numpyro.sample("count", dist.Poisson(a), obs=3)

    def density(a):
        return stats.gamma.pdf(a, 2.0) * stats.norm.pdf(2.0 - a) * stats.poisson.pmf(3, a)

    total = quad(density, 0, 20)[0]
    mean = quad(lambda a: a * density(a), 0, 20)[0] / total
    result = co.sample(co.condition(model, {"sum": 2.0}), draws=2000, chains=2)
    assert_mean(result.posterior["a"].values, mean)
    assert int(result.observed_data["count"]) == 3
    assert float(result.observed_data["sum"]) == 2.0


GROUPS = np.repeat(np.arange(4), 6)
Y = np.array([1.2, -0.3, 0.8, 2.1])[GROUPS] + 0.5 * np.random.default_rng(0).normal(size=24)


def hierarchy(y=None):
    mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(1.0))
    sigma = numpyro.sample("sigma", dist.Exponential(1.0))
    with numpyro.plate("groups", 4):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
    with numpyro.plate("data", 24):
        numpyro.sample("y", dist.Normal(theta[GROUPS], sigma), obs=y)


def nuts(model, *args, draws=2000):
    with jax.enable_x64(True):
        kernel = numpyro.infer.NUTS(model, target_accept_prob=0.95)
        sampler = numpyro.infer.MCMC(
            kernel, num_warmup=500, num_samples=draws, num_chains=1, progress_bar=False
        )
        sampler.run(jax.random.key(0), *args)
        return {k: np.asarray(v)[None] for k, v in sampler.get_samples().items()}


def assert_same_mean(ours, theirs, limit=4.0):
    from arviz_stats.sampling_diagnostics import ess

    errors = [np.std(x) / np.sqrt(float(ess(x, method="mean"))) for x in (ours, theirs)]
    off = (np.mean(ours) - np.mean(theirs)) / np.hypot(*errors)
    assert abs(off) < limit, f"{np.mean(ours):.4g}, NUTS {np.mean(theirs):.4g}: {off:+.1f} errors"


def test_a_hierarchy_agrees_with_nuts_given_the_likelihood():
    posterior = co.condition(hierarchy, {"y": Y})
    assert posterior.structure.startswith("elementwise: "), posterior.structure
    ours = co.sample(posterior, draws=2000, chains=2).posterior
    theirs = nuts(hierarchy, Y)
    assert set(ours) == {"mu", "tau", "sigma", "theta"}
    for name in ("mu", "sigma"):
        assert_same_mean(ours[name].values, theirs[name])
        assert_same_mean(
            (ours[name].values - ours[name].values.mean()) ** 2,
            (theirs[name] - theirs[name].mean()) ** 2,
        )
    assert_same_mean(np.log(ours["tau"].values), np.log(theirs["tau"]))
    for i in range(4):
        assert_same_mean(ours["theta"].values[..., i], theirs["theta"][..., i])


def test_data_may_come_by_obs_by_name_or_as_a_likelihood(x64):
    """Three ways to say the same; the last without noise beside an exact constraint."""
    by_name, by_obs = co.condition(hierarchy, {"y": Y}), co.condition(hierarchy, args=(Y,))
    u = by_name.guess(jax.random.key(0))
    np.testing.assert_allclose(by_name.residual(u), by_obs.residual(u), rtol=1e-12)
    np.testing.assert_allclose(
        by_name.evaluate(u).log_density, by_obs.evaluate(u).log_density, rtol=1e-12
    )


def test_a_likelihood_without_a_noise_input_has_the_same_posterior():
    def model(y):
        mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
        nu = numpyro.sample("nu", dist.Normal(0.0, 2.0))
        numpyro.deterministic("sum", mu + nu)
        numpyro.sample("y", dist.Normal(mu, 1.0).expand([6]).to_event(1), obs=y)

    y = np.linspace(-1.0, 2.0, 6)
    # mu | sum: N(1.5, 2); with six observations of unit variance.
    precision = 1 / 2.0 + 6
    mean = (1.5 / 2.0 + y.sum()) / precision
    for names in (None, ()):
        posterior = co.condition(model, {"sum": 3.0}, args=(y,), noise_inputs=names)
        assert posterior.num_constraints == (7 if names is None else 1)
        mu = co.sample(posterior, draws=2000, chains=2).posterior["mu"].values
        assert_mean(mu, mean)
        assert_mean((mu - mean) ** 2, 1 / precision)


def test_sites_that_follow_observed_ones_see_the_data(x64):
    """An autoregression written as observed sites: each depends on data, so that none couple."""

    def model(y):
        phi = numpyro.sample("phi", dist.Uniform(-1.0, 1.0))
        x = 0.0
        for t in range(len(y)):
            x = numpyro.sample(f"y{t}", dist.Normal(phi * x, 0.5), obs=y[t])

    posterior = co.condition(model, args=(np.array([0.5, 0.7, 0.2, -0.4]),))
    assert posterior.structure.startswith("elementwise: "), posterior.structure


def test_missing_values_are_masked_and_come_back_as_draws():
    y = np.ma.masked_invalid(np.where(np.arange(24) % 5 == 0, np.nan, Y))
    result = co.sample(co.condition(hierarchy, {"y": y}), draws=500, chains=1)
    drawn = result.posterior["y"].values
    known = ~np.ma.getmaskarray(y)
    np.testing.assert_allclose(
        drawn[..., known], np.broadcast_to(Y[known], (1, 500, known.sum())), atol=1e-7
    )
    assert np.all(np.std(drawn[..., ~known], axis=(0, 1)) > 0.1)


def test_a_substituted_site_is_no_input(x64):
    posterior = co.condition(handlers.substitute(hierarchy, {"sigma": 0.5}), {"y": Y})
    latents = posterior.reporter.latents(posterior.guess(jax.random.key(0)))
    assert latents["sigma"] == 0.5
    assert posterior.num_inputs == 6 + 24


def test_a_site_may_be_reparameterised(x64):
    reparam = {"theta": numpyro.infer.reparam.LocScaleReparam(0.0)}
    posterior = co.condition(handlers.reparam(hierarchy, reparam), {"y": Y})
    latents = posterior.reporter.latents(posterior.guess(jax.random.key(0)))
    assert {"mu", "tau", "sigma", "theta", "theta_decentered"} == set(latents)


def masked(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
    with handlers.mask(mask=np.arange(6) < 4):
        numpyro.sample("y", dist.Normal(mu, 1.0).expand([6]), obs=y)


def test_a_masked_observation_does_not_count(x64):
    y = np.linspace(-1.0, 2.0, 6)
    posterior = co.condition(masked, args=(y,))
    assert posterior.num_constraints == 4
    assert np.ma.getmaskarray(posterior.reporter.observed["y"]).sum() == 2


def test_a_scaled_likelihood_and_a_factor_enter_the_density(x64):
    def model():
        a = numpyro.sample("a", dist.Normal(0.0, 1.0))
        b = numpyro.sample("b", dist.Normal(0.0, 1.0))
        numpyro.deterministic("sum", a + b)
        with handlers.scale(scale=3.0):
            numpyro.sample("y", dist.Normal(a, 1.0), obs=0.7)
        numpyro.factor("more", -jnp.abs(b))

    posterior = co.condition(model, {"sum": 1.0})
    u = jnp.array([0.3, 0.9])
    expected = (
        stats.norm.logpdf([0.3, 0.9]).sum() + 3 * stats.norm.logpdf(0.7, 0.3) - 0.9
    ) - 0.5 * np.log(2.0)
    np.testing.assert_allclose(posterior.evaluate(u).log_density, expected, rtol=1e-12)


def test_what_is_masked_is_known_to_what_follows(x64):
    """A mask takes a site's likelihood away, not its data; what is missing has neither."""

    def model():
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        y = numpyro.sample("y", dist.Normal(x, 1.0).mask(False), obs=5.0)
        numpyro.deterministic("twice", 2 * y)
        numpyro.sample("z", dist.Normal(x, 1.0), obs=0.3)

    posterior = co.condition(model)
    assert posterior.num_constraints == 1
    assert posterior.reporter.latents(posterior.guess(jax.random.key(0)))["twice"] == 10.0

    def counts():
        rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
        numpyro.deterministic("double", 2 * rate + numpyro.sample("e", dist.Normal(0.0, 1.0)))
        c = numpyro.sample("c", dist.Poisson(rate).expand([3]))
        numpyro.deterministic("used", 1.0 * c)

    c = np.ma.array([4, 0, 7], mask=[False, True, False])
    posterior = co.condition(counts, {"double": 3.0, "c": c})
    u = posterior.guess(jax.random.key(0))
    np.testing.assert_array_equal(posterior.reporter.latents(u)["used"], [4.0, np.nan, 7.0])
    rate = float(posterior.reporter.latents(u)["rate"])
    expected = (
        stats.gamma.logpdf(rate, 2.0)
        + np.log(rate)  # of the bijection
        + stats.norm.logpdf(float(u[1]))
        + stats.poisson.logpmf([4, 7], rate).sum()
    )
    np.testing.assert_allclose(posterior.generator.log_density(u), expected, rtol=1e-10)


def test_density_terms_are_those_of_numpyro(x64):
    """Against NumPyro's own log density: factors and deltas in plates, scales, more data by obs."""

    def model():
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        w = numpyro.sample("w", dist.Normal(0.0, 1.0))
        numpyro.deterministic("sum", x + w)
        with numpyro.plate("three", 3):
            numpyro.factor("f", -jnp.abs(x))
            numpyro.sample("d", dist.Delta(1.0, log_density=0.3 * x))
        with handlers.scale(scale=2.0):
            numpyro.sample("d2", dist.Delta(jnp.zeros(3), log_density=x))
            numpyro.sample("t", dist.StudentT(4.0, x, 1.0), obs=np.array([0.3, 1.2]))
        with handlers.mask(mask=np.array([True, False])):
            numpyro.sample("n", dist.StudentT(4.0, x, 1.0), obs=np.array([0.5, np.nan]))

    posterior = co.condition(model, {"sum": 1.0})
    for u in (jnp.array([0.4, 0.6]), jnp.array([-1.1, 2.1])):
        values = {"x": u[0], "w": u[1], "d": jnp.ones(3), "d2": jnp.zeros(3)}
        with handlers.block():
            expected, _ = numpyro.infer.util.log_density(model, (), {}, values)
        np.testing.assert_allclose(posterior.generator.log_density(u), expected, rtol=1e-12)
        gradient = jax.grad(lambda u: posterior.generator.log_density(u))(u)
        assert np.all(np.isfinite(gradient))


def test_a_folded_distribution_stays_a_likelihood():
    def model():
        mu = numpyro.sample("mu", dist.Normal(0.5, 1.0))
        nu = numpyro.sample("nu", dist.Normal(0.5, 1.0))
        numpyro.deterministic("sum", mu + nu)
        numpyro.sample("y", dist.FoldedDistribution(dist.Normal(mu, 1.0)), obs=2.0)

    assert co.condition(model, {"sum": 1.0}).num_constraints == 1


def test_a_regression_with_ten_thousand_rows_is_elementwise():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(10_000, 3))
    y = X @ np.array([1.0, -1.0, 0.5]) + 0.3 * rng.normal(size=10_000)

    def model(X, y):
        beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
        sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
        with numpyro.plate("rows", len(X)):
            numpyro.sample("y", dist.Normal(X @ beta, sigma), obs=y)

    posterior = co.condition(model, args=(X, y))
    assert posterior.structure.startswith("elementwise: 10000 constraints"), posterior.structure
    assert "4 shared" in posterior.structure


def test_a_plate_of_vectors_is_blocks():
    covariance = np.array([[1.0, 0.3], [0.3, 0.5]])

    def model(y):
        mean = numpyro.sample("mean", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        scale = numpyro.sample("scale", dist.LogNormal(0.0, 0.3))
        with numpyro.plate("rows", len(y)):
            numpyro.sample("y", dist.MultivariateNormal(mean, scale**2 * covariance), obs=y)

    y = np.random.default_rng(0).normal(size=(7, 2))
    assert co.condition(model, args=(y,)).structure.startswith("blocks: 14 constraints in 7")


LIFTED = {
    "laplace": (lambda z: dist.Laplace(z, jnp.exp(0.5 * z)), 0.8),
    "half-Cauchy": (lambda z: dist.HalfCauchy(jnp.exp(z)), 2.0),
    "truncated normal": (lambda z: dist.TruncatedNormal(z, 1.0, low=0.0), 1.2),
    "gumbel, shifted": (
        lambda z: dist.TransformedDistribution(
            dist.Gumbel(0.0, 1.0), dist.transforms.AffineTransform(z, jnp.exp(0.3 * z))
        ),
        0.5,
    ),
}


@pytest.mark.parametrize("name", LIFTED)
def test_a_site_with_a_noise_input_has_the_posterior_of_its_likelihood(name):
    distribution, y = LIFTED[name]

    def model(y):
        z = numpyro.sample("z", dist.Normal(0.0, 1.0))
        numpyro.sample("y", distribution(z), obs=y)

    with jax.enable_x64(True):
        grid = np.linspace(-8, 8, 4001)
        table = jax.vmap(lambda z: distribution(z).log_prob(y))(jnp.asarray(grid))
        weight = np.exp(np.asarray(table)) * stats.norm.pdf(grid)
    weight /= weight.sum()
    posterior = co.condition(model, args=(y,))
    assert posterior.num_constraints == 1
    z = co.sample(posterior, draws=4000, chains=2).posterior["z"].values
    assert_mean(z, weight @ grid)
    assert_mean(z**2, weight @ grid**2)
