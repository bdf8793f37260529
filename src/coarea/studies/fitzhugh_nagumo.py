"""The hypoelliptic FitzHugh–Nagumo model of a neuron, given exact observations of its voltage.

    dx₁ = (x₁ − x₁³ − x₂)/ε dt,   dx₂ = (γx₁ − x₂ + β) dt + σ dW,

The voltage x₁ is observed every 0.2 time units, and x₂ is not observed. The steps in between have
strong order 1.5 (after Graham, Thiery & Beskos, *Manifold Markov chain Monte Carlo methods for
Bayesian inference in diffusion models*, 2022). The noise acts on x₁ only through x₂, so that the
likelihood of a step cannot be written down.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

import coarea as co
from coarea.precision import in_float64
from coarea.studies.report import (
    BLUE,
    ORANGE,
    Parameter,
    conclude,
    draw_band,
    draw_marginal,
    normal_density,
    writable_folder,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from xarray import DataTree

INTERVAL = 0.2
TRUTH = {"sigma": 0.3, "epsilon": 0.1, "gamma": 1.5, "beta": 0.8}
FIRST_STATE = (-0.5, 0.2)


def model(observations: int = 100, steps_between: int = 25) -> co.Markov:
    """The simulator, with priors log σ, log ε, log γ, β ~ N(0, 1) and two normals a step."""
    return co.Markov(
        shared={"log_sigma": (), "log_epsilon": (), "log_gamma": (), "beta": ()},
        noise=2,
        steps=observations * steps_between,
        initial=lambda s, n: n - jnp.stack([jnp.zeros_like(s["beta"]), s["beta"]]),
        initial_noise=2,
        step=lambda s, x, n, t: step(parameters(s), x, n, INTERVAL / steps_between),
        observe=lambda s, x, n, t: x[0],
        observe_every=steps_between,
        outputs=parameters,
    )


def parameters(s):
    """The rates by name."""
    return {
        "sigma": jnp.exp(s["log_sigma"]),
        "epsilon": jnp.exp(s["log_epsilon"]),
        "gamma": jnp.exp(s["log_gamma"]),
        "beta": s["beta"],
    }


def step(z, x, n, dt):
    """One step of strong order 1.5."""
    x1, x2 = x[0], x[1]
    drift1 = (x1 - x1**3 - x2) / z["epsilon"]
    drift2 = z["gamma"] * x1 - x2 + z["beta"]
    # The integral of the Brownian path over the step. It enters x₁ at a lower order in dt than the
    # end point of the path.
    area = 0.5 * dt**1.5 * (n[0] + n[1] / np.sqrt(3.0))
    curvature1 = ((1 - 3 * x1**2) * drift1 - drift2) / z["epsilon"]
    curvature2 = z["gamma"] * drift1 - drift2
    return jnp.stack(
        [
            x1 + dt * drift1 + 0.5 * dt**2 * curvature1 - z["sigma"] / z["epsilon"] * area,
            x2 + dt * drift2 + 0.5 * dt**2 * curvature2 + z["sigma"] * (np.sqrt(dt) * n[0] - area),
        ]
    )


@in_float64
def dataset(seed: int = 0, observations: int = 100, steps_between: int = 10_000) -> np.ndarray:
    """The states (observations, 2), simulated with much finer steps than the inference uses."""
    dt = INTERVAL / steps_between

    def interval(x, key):
        noise = jax.random.normal(key, (steps_between, 2))
        x, _ = jax.lax.scan(lambda x, n: (step(TRUTH, x, n, dt), None), x, noise)
        return x, x

    keys = jax.random.split(jax.random.key(seed), observations)
    return np.asarray(jax.jit(lambda k: jax.lax.scan(interval, jnp.array(FIRST_STATE), k)[1])(keys))


def run(
    draws: int = 500,
    warmup: int = 300,
    chains: int = 2,
    seed: int = 0,
    out: Path = Path("out/fitzhugh-nagumo"),
) -> "DataTree":
    """Sample rates and hidden states; print a table, write a figure and the draws to `out`."""
    folder = writable_folder(out)
    x = dataset(seed)
    posterior = co.condition(model(), {"y": x[:, 0]})
    result = co.sample(posterior, draws=draws, warmup=warmup, chains=chains, seed=seed)
    parameters = {
        name: Parameter(result.posterior[name].values, truth) for name, truth in TRUTH.items()
    }
    conclude(result, parameters, lambda: figure(result, x), folder)
    return result


def figure(result: "DataTree", x: np.ndarray) -> "Figure":
    """Left: the observed and the hidden state. Right: marginals of log rates, prior and truth."""
    from matplotlib.figure import Figure

    whole = Figure(figsize=(11, 4.6), layout="constrained")
    left, right = np.asarray(whole.subfigures(1, 2, width_ratios=(1.1, 1)))
    voltage, hidden = left.subplots(2, 1, sharex=True)
    times = INTERVAL * (1 + np.arange(len(x)))
    voltage.plot(times, x[:, 0], "o", color=BLUE, ms=2.5, label="$x_1$, observed exactly")
    paths = result.posterior["x"].values[..., 1].reshape(-1, len(x))
    draw_band(hidden, times, paths, ORANGE, "$x_2$, posterior median and 89%")
    hidden.plot(times, x[:, 1], color="black", ls="--", lw=0.8, label="$x_2$, truth")
    hidden.set_xlabel("time")
    for axes in (voltage, hidden):
        axes.legend(loc="upper right", fontsize="small")
        axes.margins(y=0.25)
    for axes, (name, truth) in zip(right.subplots(2, 2).flat, TRUTH.items(), strict=True):
        values, label = result.posterior[name].values, name
        if name != "beta":
            values, truth, label = np.log(values), np.log(truth), f"log {name}"
        draw_marginal(axes, label, Parameter(values, truth), normal_density())
    right.legend(
        *right.axes[0].get_legend_handles_labels(),
        loc="outside upper center",
        ncols=3,
        frameon=False,
    )
    return whole
