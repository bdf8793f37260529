"""Hints to XLA: fused kernels and values computed once give the same results as without."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arviz_stats.sampling_diagnostics import ess

import coarea as co
from coarea.adaptation.plan import plan_for
from coarea.execution import blocks, run
from coarea.execution.transitions import ExactTransition, begin
from coarea.manifolds.parametrisation import chart_of
from coarea.xla import fuse_cpu, materialize, options

OPTIONS = {"xla_disable_hlo_passes": "dot-library-rewriter,cpu-parallel-task-assigner"}


def walk(key, x, count, is_odd, unused, small):
    """A loop of some length over a matrix, with arguments of many kinds."""
    del unused

    def body(i, carry):
        key, x, seen = carry
        key, now = jax.random.split(key)
        x = jnp.tanh(x @ x.T) @ x + jax.random.normal(now, x.shape) + is_odd * small
        return key, x, seen.at[i].set(x[0])

    start = key, x, jnp.zeros((10, 3))
    return jax.lax.fori_loop(0, count, body, start)


def arguments():
    unused, small = jnp.ones(4, jnp.float32), jnp.asarray(-3, jnp.int8)
    return jax.random.key(3), jnp.ones((2, 3)), jnp.asarray(7), jnp.asarray(True), unused, small


def test_a_fused_kernel_computes_the_same(x64):
    one = jax.jit(lambda *args: fuse_cpu(walk, args), compiler_options=OPTIONS)
    assert 'xla_cpu_small_call = "true"' in one.lower(*arguments()).as_text()
    (key, *found), (other, *exact) = one(*arguments()), walk(*arguments())
    np.testing.assert_array_equal(jax.random.key_data(key), jax.random.key_data(other))
    for x, y in zip(found, exact, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-12)


UNSUITED = {
    "LAPACK": lambda x: jnp.linalg.cholesky(jnp.outer(x, x) + jnp.eye(x.size))[0],
    "a sort": jnp.sort,
    "a scatter to several places": lambda x: x.at[jnp.argsort(x)[:2]].set(0.0),
    "a large array": lambda x: jnp.sum(jnp.outer(jnp.sin(jnp.arange(4000.0)), x)) + x,
    "a large product": lambda x: (jnp.outer(x, jnp.ones(90)) @ jnp.ones((90, 90)))[:, 0] + x,
    "a callback": lambda x: jax.pure_callback(lambda x: x, x, x),
}


@pytest.mark.parametrize("what", UNSUITED)
def test_what_cannot_be_fused_is_not(what, x64):
    function = UNSUITED[what]
    x = jnp.asarray([2.0, 1.0, 4.0, 3.0, 5.0])
    one = jax.jit(lambda x: fuse_cpu(function, (x,)))
    assert "small_call" not in one.lower(x).as_text()
    np.testing.assert_allclose(one(x), function(x), rtol=1e-12)
    instead = jax.jit(lambda x: fuse_cpu(function, (x,), otherwise=lambda x: -x))
    np.testing.assert_array_equal(instead(x), -x)


def test_complex_numbers_are_no_part_of_a_fused_kernel(x64):
    x = jnp.asarray([1.0 + 2.0j, 3.0])
    one = jax.jit(lambda x: fuse_cpu(jnp.conj, (x,)))
    np.testing.assert_array_equal(one(x), jnp.conj(x))


def noisy():
    x = np.linspace(0.1, 2.0, 250)

    def outputs(u):
        slope, scale = jnp.exp(u["z"])
        return {"z": u["z"], "line": slope * x[::10], "y": slope * x + scale * u["n"]}

    model = co.Generator(outputs, {"z": 2, "n": 250})
    y = model.simulate(jax.random.key(5), 1)["y"][0]
    return co.condition(model, {"y": y})


@pytest.mark.parametrize(
    ("num_chains", "is_chart", "kernel"),
    [(1, False, co.CHMC()), (3, False, co.NUTS()), (3, True, co.CHMC())],
)
def test_chains_make_the_same_draws(num_chains, is_chart, kernel, x64):
    posterior = noisy()
    start = jnp.asarray(co.find_start(posterior, jax.random.key(0), num_chains))
    if is_chart:
        chart = chart_of(posterior)
        posterior, start = chart.target, jax.vmap(chart.from_whole)(start)
    plan, reporter = plan_for(posterior, kernel, 0), posterior.reporter
    begun = begin(plan, posterior, jax.random.split(jax.random.key(1), num_chains), start, None)
    programs = [
        ExactTransition(plan, posterior, reporter, True, 1024, fuse) for fuse in (False, True)
    ]
    args = begun, jnp.asarray(0), jnp.asarray(10)
    plain, fused = (blocks.advance(program, *args)[1] for program in programs)
    lowered = blocks._advance_fused.lower(programs[1], *args)
    assert "xla_cpu_small_call" in lowered.as_text()
    assert float(plain.stats.acceptance_rate[:, :10].max()) > 0
    np.testing.assert_allclose(fused.latents["z"], plain.latents["z"], rtol=1e-6, atol=1e-8)
    np.testing.assert_array_equal(fused.stats.n_steps, plain.stats.n_steps)


def test_a_compiler_that_refuses_to_fuse_does_not_end_the_run(monkeypatch):
    tried = []

    def refuse(transition, _):
        tried.append(transition.fuse)
        if transition.fuse:
            raise jax.errors.JaxRuntimeError("UNIMPLEMENTED")

    monkeypatch.setattr(run, "compile_advance", refuse)
    options = {"chains": 2, "progress": False, "parametrisation": "manifold"}
    draws = co.sample(noisy(), draws=20, warmup=20, **options)
    assert draws.posterior["z"].shape == (2, 20, 2)
    assert tried == [True, False]


def test_what_is_materialized_is_the_same_and_computed_once(x64):
    def gram(x):
        y = materialize({"a": jnp.sin(x)})["a"]
        return y @ y.T

    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 3, 4)))
    exact = jnp.sin(x) @ jnp.swapaxes(jnp.sin(x), 1, 2)
    vectorised = jax.jit(jax.vmap(gram))
    np.testing.assert_allclose(vectorised(x), exact, rtol=1e-12)
    assert " call(" in vectorised.lower(x).compile().as_text()
    gradient = jax.grad(lambda x: jnp.sum(gram(x)))(x[0])
    exact = 2 * jnp.cos(x[0]) * jnp.sin(x[0]).sum(0, keepdims=True)
    np.testing.assert_allclose(gradient, exact, rtol=1e-12)


@pytest.fixture
def hints(monkeypatch):
    """A function that switches the hints on or off."""
    return lambda on: monkeypatch.setenv("COAREA_XLA_HINTS", "1" if on else "0")


@pytest.mark.parametrize("parametrisation", ["manifold", "chart"])
def test_draws_have_the_same_moments_without_hints(parametrisation, hints):
    posterior = noisy()
    options = {"parametrisation": parametrisation, "warmup": 200, "chains": 2}
    draws = []
    for on in (True, False):
        hints(on)
        found = co.sample(posterior, draws=2000, progress=False, **options)
        draws.append(found.posterior["z"].values)
    for power in (1, 2):
        for i in range(draws[0].shape[-1]):
            hinted, plain = (z[..., i] ** power for z in draws)
            errors = [x.std() / np.sqrt(float(ess(x, method="mean"))) for x in (hinted, plain)]
            assert abs(hinted.mean() - plain.mean()) < 4 * np.hypot(*errors)


def test_without_hints_programs_are_plain(hints, x64):
    posterior = noisy()
    plan = plan_for(posterior, co.CHMC(), 0)
    u = jnp.asarray(co.find_start(posterior, jax.random.key(0), 1))
    transition = ExactTransition(plan, posterior, posterior.reporter, True, 64)
    zero = jnp.asarray(0)

    def lowered():
        chains = begin(plan, posterior, jax.random.split(jax.random.key(1), 1), u, None)
        return blocks._advance.lower(transition, chains, zero, zero).as_text()

    hints(True)
    assert "inlineable" in lowered()
    hints(False)
    assert "inlineable" not in lowered()
    assert not options.for_transitions(fused=True)
    assert not options.for_fast_compile(0)


def test_hints_are_off_on_versions_of_jax_that_were_not_tried(monkeypatch, caplog):
    monkeypatch.delenv("COAREA_XLA_HINTS", raising=False)
    monkeypatch.setattr(options, "_TRIED_VERSIONS", ())
    options._is_tried.cache_clear()
    try:
        assert not options.hints_enabled()
        assert not options.hints_enabled()
    finally:
        options._is_tried.cache_clear()
    assert len(caplog.records) == 1
    assert "COAREA_XLA_HINTS=1" in caplog.text
