"""Ordinary models with no option set, beside an expert's options and samplers given a likelihood."""

import jax
import numpy as np

import coarea as co
from benchmarks.harness import Measured, Report, bars, measured, numbers_of
from benchmarks.ordinary_models import MODELS, Model
from coarea.errors import CoareaError
from coarea.studies.study_report import short

ABOUT = """
Models written as users write them, and `co.sample(co.condition(model, …))` with no option: 4 chains, 1 000 draws. *Expert* is
the best of several options (parametrisation, kernel, target acceptance). NumPyro's NUTS runs 4 vectorised chains and nutpie 4
chains on all cores, with the same numbers of draws and 500 warm-up transitions, on the same model with its likelihood. Rates
are the smaller effective size of means and of squares, of the worst element, per second; *first* includes compilation (and
`condition`), *again* does not. Rates with R-hat above 1.05 are in brackets.
"""
MANIFOLD, CHART = {"parametrisation": "manifold"}, {"parametrisation": "chart"}
# The options of an expert, for models with a likelihood and for others.
GIVEN_LIKELIHOOD = {
    "manifold": MANIFOLD,
    "NUTS on the chart": {"kernel": co.NUTS(), **CHART},
    "CHMC, acceptance .8, on the chart": {"kernel": co.CHMC(target_acceptance=0.8), **CHART},
    "NUTS, on the density": {"kernel": co.NUTS()},
    "CHMC, acceptance .8, on the density": {"kernel": co.CHMC(target_acceptance=0.8)},
}
WITHOUT_LIKELIHOOD = {
    "manifold": MANIFOLD,
    "chart": CHART,
    "NUTS": {"kernel": co.NUTS(), **MANIFOLD},
    "CHMC, acceptance .8": {"kernel": co.CHMC(target_acceptance=0.8), **MANIFOLD},
    "one step": {"kernel": co.CHMC(num_steps=1), **MANIFOLD},
}
DRAWS, WARMUP, CHAINS = 1000, 500, 4


def elements(variables, names) -> np.ndarray:
    """Named variables as (chain, draw, element), without elements that do not vary."""
    parts = [np.asarray(variables[name]) for name in names]
    x = np.concatenate([part.reshape(*part.shape[:2], -1) for part in parts], axis=2)
    return x[..., np.std(x, axis=(0, 1)) > 0]


def ours(model: Model, **options):
    """`condition` and `sample`; the first call also conditions."""
    posterior = []

    def draw(seed):
        if not posterior:
            posterior.append(model.condition())
        found = co.sample(
            posterior[0], draws=DRAWS, chains=CHAINS, seed=seed, progress=False, **options
        )
        return elements({n: found.posterior[n].values for n in model.names}, model.names)

    return draw


def numpyro_nuts(model: Model):
    import numpyro

    sampler = numpyro.infer.MCMC(
        numpyro.infer.NUTS(model.numpyro),
        num_warmup=WARMUP,
        num_samples=DRAWS,
        num_chains=CHAINS,
        chain_method="vectorized",
        progress_bar=False,
    )

    def draw(seed):
        with jax.enable_x64(True):
            sampler.run(jax.random.key(seed))
            return elements(sampler.get_samples(group_by_chain=True), model.names)

    return draw


def nutpie_nuts(model: Model):
    import nutpie

    compiled = []

    def draw(seed):
        if not compiled:
            compiled.append(nutpie.compile_pymc_model(model.pymc()))
        result = nutpie.sample(
            compiled[0], draws=DRAWS, tune=WARMUP, chains=CHAINS, seed=seed, progress_bar=False
        )
        names = [name for name in model.names if name in result.posterior]
        return elements({name: result.posterior[name].values for name in names}, names)

    return draw


def runs_of(model: Model) -> dict[str, Measured]:
    """All measured runs of a model by name."""
    found = {"coarea": measured(ours(model))}
    options_of = WITHOUT_LIKELIHOOD if model.numpyro is None else GIVEN_LIKELIHOOD
    for name, options in options_of.items():
        if name.endswith("on the density") and "CHMC, acceptance .8, on the chart" in found:
            continue
        try:
            found[name] = measured(ours(model, **options))
        except CoareaError as error:  # not every option suits every model
            print(f"   {name}: {error}", flush=True)
    if model.numpyro is not None:
        found["NumPyro"] = measured(numpyro_nuts(model))
    if model.pymc is not None:
        found["nutpie"] = measured(nutpie_nuts(model))
    return found


def shown(row: Measured | None, first: bool) -> str:
    """A rate; in brackets if the chains have not mixed."""
    if row is None:
        return ""
    rate = short(row.first_rate if first else row.rate)
    return rate if row.has_mixed else f"[{rate}]"


def run() -> Report:
    lines, rows = [], {}
    for name, make in MODELS.items():
        found = runs_of(make())
        rows |= {f"{name}: {who}": row for who, row in found.items()}
        experts = {
            who: found[who]
            for who in ("coarea", *GIVEN_LIKELIHOOD, *WITHOUT_LIKELIHOOD)
            if who in found
        }
        mixed = {who: row for who, row in experts.items() if row.has_mixed} or experts
        best = max(mixed, key=lambda who: mixed[who].rate)
        mine, nuts, nutpie = found["coarea"], found.get("NumPyro"), found.get("nutpie")
        lines.append(
            [
                name,
                shown(mine, True),
                shown(nuts, True),
                shown(mine, False),
                f"{shown(mixed[best], False)} ({best})",
                f"{mine.rate / mixed[best].rate:.2f}",
                shown(nuts, False),
                shown(nutpie, False),
                f"{mine.rhat:.3f}",
            ]
        )
        print(" | ".join(lines[-1]), flush=True)
    heading = [
        "model",
        "first, ESS/s",
        "NumPyro, first",
        "again, ESS/s",
        "best option",
        "× best",
        "NumPyro, again",
        "nutpie, again",
        "R-hat",
    ]
    rates = {f"coarea, {name}": rows[f"{name}: coarea"].rate for name in MODELS}
    return Report("Ordinary models", ABOUT, [(heading, lines)], numbers_of(rows), bars(rates))
