"""Models written the ordinary way: what a user would write, with no thought of this library."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import coarea as co
from benchmarks import dense
from coarea.studies import lotka_volterra


class Model(NamedTuple):
    """A posterior, and the same for peers that are given a likelihood."""

    condition: Callable[[], Any]
    names: tuple[str, ...]
    numpyro: Callable | None = None
    pymc: Callable[[], Any] | None = None


def _from_numpyro(model, *names, observed=None, peer=None, pymc=None) -> Model:
    return Model(lambda: co.condition(model, observed), names, peer, pymc)


def _ordinary(model, *names, pymc=None) -> Model:
    return _from_numpyro(model, *names, peer=model, pymc=pymc)


def _rng():
    return np.random.default_rng(0)


def regression(units, flat: bool) -> Model:
    rng, b = _rng(), np.array([1.0, -0.5, 0.3, 2.0, 0.0, -1.0])
    X = rng.normal(size=(800, 6)) * units
    y = 0.7 + X @ (b / units) + 0.5 * rng.normal(size=800)
    real = dist.constraints.real
    prior = dist.ImproperUniform(real, (), (6,)) if flat else dist.Normal(0, 1).expand([6])

    def model():
        a = numpyro.sample("a", dist.Normal(0, 1))
        b = numpyro.sample("b", prior if flat else prior.to_event(1))
        s = numpyro.sample("s", dist.HalfNormal(1))
        numpyro.sample("y", dist.Normal(a + X @ b, s), obs=y)

    def pymc():
        import pymc as pm

        with pm.Model() as made:
            b = pm.Flat("b", shape=6) if flat else pm.Normal("b", 0, 1, shape=6)
            a, s = pm.Normal("a", 0, 1), pm.HalfNormal("s", 1)
            pm.Normal("y", a + X @ b, s, observed=y)
        return made

    return _ordinary(model, "a", "b", "s", pymc=pymc)


def eight_schools(centred: bool) -> Model:
    y = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
    sd = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])

    def model():
        mu = numpyro.sample("mu", dist.Normal(0, 5))
        tau = numpyro.sample("tau", dist.HalfCauchy(5))
        with numpyro.plate("schools", 8):
            if centred:
                theta = numpyro.sample("theta", dist.Normal(mu, tau))
            else:
                theta = mu + tau * numpyro.sample("z", dist.Normal(0, 1))
                numpyro.deterministic("theta", theta)
            numpyro.sample("y", dist.Normal(theta, sd), obs=y)

    def pymc():
        import pymc as pm

        with pm.Model() as made:
            mu, tau = pm.Normal("mu", 0, 5), pm.HalfCauchy("tau", 5)
            if centred:
                theta = pm.Normal("theta", mu, tau, shape=8)
            else:
                theta = pm.Deterministic("theta", mu + tau * pm.Normal("z", 0, 1, shape=8))
            pm.Normal("y", theta, sd, observed=y)
        return made

    return _ordinary(model, "mu", "tau", "theta", pymc=pymc)


def counts(family: str) -> Model:
    rng = _rng()
    X = rng.normal(size=(400, 5))
    eta = 0.2 + X @ np.array([0.3, -0.4, 0.5, 0.0, 0.2])
    is_logistic = family == "logistic"
    y = rng.binomial(1, 1 / (1 + np.exp(-eta))) if is_logistic else rng.poisson(np.exp(eta))

    def model():
        a = numpyro.sample("a", dist.Normal(0, 2))
        eta = a + X @ numpyro.sample("b", dist.Normal(0, 2).expand([5]).to_event(1))
        data = dist.Bernoulli(logits=eta) if is_logistic else dist.Poisson(jnp.exp(eta))
        numpyro.sample("y", data, obs=y)

    def pymc():
        import pymc as pm

        with pm.Model() as made:
            eta = pm.Normal("a", 0, 2) + X @ pm.Normal("b", 0, 2, shape=5)
            if is_logistic:
                pm.Bernoulli("y", logit_p=eta, observed=y)
            else:
                pm.Poisson("y", pm.math.exp(eta), observed=y)
        return made

    return _ordinary(model, "a", "b", pymc=pymc)


def random_effects(total: bool) -> Model:
    rng = _rng()
    group, x = np.repeat(np.arange(30), 20), rng.normal(size=600)
    y = 1 + 0.5 * x + 0.7 * rng.normal(size=30)[group] + 0.8 * rng.normal(size=600)

    def model():
        a = numpyro.sample("a", dist.Normal(0, 2))
        b = numpyro.sample("b", dist.Normal(0, 1))
        between = numpyro.sample("between", dist.HalfNormal(1))
        within = numpyro.sample("within", dist.HalfNormal(1))
        with numpyro.plate("groups", 30):
            effect = numpyro.sample("effect", dist.Normal(0, between))
        numpyro.sample("y", dist.Normal(a + b * x + effect[group], within), obs=y)
        if total:
            numpyro.deterministic("total", effect.sum())

    def pymc():
        import pymc as pm

        with pm.Model() as made:
            a, b = pm.Normal("a", 0, 2), pm.Normal("b", 0, 1)
            between, within = pm.HalfNormal("between", 1), pm.HalfNormal("within", 1)
            effect = pm.Normal("effect", 0, between, shape=30)
            pm.Normal("y", a + b * x + effect[group], within, observed=y)
        return made

    names = ("a", "b", "between", "within", "effect")
    if total:
        return _from_numpyro(model, *names, observed={"total": 1.0})
    return _ordinary(model, *names, pymc=pymc)


def gaussian_process() -> Model:
    rng = _rng()
    t = np.linspace(0, 1, 40)
    y = np.sin(6 * t) + 0.2 * rng.normal(size=40)
    distance = (t[:, None] - t) ** 2

    def model():
        scale = numpyro.sample("scale", dist.LogNormal(0, 1))
        length = numpyro.sample("length", dist.LogNormal(-1, 0.5))
        noise = numpyro.sample("noise", dist.HalfNormal(0.5))
        K = scale**2 * jnp.exp(-0.5 * distance / length**2) + (noise**2 + 1e-6) * jnp.eye(40)
        numpyro.sample("y", dist.MultivariateNormal(jnp.zeros(40), K), obs=y)

    return _ordinary(model, "scale", "length", "noise")


def ordinary_differential_equation() -> Model:
    """Predator and prey by Euler steps, seen with log-normal noise."""
    rng = _rng()

    def path(z):
        def step(x, _):
            prey, predator = x
            growth = jnp.stack([z[0] * prey - z[1] * prey * predator, z[2] * prey * predator])
            return x + 0.05 * (growth - jnp.stack([0.0, z[3]]) * x), x

        return jax.lax.scan(step, jnp.array([3.0, 1.0]), None, length=200)[1][9::10]

    truth = jnp.array([0.6, 0.4, 0.2, 0.5])
    y = np.asarray(path(truth)) * np.exp(0.1 * rng.normal(size=(20, 2)))

    def model():
        z = numpyro.sample("z", dist.LogNormal(jnp.log(truth), 0.3).to_event(1))
        s = numpyro.sample("s", dist.LogNormal(-2, 0.5))
        mean = jnp.log(jnp.clip(path(z), 1e-6, 1e6))
        numpyro.sample("y", dist.LogNormal(mean, s).to_event(2), obs=y)

    return _ordinary(model, "z", "s")


def simulator() -> Model:
    y = lotka_volterra.dataset(seed=0)
    return Model(lambda: co.condition(lotka_volterra.markov_generator(), {"y": y}), ("z",))


def inpainting() -> Model:
    from coarea.studies.mnist.masks import see
    from coarea.studies.mnist.model import Puzzle
    from coarea.studies.mnist.networks import shipped

    known = shipped()
    puzzle = Puzzle.of(known.decoder, see(known.images[4], "top-quarter"))
    return Model(puzzle.posterior, ("code",))


def cylinder() -> Model:
    """A surface whose radius is a ten thousandth of its length."""
    radius = 1e-4

    def target():
        return co.Manifold(
            lambda x: (x[0] ** 2 + x[1] ** 2) / radius**2 - 1.0,
            lambda x: -0.5 * x[2] ** 2 + x[0] / radius,
            point=np.array([radius, 0.0, 0.0]),
        )

    return Model(target, ("point",))


def constraints() -> Model:
    return Model(lambda: dense.target(10)[0], ("u",))


MODELS: dict[str, Callable[[], Model]] = {
    "regression": lambda: regression(np.ones(6), flat=False),
    "regression, unscaled, flat prior": lambda: regression(10.0 ** -np.arange(6), flat=True),
    "eight schools, centred": lambda: eight_schools(True),
    "eight schools, not centred": lambda: eight_schools(False),
    "logistic regression": lambda: counts("logistic"),
    "Poisson regression": lambda: counts("poisson"),
    "random effects": lambda: random_effects(False),
    "random effects, exact total": lambda: random_effects(True),
    "Gaussian process": gaussian_process,
    "ODE, log-normal noise": ordinary_differential_equation,
    "Lotka–Volterra, co.Markov": simulator,
    "in-painting": inpainting,
    "thin cylinder": cylinder,
    "dense constraints": constraints,
}
