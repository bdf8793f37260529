"""Conditioning on computed quantities: seven NumPyro models, each observed exactly.

`python examples/observe_a_deterministic.py` runs all, or those named.

What it means. Observing that a computed quantity g takes the value y is the limit of observing g
within ± ε of y, as ε → 0: every set of latents near {g = y} counts by its probability per unit *of
g*. So the posterior depends on how the observation was made, not only on which latents agree with
it. Observing a/b = 2 and observing a − 2b = 0 allow the same pairs. An interval of width 2ε around
the ratio is a wedge that widens with b; the same interval around the difference is a strip. The two
posteriors therefore differ by a factor |b| (the Borel–Kolmogorov paradox). Neither is wrong; they
are answers to different measurements. Observe the quantity that was measured.
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import coarea as co


def known_sum(draws):
    """Five waiting times that took 42 minutes in all: shares of it are uniform on the simplex."""

    def model():
        times = numpyro.sample("times", dist.Exponential(0.1).expand([5]).to_event(1))
        numpyro.deterministic("total", times.sum())

    return co.sample(co.condition(model, {"total": 42.0}), draws=draws)


def known_difference(draws):
    """Two unknown positions, of which only the distance was surveyed."""

    def model():
        a = numpyro.sample("a", dist.Normal(0.0, 2.0))
        b = numpyro.sample("b", dist.StudentT(4.0, 3.0, 1.0))
        numpyro.deterministic("distance", b - a)

    return co.sample(co.condition(model, {"distance": 2.5}), draws=draws)


def mass_balance(draws):
    """A lake: what flows in must flow out, evaporate or stay. Two gauges read with errors."""

    def model():
        inflow = numpyro.sample("inflow", dist.LogNormal(2.0, 0.5))
        outflow = numpyro.sample("outflow", dist.LogNormal(1.8, 0.5))
        evaporation = numpyro.sample("evaporation", dist.Gamma(2.0, 1.0))
        numpyro.deterministic("storage", inflow - outflow - evaporation)
        numpyro.sample("gauge_in", dist.Normal(inflow, 0.5))
        numpyro.sample("gauge_out", dist.Normal(outflow, 0.5))

    seen = {"storage": 0.3, "gauge_in": 8.1, "gauge_out": 6.4}
    return co.sample(co.condition(model, seen), draws=draws)


def measured_ratio(draws):
    """An isotope ratio known to all digits, of two amounts that are known roughly."""

    def model():
        heavy = numpyro.sample("heavy", dist.LogNormal(0.0, 0.3))
        light = numpyro.sample("light", dist.LogNormal(2.0, 0.3))
        numpyro.deterministic("ratio", heavy / light)

    return co.sample(co.condition(model, {"ratio": 0.1124}), draws=draws)


def sensor_calibration(draws):
    """A sensor with a curved response and no noise to speak of, read at four known loads.

    Its six coefficients are not determined by four readings; no noise needs to be invented.
    """
    loads = np.array([0.2, 0.9, 1.7, 2.6])

    def model():
        c = numpyro.sample("c", dist.Normal(0.0, 1 / np.arange(1, 7) ** 2).to_event(1))
        gain = numpyro.sample("gain", dist.LogNormal(0.0, 0.5))
        powers = jnp.sin(loads[:, None] * np.arange(1, 7)[None])
        numpyro.deterministic("reading", gain * jnp.tanh(powers @ c))

    reading = np.array([0.35, 0.52, 0.41, -0.18])
    return co.sample(co.condition(model, {"reading": reading}), draws=draws)


def end_point(draws):
    """A skydiver's drag and the gusts she met, given that she fell 800 m in 20 s."""

    def model():
        drag = numpyro.sample("drag", dist.LogNormal(np.log(0.003), 0.5))
        speed = numpyro.sample("speed", dist.HalfNormal(5.0))  # as she left the plane
        gusts = numpyro.sample("gusts", dist.Normal(0.0, 0.5).expand([40]).to_event(1))

        def step(state, gust):
            height, speed = state
            speed = speed + 0.5 * (9.81 - drag * speed**2 + gust)
            return (height + 0.5 * speed, speed), None

        (fallen, landing), _ = jax.lax.scan(step, (jnp.zeros_like(speed), speed), gusts)
        numpyro.deterministic("fallen", fallen)
        numpyro.deterministic("landing", landing)

    return co.sample(co.condition(model, {"fallen": 800.0}), draws=draws)


def eight_schools(draws):
    """Rubin's eight schools, where the mean effect of all eight is known from a census."""
    effect = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
    error = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])

    def model():
        mu = numpyro.sample("mu", dist.Normal(0.0, 10.0))
        tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
        with numpyro.plate("schools", 8):
            theta = numpyro.sample("theta", dist.Normal(mu, tau))
            numpyro.sample("effect", dist.Normal(theta, error))
        numpyro.deterministic("mean", theta.mean())

    return co.sample(co.condition(model, {"effect": effect, "mean": 8.0}), draws=draws)


EXAMPLES = {
    f.__name__: f
    for f in (
        known_sum,
        known_difference,
        mass_balance,
        measured_ratio,
        sensor_calibration,
        end_point,
        eight_schools,
    )
}


def brief(x):
    """Three digits of a number, or of the first few of an array."""
    shown = [f"{value:.3g}" for value in np.ravel(x)]
    if np.ndim(x) == 0:
        return shown[0]
    return f"[{', '.join(shown[:5])}{', …' if len(shown) > 5 else ''}]"


def main(names, draws=1000):
    """Run examples and print the mean and standard deviation of every latent."""
    for name in names:
        print(f"{name}: {EXAMPLES[name].__doc__.splitlines()[0]}")
        result = EXAMPLES[name](draws)
        for latent, x in result.posterior.data_vars.items():
            over = ("chain", "draw")
            print(f"  {latent} = {brief(x.mean(over).values)} ± {brief(x.std(over).values)}")
        print(f"  exact to {float(result.sample_stats['constraint_error'].max()):.0e}\n")


if __name__ == "__main__":
    main(sys.argv[1:] or EXAMPLES)
