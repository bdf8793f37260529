"""An influenza outbreak in a boarding school: a stochastic SIR model of 14 daily counts.

The data are the numbers of boys in bed on each day, 3, 8, 26, …, in a school of 763 boys
(Anonymous, *Influenza in a boarding school*, British Medical Journal 1978). The number of
susceptible boys S, the number of infected boys I and the log contact rate x follow

    dS = −e^x SI/N dt + √(e^x SI/N) dW₁,
    dI = (e^x SI/N − βI) dt − √(e^x SI/N) dW₁ + √(βI) dW₂,
    dx = γ(ζ − x) dt + ε dW₃,

discretised with 20 steps a day in (log S, log I, x), from S = 762, I = 1 and x ~ N(0, 1). The
priors are N(0, 1) for log β, log γ and ζ, and N(½ log γ − 3, ¾²) for log ε (after Graham, Thiery &
Beskos 2022). The counts are I, either exactly or with Gaussian noise.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import jax.numpy as jnp
import numpy as np

import coarea as co
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

COUNTS = np.array([3, 8, 26, 76, 225, 298, 258, 233, 189, 128, 68, 29, 14, 4], dtype=float)
BOYS = 763.0
STEPS_A_DAY = 20
NAMES = ("beta", "gamma", "zeta", "epsilon")


def model(noise: float = 0.0) -> co.Markov:
    """The simulator; `noise` is the standard deviation of a count, zero for exact counts."""
    return co.Markov(
        shared={"log_beta": (), "log_gamma": (), "zeta": (), "epsilon_noise": ()},
        noise=3,
        steps=len(COUNTS) * STEPS_A_DAY,
        initial=lambda s, n: jnp.stack([jnp.log(BOYS - 1) + 0.0 * n, 0.0 * n, n]),
        initial_noise=(),
        step=lambda s, x, n, t: step(parameters(s), x, n, 1 / STEPS_A_DAY),
        observe=lambda s, x, n, t: jnp.exp(x[1]) + (0.0 if n is None else noise * n),
        observe_noise=() if noise > 0 else None,
        observe_every=STEPS_A_DAY,
        outputs=parameters,
    )


def parameters(s):
    """The rates by name."""
    return {
        "beta": jnp.exp(s["log_beta"]),
        "gamma": jnp.exp(s["log_gamma"]),
        "zeta": s["zeta"],
        "epsilon": jnp.exp(0.5 * s["log_gamma"] - 3.0 + 0.75 * s["epsilon_noise"]),
    }


def step(z, state, n, dt):
    """One Euler–Maruyama step in (log S, log I, x), with the Itô correction terms."""
    log_s, log_i, x = state
    s, i = jnp.exp(log_s), jnp.exp(log_i)
    contacts = jnp.exp(x) / BOYS
    infection, recovery = contacts * s, z["beta"]
    noise = jnp.sqrt(dt) * n
    return jnp.stack(
        [
            log_s - dt * contacts * (i + 0.5 * i / s) + jnp.sqrt(contacts * i / s) * noise[0],
            log_i
            + dt * (infection - recovery - 0.5 * (infection + recovery) / i)
            - jnp.sqrt(infection / i) * noise[0]
            + jnp.sqrt(recovery / i) * noise[1],
            x + dt * z["gamma"] * (z["zeta"] - x) + z["epsilon"] * noise[2],
        ]
    )


def run(
    draws: int = 400,
    warmup: int = 300,
    chains: int = 2,
    seed: int = 0,
    out: Path = Path("out/boarding-school"),
    noise: float = 1.0,
) -> "DataTree":
    """Sample rates and the contact rate; print a table, write a figure and the draws to `out`."""
    folder = writable_folder(out)
    posterior = co.condition(model(noise), {"y": COUNTS})
    result = co.sample(posterior, draws=draws, warmup=warmup, chains=chains, seed=seed)
    rates = {name: Parameter(result.posterior[name].values) for name in NAMES}
    conclude(result, rates, lambda: figure(result, noise), folder)
    return result


def figure(result: "DataTree", noise: float) -> "Figure":
    """Left: the counts and the reproduction number e^x/β. Right: marginals and priors."""
    from matplotlib.figure import Figure

    days = 1 + np.arange(len(COUNTS))
    posterior = result.posterior
    whole = Figure(figsize=(11, 4.6), layout="constrained")
    left, right = np.asarray(whole.subfigures(1, 2, width_ratios=(1.1, 1)))
    counts, reproduction = left.subplots(2, 1, sharex=True)
    x = posterior["x"].values.reshape(-1, len(COUNTS), 3)
    draw_band(counts, days, np.exp(x[..., 0]), ORANGE, "susceptible, median and 89%")
    seen = "exactly" if noise == 0 else f"with noise of sd {noise:g}"
    counts.plot(days, COUNTS, "o", color=BLUE, ms=4, label=f"in bed, seen {seen}")
    counts.set_ylabel("boys")
    beta = posterior["beta"].values.reshape(-1, 1)
    draw_band(reproduction, days, np.exp(x[..., 2]) / beta, ORANGE, "$e^x/\\beta$, median and 89%")
    reproduction.set(xlabel="day", ylabel="cases caused by one")
    for axes in (counts, reproduction):
        axes.legend(fontsize="small")
    shown = {
        "log beta": np.log(posterior["beta"].values),
        "log gamma": np.log(posterior["gamma"].values),
        "zeta": posterior["zeta"].values,
        "log epsilon": np.log(posterior["epsilon"].values),
    }
    for axes, (name, values) in zip(right.subplots(2, 2).flat, shown.items(), strict=True):
        prior = (
            normal_density() if name != "log epsilon" else normal_density(-3.0, np.hypot(0.5, 0.75))
        )
        draw_marginal(axes, name, Parameter(values), prior)
    right.legend(
        *right.axes[0].get_legend_handles_labels(),
        loc="outside upper center",
        ncols=2,
        frameon=False,
    )
    return whole
