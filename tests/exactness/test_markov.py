"""Simulators given by their time step: the same posterior as written otherwise, at linear cost."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import coarea as co
from coarea.jacobians.dense import Dense
from coarea.manifolds import LiftedPosterior
from coarea.manifolds.rescaling import Rescaling
from exact import assert_mean

T = 8


def step(s, x, n, t):
    """A nonlinear process that reverts to zero, its noises not mixed."""
    decay = 0.5 * jnp.tanh(s["z"][0] + 1.0)
    pull = jnp.stack([decay * x[0] - 0.3 * jnp.tanh(x[1]), 0.4 * x[1] + 0.2 * jnp.sin(x[0])])
    return pull + jnp.exp(0.3 * s["z"][1] - 0.5) * n + 0.1 * jnp.cos(0.5 * t)


def markov(**options):
    return co.Markov(
        shared={"z": 2},
        noise=2,
        steps=T,
        initial=lambda s, n: jnp.stack([s["z"][0], jnp.ones_like(s["z"][0])]),
        step=step,
        **options,
    )


def scan(u):
    def one(x, inputs):
        x = step(u, x, *inputs)
        return x, x

    first = jnp.stack([u["z"][0], jnp.ones_like(u["z"][0])])
    return {"z": u["z"], "y": jax.lax.scan(one, first, (u["noise"], jnp.arange(T)))[1]}


def data():
    return np.random.default_rng(3).normal(size=(T, 2))


def four_ways():
    generator = co.Generator(scan, {"z": 2, "noise": (T, 2)})
    y = {"y": data()}
    return {
        "dense": co.condition(generator, y, structure="dense"),
        "triangular": co.condition(generator, y),
        "elementwise": co.condition(markov(), y),
        "markov": co.condition(markov(), y, structure="markov"),
    }


def test_each_way_of_writing_finds_its_structure():
    for name, posterior in four_ways().items():
        assert posterior.structure.startswith(f"{name}: "), posterior.structure


def test_it_simulates_like_a_generator():
    generator = co.Generator(scan, {"z": 2, "noise": (T, 2)})
    ours, theirs = (m.simulate(jax.random.key(0), 5) for m in (markov(), generator))
    np.testing.assert_allclose(ours["y"], theirs["y"], rtol=1e-12)
    np.testing.assert_array_equal(ours["x"], ours["y"])


def test_densities_gradients_and_projections_agree(x64):
    """Where the space is the same: densities up to a constant, gradients along the manifold."""
    ways = four_ways()
    del ways["markov"]
    u = jnp.asarray(co.find_start(ways["elementwise"], jax.random.key(0), 2))
    p = jax.random.normal(jax.random.key(1), u.shape[1:])
    found = {}
    for name, way in ways.items():
        assert float(jnp.max(jnp.abs(way.residual(u[0])))) < 1e-8
        here, there = way.evaluate(u[0]), way.evaluate(u[1])
        found[name] = (
            here.log_density - there.log_density,
            here.linearisation.project(here.gradient),
            here.linearisation.project(p),
        )
    for name in ("triangular", "elementwise"):
        for ours, dense in zip(found[name], found["dense"], strict=True):
            np.testing.assert_allclose(ours, dense, rtol=0, atol=1e-9)


def test_moments_do_not_depend_on_how_the_model_is_written():
    """Against the tractable likelihood of the fully observed process, by quadrature."""
    y = data()

    def log_density(z):
        with jax.enable_x64(True):
            first = jnp.stack([z[0], jnp.ones_like(z[0])])
            before = jnp.concatenate([first[None], y[:-1]])
            sd = jnp.exp(0.3 * z[1] - 0.5)
            mean = jax.vmap(lambda x, t: step({"z": z}, x, jnp.zeros(2), t))(before, jnp.arange(T))
            return -0.5 * jnp.sum(((y - mean) / sd) ** 2) - 2 * T * jnp.log(sd) - 0.5 * z @ z

    with jax.enable_x64(True):
        grid = jnp.linspace(-5, 5, 400)
        table = jax.vmap(lambda a: jax.vmap(lambda b: log_density(jnp.stack([a, b])))(grid))(grid)
        weight = np.array(jnp.exp(table - table.max()))
    weight /= weight.sum()
    grid = np.asarray(grid)
    means = weight.sum(1) @ grid, weight.sum(0) @ grid
    for name, posterior in four_ways().items():
        draws = 400 if name == "dense" else 1000
        z = co.sample(posterior, draws=draws, warmup=250, chains=2).posterior["z"].values
        for i in range(2):
            assert_mean(z[..., i], means[i])


def test_a_start_leads_through_gaps_along_a_straight_path(x64):
    """Where nothing was seen, the path guessed joins what was seen before and after."""
    seen = np.ma.masked_all((10, 1))
    seen[[2, 8]] = [[1.0], [4.0]]
    model = co.Markov(
        shared={"z": ()},
        noise=(),
        steps=10,
        initial=lambda s, n: jnp.zeros(()),
        step=lambda s, x, n, t: 0.9 * x + jnp.exp(0.1 * s["z"]) * n,
        observe=lambda s, x, n, t: x[None],
    )
    posterior = co.condition(model, {"y": seen})
    path = posterior.reporter.latents(posterior.guess(jax.random.key(0)))["x"]
    expected = np.interp(np.arange(10), [2, 8], [1.0, 4.0])
    np.testing.assert_allclose(path, expected, atol=1e-8)


def partial_model(observe_noise, observe_every=1):
    return markov(
        observe=lambda s, x, n, t: (
            jnp.stack([x[0] + 0.2 * x[1] ** 2])
            if n is None
            else jnp.stack([x[0], x[0] * x[1]]) + 0.3 * n
        ),
        observe_noise=observe_noise,
        observe_every=observe_every,
    )


@pytest.mark.parametrize(
    ("observe_noise", "observe_every", "missing", "is_accelerator"),
    [
        (None, 1, 0, False),
        (None, 4, 0, False),
        (2, 2, 3, False),
        (None, 4, 0, True),
        (2, 1, 5, True),
    ],
)
def test_the_lifted_algebra_is_that_of_its_dense_jacobian(
    observe_noise, observe_every, missing, is_accelerator, x64, monkeypatch
):
    if is_accelerator:
        monkeypatch.setattr(jax.lax, "platform_dependent", lambda *x, cpu, default: default(*x))
    model = partial_model(observe_noise, observe_every)
    y = model.simulate(jax.random.key(0), 1)["y"][0]
    y = np.ma.masked_array(y, np.arange(y.size).reshape(y.shape) < missing)
    lifted = co.condition(model, {"y": y}, structure="markov")
    assert isinstance(lifted, LiftedPosterior)
    rng = np.random.default_rng(0)
    u = lifted.guess(jax.random.key(0))
    old = u + 0.05 * jnp.asarray(rng.normal(size=u.size))
    p, lam = jnp.asarray(rng.normal(size=u.size)), jnp.asarray(rng.normal(size=T * 9))
    rows = np.flatnonzero(np.any(np.asarray(jax.jacrev(lifted.residual)(u)) != 0, axis=1))
    assert len(rows) == lifted.num_constraints - missing
    lam = jnp.zeros(lifted.num_constraints).at[rows].set(lam[: len(rows)])
    dense = Dense(len(rows), u.size)

    def constraint(u):
        return lifted.residual(u)[rows]

    @jax.jit
    def ours():
        at, gradient = lifted.jacobian.linearise_and_differentiate(lifted, u)
        return (
            at.apply_transpose(lam),
            at.pseudo_inverse(lam),
            at.project(p),
            at.solve_newton(lifted.linearise(old), lam)[rows],
            at.half_log_det(),
            gradient,
        )

    @jax.jit
    def exact():
        at, gradient = dense.linearise_and_differentiate(constraint, u)
        return (
            at.apply_transpose(lam[rows]),
            at.pseudo_inverse(lam[rows]),
            at.project(p),
            at.solve_newton(dense.linearise(constraint, old), lam[rows]),
            at.half_log_det(),
            gradient,
        )

    for mine, theirs in zip(ours(), exact(), strict=True):
        size = float(jnp.max(jnp.abs(theirs)))
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-8 * size)


def test_scales_of_a_lifted_target_change_its_derivatives_as_they_must(x64):
    lifted = co.condition(partial_model(2), {"y": np.full((T, 2), 0.3)}, structure="markov")
    u = jax.jit(lambda key: lifted.guess(key))(jax.random.key(0))
    scales = jnp.exp(jax.random.normal(jax.random.key(1), u.shape))
    scaled = lifted.rescale(Rescaling(scales))
    evaluated = jax.jit(lambda w: scaled.evaluate(w))(u / scales)
    numerical = jax.jit(jax.grad(lambda w: scaled.evaluate(w).log_density))(u / scales)
    np.testing.assert_allclose(evaluated.gradient, numerical, rtol=1e-7, atol=1e-9)


def linear(observe_every=1):
    """Linear and Gaussian throughout: two states, of which the sum is seen with noise."""
    A = np.array([[0.9, 0.2], [-0.1, 0.7]])
    return co.Markov(
        shared={"level": ()},
        noise=2,
        steps=12,
        initial=lambda s, n: n,
        initial_noise=2,
        step=lambda s, x, n, t: A @ x + 0.3 * s["level"] + np.array([0.5, 0.2]) * n,
        observe=lambda s, x, n, t: x[0] + x[1] + 0.4 * n,
        observe_noise=(),
        observe_every=observe_every,
    )


@pytest.mark.parametrize(("observe_every", "missing"), [(3, ()), (1, (3, 4, 9))])
def test_smoothed_states_are_those_of_exact_gaussian_conditioning(observe_every, missing):
    model = linear(observe_every)
    y = np.ma.masked_array(np.random.default_rng(2).normal(size=12 // observe_every))
    for i in missing:
        y[i] = np.ma.masked
    with jax.enable_x64(True):
        zero = jnp.zeros(model.inputs.size)
        J = jax.jacfwd(lambda u: model.outputs(u))(zero)
    seen = ~np.ma.getmaskarray(y)
    G = np.asarray(J["y"])[seen]
    gain = G.T @ np.linalg.inv(G @ G.T)
    C = np.concatenate([np.asarray(J["x"]).reshape(-1, zero.size), np.asarray(J["level"])[None]])
    mean = C @ gain @ y[seen].data
    variance = np.diag(C @ (np.eye(zero.size) - gain @ G) @ C.T)
    draws = co.sample(co.condition(model, {"y": y}), draws=2000, chains=2, keep="inputs")
    x = draws.posterior["x"].values.reshape(2, 2000, -1)
    values = np.concatenate([x, draws.posterior["level"].values[..., None]], axis=-1)
    for i in range(0, len(mean), 3):
        assert_mean(values[..., i], mean[i])
        assert_mean((values[..., i] - mean[i]) ** 2, variance[i])
    # The states are those that the inputs lead to.
    last = np.concatenate([draws.inputs[name].values[0, -1].ravel() for name in model.inputs.names])
    with jax.enable_x64(True):
        again = model.outputs(jnp.asarray(last))
    np.testing.assert_allclose(again["x"].ravel(), x[0, -1], atol=1e-6)
    if missing:
        np.testing.assert_allclose(again["y"], draws.posterior["y"].values[0, -1], atol=1e-6)


def test_other_data_and_another_gap_compile_nothing_new(compilations):
    model = linear()
    y = np.ma.masked_array(np.linspace(-1, 1, 12))
    other = y.copy()
    y[3], other[7] = np.ma.masked, np.ma.masked
    options = {"draws": 5, "warmup": 20, "chains": 1, "parametrisation": "manifold"}
    co.sample(co.condition(model, {"y": y}), **options)
    assert compilations
    posterior = co.condition(model, {"y": other})
    compilations.clear()
    co.sample(posterior, **options)
    assert not compilations
    co.sample(posterior, **(options | {"keep": "inputs"}))
    assert compilations


def epidemic(days):
    """A stochastic SEIR model whose daily incidence is seen with 5% of noise."""

    def step(s, x, n, t):
        susceptible, exposed, infected, new = x
        infection = jnp.exp(0.3 * s["beta"] - 0.5) * susceptible * infected / 1e4
        rates = jnp.stack([infection, 0.25 * exposed, 0.2 * infected]) / 4
        flows = jnp.maximum(rates + jnp.sqrt(jnp.maximum(rates, 1e-9)) * n, 0.0)
        new = jnp.where(t % 4 == 0, 0.0, new) + flows[1]
        change = jnp.stack([-flows[0], flows[0] - flows[1], flows[1] - flows[2]])
        return jnp.append(x[:3] + change, new)

    return co.Markov(
        shared={"beta": ()},
        noise=3,
        steps=4 * days,
        initial=lambda s, n: jnp.array([9800.0, 100.0, 100.0, 0.0]),
        step=step,
        observe=lambda s, x, n, t: x[3] * jnp.exp(0.05 * n),
        observe_noise=(),
        observe_every=4,
    )


def test_starts_are_found_where_states_would_be_pulled_apart():
    """Among states and inputs together the search ends at noise many times too large."""
    model = epidemic(30)
    posterior = co.condition(model, {"y": model.simulate(1, 1)["y"][0]})
    starts = co.find_start(posterior, 0, 4)
    assert np.all(np.mean(starts[:, posterior.gaussian] ** 2, axis=1) < 2)


def test_inputs_are_lifted_to_the_states_they_lead_to(x64):
    model = markov(observe=lambda s, x, n, t: x[0] + n, observe_noise=(), observe_every=2)
    y = model.simulate(0, 1)["y"][0]
    y = np.ma.masked_array(y, [False, True, False, False])
    posterior = co.condition(model, {"y": y})
    u = posterior.unlifted.guess(jax.random.key(3))
    lifted = posterior.lift(u)
    for name, value in posterior.unlifted.reporter.inputs(u).items():
        np.testing.assert_allclose(posterior.reporter.inputs(lifted)[name], value)
    x = model.outputs(u)["x"]
    np.testing.assert_allclose(posterior.reporter.latents(lifted)["x"], x, rtol=1e-12)
    residual = posterior.residual(lifted).reshape(4, -1)
    np.testing.assert_allclose(residual[:, :2], 0.0, atol=1e-12)
    missed = posterior.unlifted.residual(u) / posterior.layout.data_unit
    np.testing.assert_allclose(residual[[0, 2, 3], 2], missed, rtol=1e-9)
