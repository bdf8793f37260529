"""What is unusual, and works."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import xarray as xr

import coarea as co
from coarea import approximate
from mistakes import (
    DIRECTED,
    MODEL,
    POSTERIOR,
    VECTOR,
    gen,
    in_double,
    latent,
    manifold,
    markov,
    plain,
    sample,
    scoped,
    y_is,
)


class Keeps:
    def __call__(self, u):
        if hasattr(self, "last"):
            return self.last + u["n"]
        self.last = u["z"]
        return u["z"] + u["n"]


def with_flag(name, value, f):
    old = getattr(jax.config, name)
    jax.config.update(name, value)
    try:
        return f()
    finally:
        jax.config.update(name, old)


def switched():
    p = numpyro.sample("p", dist.Normal())
    x = numpyro.sample("x", dist.Normal())
    numpyro.deterministic("t", p + x)
    numpyro.sample("k", dist.Uniform(jnp.where(p > 3.0, 0.5, -1.0), jnp.where(p > 3.0, 2.0, 0.0)))


WORKS = {
    "tracing, leak": lambda: y_is(Keeps()),
    "tracing, while loop": lambda: y_is(
        lambda u: jax.lax.while_loop(lambda x: x < 1.0, lambda x: 2 * x + 1.0, u["z"]) + u["n"]
    ),
    "outputs, list of scalars": lambda: latent(lambda u: {"x": [u["z"], u["n"]]}),
    "outputs, boolean latent": lambda: latent(lambda u: {"x": u["z"] > 0}),
    "outputs, integer latent": lambda: latent(lambda u: {"x": jnp.round(u["z"]).astype(int)}),
    "outputs, complex latent": lambda: latent(lambda u: {"x": u["z"] + 1j}),
    "outputs, float16 latent": lambda: latent(lambda u: {"x": u["z"].astype(jnp.float16)}),
    "outputs, empty latent": lambda: latent(lambda u: {"x": jnp.zeros((0,)), "z": u["z"]}),
    "outputs, slash": lambda: latent(lambda u: {"a/b": u["z"]}),
    "outputs, dim name": lambda: latent(lambda u: {"x": u["z"] * jnp.ones(2), "x_dim_0": u["z"]}),
    "outputs, empty name": lambda: latent(lambda u: {"": u["z"]}),
    "outputs, unicode": lambda: latent(lambda u: {"σ²": u["z"]}),
    "outputs, scope": lambda: sample(co.condition(scoped, {"total": 0.4})),
    "outputs, nan latent": lambda: latent(lambda u: {"x": jnp.log(-jnp.abs(u["z"]))}),
    "data, dataarray": lambda: co.condition(VECTOR, {"y": xr.DataArray(np.ones(3))}),
    "data, series-like list": lambda: co.condition(VECTOR, {"y": [1, 2, 3]}),
    "inputs, int name": lambda: co.condition(
        gen(lambda u: {"y": u[1] + u["n"]}, {1: (), "n": ()}), {"y": 1.0}
    ),
    "inputs, improper": lambda: sample(
        co.condition(
            gen(plain, {"z": dist.ImproperUniform(dist.constraints.real, (), ()), "n": ()}),
            {"y": 1.0},
        )
    ),
    "inputs, improper positive": lambda: sample(
        co.condition(
            gen(plain, {"z": dist.ImproperUniform(dist.constraints.positive, (), ()), "n": ()}),
            {"y": 1.0},
        )
    ),
    "markov, noise none": lambda: markov(noise=None),
    "markov, initial int": lambda: markov(initial=lambda s, n: 0),
    "markov, observe tuple": lambda: markov(observe=lambda s, x, n, t: (x, x)),
    "markov, observe x": lambda: co.condition(markov(), {"x": np.ones(6)}),
    "manifold, density bool": lambda: manifold(log_density=lambda x: x[0] > 0),
    "numpyro, improper": lambda: sample(
        co.condition(
            lambda: numpyro.deterministic(
                "t",
                numpyro.sample("a", dist.ImproperUniform(dist.constraints.real, (), ()))
                + numpyro.sample("b", dist.Normal()),
            ),
            {"t": 0.3},
        )
    ),
    "numpyro, kernel old key": lambda: in_double(
        lambda: numpyro.infer.MCMC(
            co.interop.numpyro.ConstrainedNUTS(scoped, observed={"total": 0.1}),
            num_warmup=20,
            num_samples=5,
            progress_bar=False,
        ).run(jax.random.PRNGKey(0))
    ),
    "seeds, np int32": lambda: sample(seed=np.int32(3)),
    "seeds, np uint8": lambda: sample(seed=np.uint8(200)),
    "seeds, rng": lambda: sample(seed=np.random.default_rng(0).integers(2**62)),
    "seeds, 2**63": lambda: sample(seed=2**63),
    "seeds, entropy": lambda: sample(seed=np.random.SeedSequence(1).entropy * 2**100 + 5),
    "seeds, jax int": lambda: sample(seed=jnp.asarray(3)),
    "seeds, 2**40 single": lambda: sample(seed=2**40, precision="float32"),
    "seeds, old key find_start": lambda: co.find_start(POSTERIOR, jax.random.PRNGKey(0), 2),
    "seeds, old key simulate": lambda: MODEL.simulate(jax.random.PRNGKey(0), 2),
    "seeds, old key predictive": lambda: co.predictive(
        MODEL, sample(keep="inputs"), jax.random.PRNGKey(0)
    ),
    "seeds, int key": lambda: MODEL.simulate(0, 2),
    "seeds, reject seed": lambda: approximate.reject(
        MODEL, {"y": 1.0}, epsilon=0.5, simulations=100, seed=np.int32(3)
    ),
    "seeds, smc seed": lambda: approximate.smc(
        DIRECTED, {"y": 1.0}, epsilon=0.5, particles=50, seed=2**70
    ),
    "after, diagnose foreign": lambda: co.diagnose(
        __import__("arviz_base").from_dict(
            {
                "posterior": {"x": np.random.default_rng(0).normal(size=(2, 50))},
                "sample_stats": {"lp": np.zeros((2, 50))},
            }
        )
    ),
    "flags, debug nans": lambda: with_flag(
        "jax_debug_nans", True, lambda: sample(y_is(lambda u: jnp.exp(u["z"]) + u["n"]))
    ),
    "flags, debug infs": lambda: with_flag(
        "jax_debug_infs", True, lambda: sample(y_is(lambda u: jnp.exp(u["z"]) + 2 * u["n"]))
    ),
    "flags, strict": lambda: with_flag(
        "jax_numpy_dtype_promotion",
        "strict",
        lambda: sample(y_is(lambda u: 1.0 * jnp.exp(u["z"]) + 3 * u["n"])),
    ),
    "flags, no jit": lambda: with_flag(
        "jax_disable_jit",
        True,
        lambda: sample(y_is(lambda u: jnp.exp(u["z"]) + 4 * u["n"]), draws=3),
    ),
    "flags, x64 on": lambda: with_flag(
        "jax_enable_x64", True, lambda: sample(y_is(lambda u: jnp.exp(u["z"]) + 5 * u["n"]))
    ),
    "flags, rbg": lambda: with_flag(
        "jax_default_prng_impl", "rbg", lambda: sample(y_is(lambda u: jnp.exp(u["z"]) + 6 * u["n"]))
    ),
    "flags, independent": lambda: y_is(lambda u: 1e300 * (u["z"] + u["n"]), y=1e300),
    "flags, switch": lambda: co.condition(switched, {"k": 1.0, "t": 0.3}),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", WORKS)
def test_what_is_unusual_works(case):
    WORKS[case]()
