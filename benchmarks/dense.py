"""No structure: 10, 100 and 1 000 nonlinear constraints that depend on every input."""

import jax.numpy as jnp
import numpy as np

import coarea as co
from benchmarks.harness import Report, against, curves, measured, numbers_of
from benchmarks.peers import mici_chmc, ours
from coarea.dynamics import NewtonLineSearch, QuasiNewton, Rattle, Straight
from coarea.precision import in_float64

ABOUT = """
N observations y = Au + 0.1 tanh(Bu) of N + 10 standard normal inputs. A and B are dense, so there is no structure to exploit.

The first table compares the cost of a step. coarea and mici run one chain each with the same settings: straight flow, step
size 0.3, 3 steps per trajectory, quasi-Newton projections, the same start and no warm-up. The time per step is the time of a
whole run, without compilation, divided by its number of steps.

The second table compares the defaults of both tools, with their own warm-up and trajectories. Rates are effective draws per
second of the first 10 inputs.
"""
STEPS = 3
SIZES = {10: (20_000, 500), 100: (2000, 150), 1000: (10, 4)}
# Draws and warm-up transitions with default settings, for both tools.
WITH_DEFAULTS = {10: (1000, 300), 100: (500, 300)}


def target(num):
    rng = np.random.default_rng(num)
    A, B = rng.normal(size=(2, num, num + 10)) / np.sqrt(num + 10)
    model = co.Generator(
        lambda u: {"u": u["u"], "y": A @ u["u"] + 0.1 * jnp.tanh(B @ u["u"])}, {"u": num + 10}
    )
    truth = rng.normal(size=num + 10)
    y = A @ truth + 0.1 * np.tanh(B @ truth)
    return co.condition(model, {"y": y}, structure="dense"), truth


@in_float64
def run() -> Report:
    lines, numbers = [], {}
    for num, (draws, fewer) in SIZES.items():
        posterior, start = target(num)
        kernel = co.CHMC(
            num_steps=STEPS,
            geodesic_steps=1,
            step_size=0.3,
            integrator=Rattle(solvers=(QuasiNewton(), NewtonLineSearch()), flow=Straight()),
        )
        made = []

        def draw(seed, posterior=posterior, kernel=kernel, start=start, made=made, draws=draws):
            result = co.sample(
                posterior,
                draws=draws,
                warmup=0,
                chains=1,
                kernel=kernel,
                start=start[None],
                seed=seed,
                progress=False,
            )
            made.append(int(result.sample_stats["n_steps"].sum()))
            return result.posterior["u"].values[..., :10]

        mine = measured(draw)
        peer = mici_chmc(posterior, start, fewer, 10, 0.3, (STEPS, STEPS + 1))
        theirs = measured(peer)
        times = mine.seconds / made[-1], theirs.seconds / peer.steps
        lines.append([str(num), *(f"{1e3 * x:.3g}" for x in times), f"{times[1] / times[0]:.3g}"])
        numbers[str(num)] = {"coarea": times[0], "mici": times[1]}
    untold = []
    for num, (draws, warmup) in WITH_DEFAULTS.items():
        posterior, start = target(num)
        options = {"draws": draws, "warmup": warmup, "chains": 1}
        rows = {
            "coarea, NUTS()": measured(ours(posterior, "u", lambda x: x[..., :10], **options)),
            "coarea, CHMC()": measured(
                ours(posterior, "u", lambda x: x[..., :10], kernel=co.CHMC(), **options)
            ),
            "mici": measured(mici_chmc(posterior, start, draws, 10, warmup=warmup)),
        }
        (_, *columns), found = against(rows, ["mici"])
        untold += [[str(num), *line] for line in found]
        numbers[f"{num}, defaults"] = numbers_of(rows)
    heading_untold = ["constraints", "", *columns]
    sizes = list(SIZES)
    figure = curves(
        {
            "s per step": {
                name: (sizes, [numbers[str(n)][name] for n in sizes]) for name in ("coarea", "mici")
            }
        },
        "constraints",
    )
    heading = ["constraints", "coarea, ms per step", "mici, ms per step", "ratio"]
    tables = [(heading, lines), (heading_untold, untold)]
    return Report("Dense constraints", ABOUT, tables, numbers, figure)
