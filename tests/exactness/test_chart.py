"""Charts: the noise follows from the other inputs, and what is left is an ordinary density."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import coarea as co
from coarea.errors import ModelError, SettingError
from coarea.kernels.kernel import Tuning
from coarea.manifolds.parametrisation import chart_of
from coarea.manifolds.rescaling import Rescaling
from exact import assert_mean

Y = np.array([0.3, 1.9, -0.4, 1.1, 0.8])


def location_and_scale(u):
    scale = jnp.exp(u["s"])
    return {"m": u["m"], "s": u["s"], "y": u["m"] + scale * u["n"]}


LOCATION_AND_SCALE = co.Generator(location_and_scale, {"m": (), "s": (), "n": Y.size})


def on_grid(function):
    """The mean of a function of (m, s) given Y, by a sum over a fine grid."""
    m, s = np.meshgrid(np.linspace(-5, 5, 801), np.linspace(-3, 4, 801), indexing="ij")
    error = (Y[:, None, None] - m) / np.exp(s)
    weight = np.exp(-0.5 * (m**2 + s**2 + np.sum(error**2, axis=0)) - Y.size * s)
    return np.sum(function(m, s) * weight) / np.sum(weight)


@pytest.mark.parametrize(
    "kernel",
    [co.CHMC(), co.CHMC(num_steps=2, step_size=0.4, mass="identity"), co.NUTS(mass="diagonal")],
    ids=["CHMC", "a coarse step", "diagonal mass"],
)
def test_a_location_and_a_scale(kernel):
    """Without |det B| the scale is biased; without the accept step the coarse one is."""
    posterior = co.condition(LOCATION_AND_SCALE, {"y": Y})
    # With a coarse step few go into the tails, and stay there long: fewer say too little of them.
    options = {"draws": 60_000, "warmup": 300, "chains": 2, "keep": "inputs"}
    draws = co.sample(posterior, kernel=kernel, parametrisation="chart", **options)
    assert draws.attrs["parametrisation"].startswith("chart: 2 inputs move")
    m, s = (draws.posterior[name].values for name in "ms")
    assert_mean(m, on_grid(lambda m, s: m))
    assert_mean(s, on_grid(lambda m, s: s))
    assert_mean(m**2, on_grid(lambda m, s: m**2))
    assert_mean(s**2, on_grid(lambda m, s: s**2))
    assert draws.sample_stats["constraint_error"].max() < 1e-12
    n = draws["inputs"]["n"].values
    np.testing.assert_allclose(m[..., None] + np.exp(s)[..., None] * n, np.broadcast_to(Y, n.shape))


def curve(u):
    return jnp.sin(u["a"]) + jnp.exp(0.3 * u["b"][0])


MIXED = np.array([[1.0, 0.5], [-0.3, 2.0]])
MODELS = {
    "noise for each": (
        lambda u: {"a": u["a"], "y": curve(u) * jnp.arange(1.0, 5.0) + (1 + u["a"] ** 2) * u["n"]},
        {"a": (), "b": 2, "n": 4},
    ),
    "noise that mixes in pairs": (
        lambda u: {"a": u["a"], "y": curve(u) + jnp.exp(u["a"]) * u["n"] @ MIXED},
        {"a": (), "b": 2, "n": (3, 2)},
    ),
    "all noise mixes": (
        lambda u: {"a": u["a"], "y": curve(u) + u["n"] @ MIXED},
        {"a": (), "b": 2, "n": 2},
    ),
    "one observed value": (
        lambda u: {"a": u["a"], "y": curve(u) + 0.1 * u["n"]},
        {"a": (), "b": 2, "n": ()},
    ),
    "log-normal noise": (
        lambda u: {"a": u["a"], "y": 2 + curve(u) * jnp.exp(jnp.tanh(u["a"]) * 0.3 * u["n"])},
        {"a": (), "b": 2, "n": 4},
    ),
    "noise through several functions": (
        lambda u: {
            "a": u["a"],
            "y": jnp.concatenate(
                [
                    jnp.arcsinh(curve(u) - 2 * u["n"][:4].reshape(2, 2).T.ravel()),
                    1 / (1 + jnp.exp(u["a"] + 0.5 * u["n"][:3:-1])),
                ]
            ),
        },
        {"a": (), "b": 2, "n": 7},
    ),
    "log-normal noise, taken apart": (
        lambda u: {
            "a": u["a"],
            "y": jnp.exp(u["a"] + jnp.exp(0.3 * u["b"][0]) * u["n"])[jnp.array([2, 0, 3])],
        },
        {"a": (), "b": 2, "n": 4, "empty": 0},
    ),
    "latents beside the noise": (
        lambda u: {"a": u["a"], "y": u["x"] ** 2 + u["a"] + 0.5 * u["n"]},
        {"a": (), "x": 3, "n": 3, "unused": 2},
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_its_density_is_that_of_the_manifold_without_its_volume(name, x64):
    """Also after rescaling."""
    function, inputs = MODELS[name]
    model = co.Generator(function, inputs)
    y = model.simulate(jax.random.key(1), 1)["y"][0]
    dense = co.condition(model, {"y": y}, structure="dense")
    parametrisation = chart_of(co.condition(model, {"y": y}))
    chart = parametrisation.target
    assert parametrisation.words.startswith(f"chart: {chart.num_inputs} inputs move")
    assert chart.num_inputs == dense.num_inputs - dense.num_constraints
    lower = np.tril(np.random.default_rng(0).normal(size=2 * (chart.num_inputs,)))
    lower[np.diag_indices_from(lower)] = 1.5
    rescaled = chart.rescale(Rescaling(jnp.asarray(lower)))

    @jax.jit
    def facts(v):
        u = parametrisation.to_whole(v)
        return {
            "residual": dense.residual(u),
            "back": parametrisation.from_whole(u),
            "tangents": jax.jacfwd(parametrisation.to_whole)(v),
            "here": jax.value_and_grad(chart.log_density)(v),
            "on the manifold": dense.evaluate(u).log_density,
            "rescaled": jax.value_and_grad(rescaled.log_density)(jnp.linalg.solve(lower, v)),
        }

    for v in np.random.default_rng(1).normal(size=(3, chart.num_inputs)):
        found = jax.tree.map(np.asarray, facts(v))
        assert np.max(np.abs(found["residual"])) < 1e-12
        np.testing.assert_array_equal(found["back"], v)
        gram = found["tangents"].T @ found["tangents"]
        log_density, gradient = found["here"]
        volume = 0.5 * np.linalg.slogdet(gram)[1]
        np.testing.assert_allclose(log_density, found["on the manifold"] + volume)
        np.testing.assert_allclose(found["rescaled"][0], log_density)
        np.testing.assert_allclose(found["rescaled"][1], lower.T @ gradient, rtol=1e-8)


def test_a_simulator_that_steps_through_time(x64):
    """All states are seen: the steps decouple. Some are hidden: the noise of readings is solved."""
    facts = {
        "shared": {"rate": ()},
        "noise": 1,
        "steps": 12,
        "initial": lambda s, n: jnp.zeros(1),
        "step": lambda s, x, n, t: x - 0.1 * jnp.exp(s["rate"]) * jnp.sin(x) + 0.3 * n,
    }
    seen = co.Markov(**facts)
    y = seen.simulate(jax.random.key(0), 1)["y"][0]
    assert chart_of(co.condition(seen, {"y": y})).target.num_inputs == 1
    hidden = co.Markov(**facts, observe=lambda s, x, n, t: x + n, observe_noise=1, observe_every=3)
    y = hidden.simulate(jax.random.key(0), 1)["y"][0]
    lifted = co.condition(hidden, {"y": y})
    chart = chart_of(lifted)
    assert chart.target.num_inputs == 13
    v = chart.target.guess(jax.random.key(1))
    assert chart.reporter.latents(v)["x"].shape == (4, 1)
    w = chart.to_whole(v)
    assert lifted.constraint_error(w) < 1e-12
    np.testing.assert_array_equal(chart.from_whole(w), v)


@pytest.mark.parametrize("parametrisation", ["manifold", "chart"])
def test_a_local_level_agrees_with_its_smoother(parametrisation):
    """A random walk seen with noise: the posterior of its states is normal."""
    T, step, noise = 6, 0.5, 0.3
    model = co.Markov(
        shared={"unused": ()},
        noise=1,
        steps=T,
        initial=lambda s, n: jnp.zeros(1),
        step=lambda s, x, n, t: x + step * n,
        observe=lambda s, x, n, t: x + noise * n,
        observe_noise=1,
    )
    y = model.simulate(jax.random.key(3), 1)["y"][0]
    prior = step**2 * np.minimum.outer(np.arange(T) + 1.0, np.arange(T) + 1.0)
    gain = prior @ np.linalg.inv(prior + noise**2 * np.eye(T))
    mean, covariance = gain @ y[:, 0], prior - gain @ prior
    posterior = co.condition(model, {"y": y})
    draws = co.sample(posterior, draws=4000, chains=2, parametrisation=parametrisation)
    x = draws.posterior["x"].values[..., 0]
    for t in range(T):
        assert_mean(x[..., t], mean[t])
        assert_mean((x[..., t] - mean[t]) ** 2, covariance[t, t])


def test_a_run_starts_where_it_is_given_and_goes_on_where_it_ended():
    """Start points are those of the manifold, and a run goes on as it went, or otherwise."""
    posterior = co.condition(LOCATION_AND_SCALE, {"y": Y})
    start = co.find_start(posterior, jax.random.key(0), chains=2)
    assert start.shape == (2, 7)
    options = {"chains": 2, "parametrisation": "chart"}
    whole = co.sample(posterior, draws=60, warmup=100, start=start, **options)
    half = co.sample(posterior, draws=30, warmup=100, start=start, **options)
    np.testing.assert_array_equal(whole.posterior["m"][:, :30], half.posterior["m"])
    assert whole["adapted"]["position"].shape == (2, 7)
    assert whole["adapted"]["scale"].shape == (2, 2, 2)
    more = co.sample(posterior, draws=20, warmup=0, chains=2, start=half, seed=1)
    assert more.attrs["parametrisation"] == half.attrs["parametrisation"]
    np.testing.assert_array_equal(more["adapted"]["scale"], half["adapted"]["scale"])
    assert float(more.sample_stats["acceptance_rate"].mean()) > 0.5
    other = co.sample(
        posterior, draws=20, warmup=50, chains=2, start=half, parametrisation="manifold"
    )
    assert other.attrs["parametrisation"].startswith("manifold")
    assert np.all(np.isfinite(other.posterior["m"]))
    with pytest.raises(SettingError, match="2 chains on 7 inputs need"):
        co.sample(posterior, chains=2, start=np.zeros((2, 2)))


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda a, n: a + n + jnp.tanh(n), "as a summand"),
        (lambda a, n: a + jax.nn.softplus(n), "as a summand"),
        (lambda a, n: jnp.abs(a + n), "as a summand"),
        (lambda a, n: jnp.mod(a + 0.3 * n, 6.0), "as a summand"),
        (lambda a, n: a + jnp.where(n > 0, 2 * n, 0.5 * n), "as a summand"),
        (lambda a, n: a + jnp.clip(n, -3.0, 3.0), "as a summand"),
        (lambda a, n: a + jnp.maximum(a, 0.0) * n, "vanishes"),
        (lambda a, n: a * jnp.ones(3), "as many noises"),
    ],
)
def test_noise_that_cannot_be_solved_for_is_an_error(function, reason):
    """What enters in pieces has no derivative that tells, and more solutions than are found."""
    model = co.Generator(lambda u: {"y": function(u["a"], u["n"])}, {"a": (), "n": 3})
    posterior = co.condition(model, {"y": np.ones(3)})
    with pytest.raises(ModelError, match=reason):
        chart_of(posterior)


def test_noise_is_found_among_inputs_as_narrow():
    model = co.Generator(
        lambda u: {"y": u["x"] ** 3 + u["s"] + 0.5 * u["n"], "z": u["s"] + 0.7 * u["m"]},
        {"s": (), "x": 4, "n": 4, "m": 3},
    )
    posterior = co.condition(model, {"y": np.ones(4), "z": np.ones(3)})
    assert chart_of(posterior).target.num_inputs == 5


def test_one_coordinate_and_hardly_any_warm_up():
    model = co.Generator(lambda u: {"a": u["a"], "y": u["a"] + u["n"]}, {"a": (), "n": 3})
    posterior = co.condition(model, {"y": np.ones(3)})
    kernel = co.NUTS(step_size=0.5)
    options = {"draws": 5, "warmup": 10, "chains": 1}
    draws = co.sample(posterior, kernel=kernel, parametrisation="chart", **options)
    assert np.all(np.isfinite(draws.posterior["a"]))


def test_a_trajectory_that_is_lost_is_not_followed_and_tells_nothing(x64):
    """Thousands of chains in lockstep would all wait for one that had adapted to it."""
    posterior = chart_of(co.condition(LOCATION_AND_SCALE, {"y": Y})).target
    kernel = co.CHMC()
    state = kernel.init(posterior, jnp.asarray([0.5, 0.0]))
    known = Tuning(jnp.asarray(100.0), jnp.asarray(1.5), jnp.asarray(True), jnp.asarray(0.5))
    step = jax.vmap(lambda key: kernel.step(posterior, key, state, known)[1])
    info = step(jax.random.split(jax.random.key(0), 100))
    lost = np.asarray(info.is_divergent)
    assert lost.sum() > 50
    assert np.all(info.num_integration_steps[lost] == 1)
    np.testing.assert_array_equal(info.u_turn_time[lost], 1.5)
