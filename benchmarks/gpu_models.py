"""Larger models with thousands of chains on a GPU. Run by name on a machine that has one."""

import jax

import coarea as co
from benchmarks.gpu import HEADING, table
from benchmarks.harness import Report, bars
from coarea.studies import fitzhugh_nagumo

ABOUT = """
The same measurements for larger models: in-painting, a human pose from two cameras, and the partly observed FitzHugh–Nagumo
diffusion. Trajectories have three steps (ten in the chart). Each chain makes few draws; the rates are for all chains together.
"""


def cases():
    three = co.CHMC(num_steps=3)
    yield "FitzHugh–Nagumo", neuron(), tuple(fitzhugh_nagumo.TRUTH), three, 1024, 40, 40, "float64"
    yield "in-painting", inpainting(), "code", three, 4096, 200, 200, "float64"
    ten = co.CHMC(num_steps=10)
    yield "in-painting, chart", inpainting(), "code", ten, 4096, 400, 300, "float64"
    yield "human pose", pose(), None, three, 4096, 40, 40, "float64"


def neuron():
    seen = fitzhugh_nagumo.dataset(0, 100)[:, 0]
    return co.condition(fitzhugh_nagumo.model(100), {"y": seen})


def inpainting():
    from coarea.studies.mnist.masks import see
    from coarea.studies.mnist.model import Puzzle
    from coarea.studies.mnist.networks import shipped

    known = shipped()
    puzzle = Puzzle.of(known.decoder, see(known.images[4], "top-quarter"))
    return puzzle.posterior()


def pose():
    from coarea.studies.human_pose.decoder import load_decoder
    from coarea.studies.human_pose.model import scene

    with jax.enable_x64(True):
        return scene(load_decoder(), 2, 0.01, 1).posterior()


def run() -> Report:
    lines, rates, numbers = table(cases())
    figure = bars({f"{name}, {at[0]} chains": at[1] for name, (at,) in rates.items()})
    return Report("Larger models on a GPU", ABOUT, [(HEADING, lines)], numbers, figure)
