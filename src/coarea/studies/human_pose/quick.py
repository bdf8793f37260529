"""One person seen by one camera: sample poses that all have the same image."""

from pathlib import Path
from typing import TYPE_CHECKING

import jax.numpy as jnp
import numpy as np
from rich.console import Console

import coarea as co
from coarea.precision import in_float64
from coarea.studies.human_pose.camera import project
from coarea.studies.human_pose.decoder import load_decoder
from coarea.studies.human_pose.drawing import draw_image, draw_views
from coarea.studies.human_pose.model import Scene, scene
from coarea.studies.human_pose.modes import find_modes, in_words, mode_table
from coarea.studies.human_pose.skeleton import BONES, NAMES
from coarea.studies.report import Parameter, conclude, writable_folder

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from xarray import DataTree

_SHOWN = 7


def run(
    draws: int = 300,
    warmup: int = 500,
    chains: int = 4,
    seed: int = 0,
    out: Path = Path("out/human-pose"),
    noise: float = 0.001,
    decoder: Path | None = None,
) -> "DataTree":
    """Sample poses, bone lengths and the camera; print tables, write a figure and the draws."""
    folder = writable_folder(out)
    truth = scene(load_decoder(decoder), 1, noise, seed)
    result = co.sample(truth.posterior(), draws=draws, warmup=warmup, chains=chains, seed=seed)
    conclude(result, parameters(result, truth), lambda: figure(result, truth), folder)
    modes = find_modes(result, truth.joints)
    console = Console()
    console.print(mode_table(modes))
    console.print(in_words(modes), highlight=False)
    return result


def parameters(result: "DataTree", truth: Scene) -> dict[str, Parameter]:
    """The quantities of greatest interest, in metres."""
    group = result.posterior
    joints, true = group["joints"].values, truth.joints
    shown = {
        "distance of the hips": (group["camera"].values[..., 2], truth.camera[2]),
        "upper leg": (
            group["lengths"].values[..., BONES.index("upper leg")],
            truth.lengths[BONES.index("upper leg")],
        ),
    }
    for name in ("left hand", "right hand", "left foot", "right foot"):
        i = NAMES.index(name)
        shown[f"{name}, forward"] = (joints[..., i, 2], true[i, 2])
    return {name: Parameter(x, round(float(value), 3)) for name, (x, value) in shown.items()}


def figure(result: "DataTree", truth: Scene) -> "Figure":
    """The true and sampled poses from the front and from the side, and their images."""
    from matplotlib.figure import Figure

    joints = result.posterior["joints"].values
    camera = result.posterior["camera"].values
    chains, draws = joints.shape[:2]
    # Alternate between the chains; take draws evenly spaced over the run, the last one first.
    apart = max(1, draws // -(-_SHOWN // chains))
    chosen = [(k % chains, draws - 1 - (k // chains) * apart) for k in range(_SHOWN)]
    chosen = [(chain, draw) for chain, draw in chosen if draw >= 0]
    whole = Figure(figsize=(13, 5.4), layout="constrained")
    halves = whole.subfigures(1, 2, width_ratios=[3, 1.35], squeeze=False)
    assert isinstance(halves, np.ndarray)
    left, right = halves[0]
    titles = ["truth"] + [f"chain {c}" for c, _ in chosen]
    draw_views(left, [truth.joints, *(joints[at] for at in chosen)], titles)
    some = [(c, d) for c in range(chains) for d in range(0, draws, max(1, draws // 10))]
    images = [seen_by_camera(joints[at], camera[at]) for at in some]
    draw_image(right.subplots(), images, truth.y[0])
    return whole


@in_float64
def seen_by_camera(joints: np.ndarray, place: np.ndarray) -> np.ndarray:
    """The image of all joints in the single camera."""
    return np.asarray(project(jnp.asarray(joints), jnp.asarray(place), 1)[0])
