"""Optimisation Monte Carlo: fit the parameters to the data, for each draw of the noise."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optimistix as optx
from jaxtyping import Array, Bool, Float, Key

from coarea.approximate.batches import batch_size, map_batches
from coarea.approximate.results import (
    accepted,
    check_storable,
    nothing_accepted,
    warn_if_interrupted,
    warned,
)
from coarea.approximate.softened import Closeness, Directed, Softened, soften
from coarea.arguments import checked_count
from coarea.errors import SettingError
from coarea.execution.recording import Keep, check_keep
from coarea.keys import checked_seed, key_from_seed
from coarea.precision import top_level

if TYPE_CHECKING:
    from xarray import DataTree

_MOST_STEPS = 100


@top_level
def optimisation_monte_carlo(
    model: Any,
    observed: Mapping[str, Any],
    *,
    epsilon: float,
    simulations: int = 1000,
    kernel: Closeness = "uniform",
    seed: int = 0,
    keep: Keep = None,
) -> "DataTree":
    """Optimisation Monte Carlo (Meeds & Welling 2015) of a directed model's parameters.

    For each of `simulations` draws of the noise, Levenberg–Marquardt starts from a prior draw and
    finds the parameters whose simulation is closest to the data. Fits within `epsilon` are
    accepted. Their weight, `sample_stats["weight"]`, is the prior density divided by √|JᵀJ|, where
    J is the derivative of the simulation with respect to the parameters. The attribute `accepted`
    counts them, and `effective_size` is the effective sample size of the weights.

    This is the right tool for about as many observed values or summary statistics as parameters.
    With more observed values, ever fewer draws of the noise can be fitted as ε falls. If several
    parameter values fit the same noise, only one of them is found.

    >>> import coarea as co
    >>> model = co.Generator(
    ...     lambda u: {"z": u["z"], "y": u["z"] + u["n"]}, {"z": (), "n": ()}, parameters=["z"]
    ... )
    >>> draws = co.approximate.optimisation_monte_carlo(model, {"y": 1.0}, epsilon=1e-6)
    >>> co.approximate.resample(draws, 500).posterior["z"].shape
    (1, 500)
    """
    simulations = checked_count("simulations", simulations)
    seed = checked_seed(seed)
    check_keep(keep)
    target = soften(model, observed, epsilon, kernel)
    directed = Directed(target.model, "optimisation_monte_carlo")
    if target.num_observed < directed.places.size:
        raise SettingError(
            f"{target.num_observed} observed values do not determine {directed.places.size} "
            "parameters, so that for each noise many fit: observe as many, or use "
            "elliptical_slice."
        )
    check_storable(target, keep, simulations, "simulations", "Use fewer simulations.")
    fits = Fits(target, directed, key_from_seed(seed))
    batch = max(1, batch_size(target.num_inputs) // 4)
    found, done = map_batches(fits.fit, np.arange(simulations), batch, partial=True)
    warn_if_interrupted(done, simulations)
    fitted: Fit = found
    well = np.isfinite(fitted.log_weight)
    if not np.any(well):
        raise nothing_accepted(float(np.min(fitted.distance)), done, target)
    kept = jax.tree.map(lambda x: x[well], fitted)
    about = {
        "method": "optimisation Monte Carlo",
        "seed": seed,
        "simulations": done,
        "optimisations_that_failed": int(np.sum(~fitted.converged)),
    }
    return warned(
        accepted(target, kept.u, kept.latents, kept.distance, kept.log_weight, keep, about)
    )


class Fit(NamedTuple):
    """The best fit for one draw of the noise; its log weight is −∞ if it is not accepted."""

    u: Float[Array, " M"]
    latents: dict[str, Array]
    distance: Float[Array, ""]
    log_weight: Float[Array, ""]
    converged: Bool[Array, ""]


class Fits(eqx.Module):
    """Optimisation problems; a problem is identified by its number."""

    target: Softened
    directed: Directed
    key: Key[Array, ""]

    def fit(self, number) -> Fit:
        """Draw the inputs for this number, then fit the parameters."""
        drawn = self.target.model.draw(jax.random.fold_in(self.key, number))

        def residual(z, _=None):
            return self.target.residual(self.directed.place(z, drawn))

        solution = optx.least_squares(
            residual,
            optx.LevenbergMarquardt(rtol=1e-10, atol=1e-10),
            drawn[self.directed.places],
            max_steps=_MOST_STEPS,
            throw=False,
        )
        z = solution.value
        u = self.directed.place(z, drawn)
        at = self.target.simulate(u)
        J = jax.jacfwd(residual)(z)
        _, log_det = jnp.linalg.slogdet(J.T @ J)
        log_weight = self.directed.prior.log_density(z) + at.log_likelihood - 0.5 * log_det
        is_well = jnp.isfinite(log_weight) & jnp.isfinite(log_det)
        return Fit(
            u,
            at.latents,
            at.distance,
            jnp.where(is_well, log_weight, -jnp.inf),
            (solution.result == optx.RESULTS.successful) & jnp.isfinite(at.distance),
        )
