"""A distribution that is given only by its quantile function."""

import coarea as co
from benchmarks.harness import Report, against, bars, measured, numbers_of
from benchmarks.peers import ours
from coarea.studies.tukey_lambda import dataset, generator, log_likelihood
from coarea.studies.tukey_lambda_study import NAMES, reported

ABOUT = """
250 observations from a generalised Tukey lambda distribution with four parameters and no closed-form likelihood. The peer is
BlackJAX's NUTS with a likelihood computed by numerical inversion of the quantile function for each observation. It starts
where chains of coarea ended, because from prior draws it gets stuck at the edge of the support. ABC-HMC draws from an
approximation (tolerance 0.25). 2 chains, 500 warm-up transitions, 1 000 draws.
"""


def run() -> Report:
    model, observed = generator(), {"y": dataset(0)}
    posterior = co.condition(model, observed)
    options = {"draws": 1000, "warmup": 500, "chains": 2}
    ends = co.sample(posterior, draws=100, warmup=200, chains=2, progress=False)
    start = ends["adapted"].dataset["position"].values[:, model.inputs.places(NAMES)]

    def inverted(seed):
        result = co.approximate.tractable(
            model,
            observed,
            log_likelihood,
            outputs=reported,
            start=start,
            seed=seed,
            progress=False,
            **options,
        )
        return result.posterior["z"].values

    def softened(seed):
        result = co.approximate.hmc(
            model, observed, epsilon=0.25, seed=seed, progress=False, **options
        )
        return result.posterior["z"].values

    peer = "NUTS on the inverted likelihood"
    rows = {
        "coarea, NUTS()": measured(ours(posterior, "z", **options)),
        peer: measured(inverted),
        "ABC-HMC, ε = 0.25": measured(softened),
    }
    figure = bars({name: row.rate for name, row in rows.items()})
    return Report(
        "Generalised Tukey lambda", ABOUT, [against(rows, [peer])], numbers_of(rows), figure
    )
