"""Posteriors on curves, known by one-dimensional quadrature."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import stats
from scipy.integrate import quad

import coarea as co
from coarea.dynamics import Newton, QuasiNewton, Rattle, Secant
from exact import assert_mean, standard_errors_off


def moments(density, functions, low, high):
    total = quad(density, low, high, limit=200)[0]
    return [
        quad(lambda x, f=f: f(x) * density(x), low, high, limit=200)[0] / total for f in functions
    ]


@pytest.fixture(scope="module")
def parabola():
    """y = u₁² + u₂ = 1 with logistic inputs; p(u₁ | y) ∝ ρ(u₁) ρ(y − u₁²)."""
    model = co.Generator(
        lambda u: {"a": u["a"], "y": u["a"] ** 2 + u["b"]},
        inputs={"a": dist.Logistic(0.5, 1.0), "b": dist.Logistic(0.0, 0.5)},
    )
    a = stats.logistic(0.5, 1.0)
    b = stats.logistic(0.0, 0.5)
    exact = moments(
        lambda x: a.pdf(x) * b.pdf(1.0 - x**2), [lambda x: x, lambda x: x**2], -8.0, 8.0
    )
    return co.condition(model, {"y": 1.0}), exact


def test_logistic_inputs_through_a_nonlinear_generator(parabola):
    posterior, (mean, square) = parabola
    draws = co.sample(posterior, draws=4000, warmup=300, chains=2)
    a = draws.posterior["a"].values
    assert_mean(a, mean)
    assert_mean(a**2, square)


def test_a_coarse_step_is_corrected_by_the_accept_step(parabola):
    """A step so large that a third of the proposals is refused; the draws stay exact."""
    posterior, (mean, square) = parabola
    kernel = co.CHMC(num_steps=3, step_size=0.9, geodesic_steps=2)
    draws = co.sample(posterior, draws=12_000, warmup=0, chains=2, kernel=kernel)
    stats = draws.sample_stats
    assert stats["acceptance_rate"].where(~stats["diverging"]).mean() < 0.95
    a = draws.posterior["a"].values
    assert_mean(a, mean)
    assert_mean(a**2, square)


def test_inputs_without_a_map_from_normals():
    """y = s·x = 1 with s ~ Gamma, x ~ Beta: p(s | y) ∝ p(s) p(y/s) / s."""
    model = co.Generator(
        lambda u: {"s": u["s"], "y": u["s"] * u["x"]},
        inputs={"s": dist.Gamma(3.0, 1.0), "x": dist.Beta(2.0, 3.0)},
    )
    s, x = stats.gamma(3.0), stats.beta(2.0, 3.0)
    (log_mean,) = moments(lambda v: s.pdf(v) * x.pdf(1.0 / v) / v, [np.log], 1.0, 60.0)
    draws = co.sample(co.condition(model, {"y": 1.0}), draws=4000, warmup=300, chains=2)
    assert_mean(np.log(draws.posterior["s"].values), log_mean)


@pytest.mark.parametrize("kernel", ["CHMC", "NUTS"])
@pytest.mark.parametrize(("reverse_check", "is_exact"), [(True, True), (False, False)])
def test_without_the_reverse_check_the_draws_are_biased(kernel, reverse_check, is_exact):
    """Uniform by length on an ellipse, with steps so large that projections land elsewhere."""
    ellipse = co.Manifold(
        lambda x: x[0] ** 2 / 9.0 + x[1] ** 2 - 1.0,
        lambda x: jnp.zeros(()),
        point=np.array([3.0, 0.0]),
    )
    speed = lambda t: np.sqrt(9.0 * np.sin(t) ** 2 + np.cos(t) ** 2)  # noqa: E731
    (exact,) = moments(speed, [lambda t: np.sin(t) ** 2], 0.0, np.pi / 2)
    integrator = Rattle(solvers=(QuasiNewton(),), reverse_check=reverse_check)
    kernels = {
        "CHMC": co.CHMC(num_steps=2, step_size=1.3, integrator=integrator),
        "NUTS": co.NUTS(step_size=1.3, integrator=integrator),
    }
    draws = co.sample(ellipse, draws=120_000, warmup=0, chains=2, kernel=kernels[kernel])
    off = standard_errors_off(draws.posterior["point"].values[..., 1] ** 2, exact)
    assert (abs(off) < 4) == is_exact
    assert is_exact or off > 10


class Whole(Rattle):
    """Runs the reverse check to convergence, not only until it is decided."""

    def _move(self, target, flow, state, tau, known_root=None):
        return super()._move(target, flow, state, tau)


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("solvers", [None, (Secant(8), Newton())])
def test_a_reverse_check_that_stops_early_decides_as_one_that_converges(solvers, together, x64):
    """On the same ellipse, where many a projection fails or lands elsewhere, no step differs."""
    ellipse = co.Manifold(
        lambda x: x[0] ** 2 / 9.0 + x[1] ** 2 - 1.0,
        lambda x: jnp.zeros(()),
        point=np.array([3.0, 0.0]),
    )

    def a_step_by(integrator):
        def one(key):
            t = jax.random.uniform(key, maxval=2 * jnp.pi)
            at = integrator.init(ellipse, jnp.stack([3 * jnp.cos(t), jnp.sin(t)]))
            return integrator.step(ellipse, integrator.refresh(key, at), jnp.asarray(2.0))

        keys = jax.random.split(jax.random.key(0), 20_000)
        mapped = jax.vmap(one) if together else lambda keys: jax.lax.map(one, keys)
        return jax.jit(mapped)(keys)

    shorter, whole = a_step_by(Rattle(solvers)), a_step_by(Whole(solvers))
    assert shorter.non_reversible_step.mean() > 0.01 < shorter.convergence_error.mean()
    np.testing.assert_array_equal(shorter.non_reversible_step, whole.non_reversible_step)
    np.testing.assert_array_equal(shorter.convergence_error, whole.convergence_error)
    np.testing.assert_allclose(shorter.position, whole.position, atol=1e-10)


def test_a_density_on_the_sphere():
    """Von Mises–Fisher: E[x] = (coth κ − 1/κ) μ, E[x xᵀ] in closed form."""
    kappa = 3.0
    sphere = co.Manifold(
        lambda x: x @ x - 1.0, lambda x: kappa * x[2], point=np.array([0.0, 0.0, 1.0])
    )
    x = co.sample(sphere, draws=4000, chains=2).posterior["point"].values
    mean = 1 / np.tanh(kappa) - 1 / kappa
    assert_mean(x[..., 2], mean)
    assert_mean(x[..., 0], 0.0)
    assert_mean(x[..., 2] ** 2, 1 - 2 * mean / kappa)


def test_uniform_by_area_on_the_torus():
    """The angle θ around the tube has density ∝ R + r cos θ, so E[cos θ] = r / 2R."""
    R, r = 2.0, 1.2

    def constraint(x):
        return (jnp.hypot(x["a"], x["b"]) - R) ** 2 + x["c"] ** 2 - r**2

    torus = co.Manifold(constraint, lambda x: jnp.zeros(()), point={"a": R + r, "b": 0.0, "c": 0.0})
    x = co.sample(torus, draws=8000, chains=2).posterior
    cosine = (np.hypot(x["a"].values, x["b"].values) - R) / r
    assert_mean(cosine, r / (2 * R))
    assert_mean(cosine**2, 0.5)
    assert_mean(x["a"].values, 0.0)


def test_a_masked_observation_is_not_conditioned_on():
    """Of y = (a + b, a − b, a) only the first is seen: a | y ~ N(y/2, 1/2)."""
    model = co.Generator(
        lambda u: {"a": u["a"], "y": jnp.stack([u["a"] + u["b"], u["a"] - u["b"], u["a"]])},
        inputs={"a": (), "b": ()},
    )
    data = np.ma.masked_invalid([1.0, np.nan, np.nan])
    draws = co.sample(co.condition(model, {"y": data}), draws=4000, chains=2)
    assert_mean(draws.posterior["a"].values, 0.5)
    assert_mean((draws.posterior["a"].values - 0.5) ** 2, 0.5)
    assert set(draws.posterior) == {"a", "y"}
    np.testing.assert_allclose(draws.posterior["y"].values[..., 0], 1.0, atol=1e-8)
    np.testing.assert_array_equal(np.isnan(draws.observed_data["y"]), [False, True, True])


def test_single_precision_follows_the_same_posterior():
    model = co.Generator(lambda u: {"a": u["a"], "y": u["a"] + u["b"]}, inputs={"a": (), "b": ()})
    posterior = co.condition(model, {"y": 1.0})
    draws = co.sample(posterior, draws=4000, chains=2, precision="float32")
    assert draws.posterior["a"].dtype == jnp.float32
    assert draws.sample_stats["convergence_error"].mean() < 0.01
    assert_mean(draws.posterior["a"].values.astype(float), 0.5)


def test_the_langevin_kernel_is_exact(parabola):
    posterior, (mean, _) = parabola
    draws = co.sample(posterior, draws=20_000, warmup=500, chains=2, kernel=co.Langevin())
    assert np.all(draws.sample_stats["n_steps"] == 1)
    assert_mean(draws.posterior["a"].values, mean)


def test_kernels_follow_blackjax(x64, parabola):
    posterior, (mean, _) = parabola
    algorithm = co.kernels.chmc(posterior, step_size=0.4, num_steps=(2, 5))
    state = algorithm.init(jnp.asarray(co.find_start(posterior, jax.random.key(0), 1)[0]))

    def one_step(state, key):
        state, info = algorithm.step(key, state)
        return state, (posterior.reporter.latents(state.position)["a"], info)

    keys = jax.random.split(jax.random.key(1), 40_000)
    _, (a, info) = jax.jit(lambda s: jax.lax.scan(one_step, s, keys))(state)
    assert_mean(np.asarray(a)[None], mean)
    finished = np.asarray(info.num_integration_steps)[~np.asarray(info.is_divergent)]
    assert set(finished) == {2, 3, 4, 5}
