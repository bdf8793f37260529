"""Parameters of a stochastic predator–prey model from its exactly observed populations.

This is the paper's first study. The model is an Euler–Maruyama simulation of the Lotka–Volterra
equations with unit noise: 50 steps of length 1 from (100, 100). All 100 values are observed. The
prior is log z ~ N(−2, 1).
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
    draw_marginal,
    normal_density,
    writable_folder,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from xarray import DataTree

TRUTH = np.array([0.4, 0.005, 0.05, 0.001])
NAMES = ("prey birth", "predation", "predator death", "predator growth")
NUM_STEPS = 50
START = (100.0, 100.0)


def rates(u):
    """The rates from their standard normal inputs."""
    return jnp.exp(u["z"] - 2.0)


def drift(z, y):
    """The change of populations y (…, 2) in one step without noise."""
    prey, predators = y[..., 0], y[..., 1]
    born, met = z[0] * prey - z[1] * prey * predators, z[3] * prey * predators
    return jnp.stack([born, met - z[2] * predators], axis=-1)


def simulate(u):
    """Populations `y` (steps, 2) under rates `z`."""
    z = rates(u)

    def step(y, noise):
        y = y + drift(z, y) + noise
        return y, y

    _, y = jax.lax.scan(step, jnp.array(START), u["noise"])
    return {"z": z, "y": y}


def generator() -> co.Generator:
    """The model: its inputs are four rates and two noises a step, all standard normal."""
    return co.Generator(simulate, inputs={"z": 4, "noise": (NUM_STEPS, 2)}, parameters=["z"])


def markov_generator() -> co.Markov:
    """The same model written as `co.Markov`."""
    return co.Markov(
        shared={"z": 4},
        noise=2,
        steps=NUM_STEPS,
        initial=lambda s, n: jnp.array(START),
        step=lambda s, y, n, t: y + drift(rates(s), y) + n,
        outputs=lambda s: {"z": rates(s)},
    )


@in_float64
def dataset(seed: int = 0) -> np.ndarray:
    """Populations (50, 2) simulated at the true rates."""
    noise = jax.random.normal(jax.random.key(seed), (NUM_STEPS, 2))
    return np.asarray(simulate({"z": jnp.log(TRUTH) + 2.0, "noise": noise})["y"])


def run(
    draws: int = 1000,
    warmup: int = 500,
    chains: int = 4,
    seed: int = 0,
    out: Path = Path("out/lotka-volterra"),
) -> "DataTree":
    """Sample the posterior of the rates; print a table, write a figure and the draws to `out`."""
    folder = writable_folder(out)
    y = dataset(seed)
    posterior = co.condition(generator(), {"y": y})
    result = co.sample(posterior, draws=draws, warmup=warmup, chains=chains, seed=seed)
    z = result.posterior["z"].values
    parameters = {
        name: Parameter(z[..., i], truth)
        for i, (name, truth) in enumerate(zip(NAMES, TRUTH, strict=True))
    }
    conclude(result, parameters, lambda: figure(result, y, seed), folder)
    return result


def figure(result: "DataTree", y: np.ndarray, seed: int) -> "Figure":
    """Left: the data and simulations under the posterior. Right: marginals, prior and truth."""
    from matplotlib.figure import Figure

    z = result.posterior["z"].values.reshape(-1, 4)
    whole = Figure(figsize=(11, 4.6), layout="constrained")
    left, right = np.asarray(whole.subfigures(1, 2, width_ratios=(1.1, 1)))
    _populations(left.subplots(), z, y, seed)
    for axes, name, values, truth in zip(
        right.subplots(2, 2).flat, NAMES, np.log(z).T, np.log(TRUTH), strict=True
    ):
        draw_marginal(axes, name, Parameter(values, truth), normal_density(-2.0))
        axes.set_xlabel("log rate")
    right.legend(
        *right.axes[0].get_legend_handles_labels(),
        loc="outside upper center",
        ncols=3,
        frameon=False,
    )
    return whole


def _populations(axes, z, y, seed) -> None:
    rng = np.random.default_rng(seed)
    times = np.arange(NUM_STEPS + 1)
    simulated = _simulations(z[rng.integers(len(z), size=40)], seed)
    observed = np.concatenate([[START], y])
    for species, (name, colour) in enumerate((("prey", BLUE), ("predator", ORANGE))):
        for trajectory in simulated[..., species]:
            axes.plot(times, trajectory, color=colour, alpha=0.15, lw=0.8)
        axes.plot(times, observed[:, species], "o", color=colour, ms=3.5, label=f"{name}, observed")
        axes.plot([], [], color=colour, alpha=0.5, lw=0.8, label=f"{name}, posterior simulations")
    axes.set(xlabel="time", ylabel="population", ylim=(0, 1.3 * observed.max()))
    axes.legend(loc="upper center", ncols=2, fontsize="small")


@in_float64
def _simulations(z, seed) -> np.ndarray:
    """Trajectories with fresh noise, (draws, steps + 1, 2)."""
    noise = jax.random.normal(jax.random.key(seed + 1), (len(z), NUM_STEPS, 2))
    y = jax.vmap(lambda z, n: simulate({"z": jnp.log(z) + 2.0, "noise": n})["y"])(z, noise)
    start = np.broadcast_to(START, (len(z), 1, 2))
    return np.concatenate([start, np.asarray(y)], axis=1)
