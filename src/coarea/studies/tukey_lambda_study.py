"""The full generalised Tukey lambda study of the thesis behind the paper.

The density has no closed form. The reference is NUTS on a numerical likelihood, which exists for
this model alone. Its chains start where those of exact conditioning end.
"""

import functools
from pathlib import Path
from typing import TYPE_CHECKING

import jax.numpy as jnp
import numpy as np
from rich.console import Console

import coarea as co
from coarea.studies.comparison import AS_IN_PAPER, Comparison, Method, equal_draws, summarise
from coarea.studies.report import normal_density, writable_folder
from coarea.studies.study_report import marginals, write_report
from coarea.studies.tukey_lambda import (
    NAMES,
    TRUTH,
    dataset,
    generator,
    log_likelihood,
    parameters,
)

if TYPE_CHECKING:
    from xarray import DataTree

# Published in the thesis (chapter 4): ESS/s of z₁–z₄ on an Intel i5-2400.
_THESIS = {
    "CHMC, thesis's settings": (2.64, 2.66, 2.79, 2.70),
    "ABC-HMC, ε = 0.25": (0.43, 0.55, 0.75, 0.38),
    "ABC-HMC, ε = 0.05": (0.02, 0.02, 0.04, 0.04),
}
_REFERENCE = "NUTS, numerical likelihood"


def reported(given):
    """z₁ to z₄, as the simulator's output."""
    return {"z": parameters(given)}


def quantile_statistics(outputs):
    """Median, spread, skewness and tail weight, computed from the octiles."""
    E = jnp.quantile(outputs["y"], jnp.arange(1, 8) / 8)
    middle = E[5] - E[1]
    skewness = (E[5] + E[1] - 2 * E[3]) / middle
    return {"s": jnp.stack([E[3], middle, skewness, (E[6] - E[4] + E[2] - E[0]) / middle])}


def methods(y: np.ndarray) -> list[Method]:
    """All methods to compare; each run has one chain."""
    model, data, abc = generator(), {"y": y}, co.approximate
    of_model = {"model": model, "observed": data}
    posterior = co.condition(model, data)
    thesis = co.CHMC(num_steps=(5, 10), geodesic_steps=4, step_size=0.6, integrator=AS_IN_PAPER)
    chain = Method.of_chain

    @functools.cache
    def starts():
        # Started at prior draws, NUTS on the numerical likelihood gets stuck at the edge of the
        # support.
        ends = co.sample(posterior, draws=100, warmup=200, chains=16, progress=False)
        return ends["adapted"].dataset["position"].values[:, model.inputs.places(NAMES)]

    statistics = {"model": model.summarise(quantile_statistics), "observed": _statistics_of(y)}
    return [
        chain("CHMC, thesis's settings", "exact", co.sample, target=posterior, kernel=thesis),
        chain("NUTS", "exact", co.sample, target=posterior),
        chain(
            _REFERENCE,
            "given the likelihood",
            abc.tractable,
            **of_model,
            log_likelihood=log_likelihood,
            outputs=reported,
            starts=starts,
        ),
        chain("ABC-HMC, ε = 0.25", "gradient", abc.hmc, epsilon=0.25, **of_model),
        chain("ABC-HMC, ε = 0.05", "gradient", abc.hmc, epsilon=0.05, **of_model),
        chain("ABC-NUTS, ε = 0.25", "gradient", abc.nuts, epsilon=0.25, pilot=100, **of_model),
        chain(
            "slice, Gaussian, ε = 0.25",
            "slice",
            abc.elliptical_slice,
            epsilon=0.25,
            kernel="gaussian",
            **of_model,
        ),
        Method.of_simulations(
            "ABC rejection, 4 statistics", abc.reject, 20_000, epsilon=0.2, **statistics
        ),
        Method(
            "ABC-SMC, 4 statistics",
            "parameters",
            lambda seed, size: abc.smc(epsilon=0.1, particles=size, seed=seed, **statistics),
            1000,
            scales=False,
        ),
        Method.of_simulations(
            "optimisation MC, 4 statistics",
            abc.optimisation_monte_carlo,
            500,
            epsilon=0.01,
            **statistics,
        ),
    ]


def _statistics_of(y):
    return {name: np.asarray(x) for name, x in quantile_statistics({"y": jnp.asarray(y)}).items()}


def drawn(draws: "DataTree") -> np.ndarray:
    """The draws (draw, 4) of one chain."""
    return equal_draws(draws).posterior["z"].values[0]


def run(
    runs: int = 10, budget: float = 20.0, seed: int = 0, out: Path = Path("out/tukey-lambda/study")
) -> None:
    """Make all missing runs of all methods; write tables and figures to `out`."""
    folder, y = writable_folder(out), dataset(seed)
    about = {"study": "tukey-lambda", "seed": seed}
    compared = methods(y)
    outcomes = Comparison(folder, drawn, about, runs, budget).run(compared)
    reference = outcomes[_REFERENCE]
    means, sds = (np.array([getattr(o, x)[-1] for o in reference]) for x in ("means", "sds"))
    mean = means.mean(axis=0)
    sd = np.sqrt(np.mean(sds**2 + (means - mean) ** 2, axis=0))
    rows = summarise(compared, outcomes, mean, sd)
    published = {
        name: {"thesis": " / ".join(f"{x:g}" for x in rates)} for name, rates in _THESIS.items()
    }
    write_report(rows, outcomes, NAMES, (mean, sd), published, _THESIS, folder)
    shown = [
        (method.name, np.concatenate([o.draws for o in outcomes[method.name] if o.draws.size]))
        for method in compared
        if any(o.draws.size for o in outcomes[method.name])
    ]
    normal = normal_density()
    priors = [normal, lambda x: np.where(x > 0, np.exp(-np.abs(x)), 0.0), normal, normal]
    limits = [(m - 6 * s, m + 6 * s) for m, s in zip(mean, sd, strict=True)]
    marginals(shown, NAMES, TRUTH, priors, limits).savefig(folder / "marginals.png", dpi=130)
    Console().print(f"Wrote study.md, study.csv and figures to {folder}.")
