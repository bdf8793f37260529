"""A distribution defined by its quantiles, with no density in closed form.

The thesis behind the paper infers the parameters of the generalised Tukey lambda distribution from
250 independent draws. The form used here is that of Freimer et al. 1988, which is a distribution
for all real shapes. The parameters are location z₁, inverse scale z₂, and shapes z₃ and z₄, with
priors z₁, z₃, z₄ ~ N(0, 1) and z₂ ~ Exp(1).
"""

from pathlib import Path
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.scipy.special import erfc

import coarea as co
from coarea.precision import in_float64
from coarea.studies.report import Parameter, conclude, draw_marginal, writable_folder

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from xarray import DataTree

TRUTH = np.array([5.0, 1.0, 0.4, -0.1])
NAMES = ("location", "inverse scale", "left shape", "right shape")
NUM_OBSERVED = 250


def quantile(z, n):
    """The quantile at Φ(n).

    The smaller of Φ(n) and Φ(−n) is computed, which is accurate in both tails.
    """
    is_left = n < 0
    smaller = 0.5 * erfc(jnp.where(is_left, -n, n) / jnp.sqrt(2.0))
    log_smaller, log_larger = jnp.log(smaller), jnp.log1p(-smaller)
    left = jnp.expm1(z[2] * jnp.where(is_left, log_smaller, log_larger)) / z[2]
    right = jnp.expm1(z[3] * jnp.where(is_left, log_larger, log_smaller)) / z[3]
    return z[0] + (left - right) / z[1]


def parameters(u):
    """z₁ to z₄ from the inputs."""
    return jnp.stack([u["location"], u["inverse scale"], u["left shape"], u["right shape"]])


def simulate(u):
    """Independent draws `y`, one for each standard normal noise."""
    z = parameters(u)
    return {"z": z, "y": quantile(z, u["noise"])}


def generator() -> co.Generator:
    """The model, with its priors."""
    normal = dict.fromkeys((NAMES[0], *NAMES[2:]), ())
    inputs = {NAMES[0]: (), NAMES[1]: dist.Exponential(1.0), **normal, "noise": NUM_OBSERVED}
    return co.Generator(simulate, inputs, parameters=NAMES)


@in_float64
def dataset(seed: int = 0) -> np.ndarray:
    """Data simulated at the true parameters."""
    noise = jax.random.normal(jax.random.key(seed), (NUM_OBSERVED,))
    return np.asarray(quantile(jnp.asarray(TRUTH), noise))


def log_likelihood(given, observed):
    """The log density of the data, by numerical inversion of the quantile function."""
    z, y = parameters(given), observed["y"]
    slope = jax.vmap(jax.grad(quantile, argnums=1), in_axes=(None, 0))

    def bisect(_, bounds):
        low, high = bounds
        middle = 0.5 * (low + high)
        is_above = quantile(z, middle) > y
        return jnp.where(is_above, low, middle), jnp.where(is_above, middle, high)

    bounds = jnp.full(y.shape, -37.0), jnp.full(y.shape, 37.0)
    n = jax.lax.stop_gradient(jax.lax.fori_loop(0, 60, bisect, bounds)[0])
    # The solution is exact already; this Newton step makes it differentiable.
    n = n - (quantile(z, n) - y) / jax.lax.stop_gradient(slope(z, n))
    log_slope = jnp.log(slope(z, n))
    value = jnp.sum(-0.5 * n**2 - log_slope)
    inside = jnp.max(jnp.abs(n)) < 36.0
    return jnp.where(inside, value, -jnp.inf)


def run(
    draws: int = 1000,
    warmup: int = 500,
    chains: int = 4,
    seed: int = 0,
    out: Path = Path("out/tukey-lambda"),
) -> "DataTree":
    """Sample the posterior of the parameters; print a table, write a figure and the draws."""
    folder = writable_folder(out)
    posterior = co.condition(generator(), {"y": dataset(seed)})
    result = co.sample(posterior, draws=draws, warmup=warmup, chains=chains, seed=seed)
    z = result.posterior["z"].values
    shown = {name: Parameter(z[..., i], TRUTH[i]) for i, name in enumerate(NAMES)}
    conclude(result, shown, lambda: figure(shown), folder)
    return result


def figure(shown: dict[str, Parameter]) -> "Figure":
    """Marginals of the parameters, with the truth."""
    from matplotlib.figure import Figure

    whole = Figure(figsize=(9, 2.6), layout="constrained")
    for axes, (name, parameter) in zip(whole.subplots(1, 4), shown.items(), strict=True):
        draw_marginal(axes, name, parameter)
    whole.legend(
        *whole.axes[0].get_legend_handles_labels(),
        loc="outside upper center",
        ncols=2,
        frameon=False,
    )
    return whole
