"""The paper's full second study: exact conditioning and a hierarchical density, two cameras.

Three people are drawn from the model. The mean pose of each method is compared with the true pose
as a function of time. It is also compared with the mean over all runs of NUTS, which estimates the
posterior mean; a run of NUTS itself is compared with the mean over the other runs.
"""

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import jax
import numpy as np
from rich.console import Console

import coarea as co
from coarea.errors import SettingError
from coarea.precision import in_float64
from coarea.studies.comparison import (
    AS_IN_PAPER,
    Comparison,
    Method,
    Outcome,
    efficiency_of,
    standard_error,
    unwarned,
)
from coarea.studies.human_pose.decoder import load_decoder
from coarea.studies.human_pose.drawing import draw_views
from coarea.studies.human_pose.model import HIDDEN, Scene, log_likelihood, person, scene
from coarea.studies.human_pose.modes import find_modes, in_words, rms, seen_joints
from coarea.studies.human_pose.skeleton import SEEN
from coarea.studies.report import BLUE, ORANGE, SKY, writable_folder
from coarea.studies.study_report import BLACK, short, write_lines

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from xarray import DataTree

_SCENES = 3
PAPER = co.CHMC(num_steps=(10, 15), geodesic_steps=20, step_size=0.1, integrator=AS_IN_PAPER)
# Step size and range of numbers of steps of the paper's HMC, for a noise of .001. The step size is
# scaled in proportion to the noise.
_PAPER_HMC = (2e-4, (100, 150))
STYLES = {
    "NUTS": (BLUE, "-"),
    "CHMC, paper's settings": (SKY, "--"),
    "NUTS, hierarchical": (BLACK, "-"),
    "HMC, hierarchical, paper's settings": (ORANGE, "--"),
}
_TIMES = (10.0, 30.0, 60.0, 120.0)
_STARTS = 20


def methods(truth: Scene) -> list[Method]:
    """All methods to compare; each run has one chain."""
    posterior = truth.posterior()
    names = iter(STYLES)
    step_size, num_steps = _PAPER_HMC
    hierarchical = {
        "model": truth.model(),
        "observed": {"y": truth.y},
        "log_likelihood": log_likelihood(truth.decoder, truth.num_cameras, truth.noise),
        "outputs": functools.partial(person, truth.decoder),
    }

    @functools.cache
    def starts():
        return prior_starts(truth)

    def hidden_starts():
        return starts()[:, truth.model().inputs.places(HIDDEN)]

    tractable, chain = co.approximate.tractable, Method.of_chain
    return [
        chain(next(names), "exact", co.sample, target=posterior, pilot=100),
        chain(
            next(names),
            "exact",
            co.sample,
            target=posterior,
            kernel=PAPER,
            warmup=0,
            starts=starts,
            pilot=10,
        ),
        chain(next(names), "hierarchical", tractable, pilot=20, **hierarchical),
        chain(
            next(names),
            "hierarchical",
            tractable,
            step_size=step_size * truth.noise / 0.001,
            num_steps=num_steps,
            warmup=0,
            starts=hidden_starts,
            pilot=100,
            **hierarchical,
        ),
    ]


@in_float64
def prior_starts(truth: Scene) -> np.ndarray:
    """The paper's start points: prior draws, with the image noise that reproduces the data."""
    model = truth.model()
    u = jax.vmap(model.draw)(jax.random.split(jax.random.key(0), _STARTS))
    places = model.inputs.places(["noise"])
    without = u.at[:, places].set(0.0)
    y = np.asarray(jax.vmap(model.outputs)(without)["y"])
    noise = (truth.y - y) / truth.noise
    return np.asarray(without.at[:, places].set(noise.reshape(_STARTS, -1)))


def flat_joints(draws: "DataTree") -> np.ndarray:
    """Positions (draw, 57) of the observed joints in one chain."""
    x = seen_joints(draws)[0]
    return x.reshape(len(x), -1)


def run(
    runs: int = 5,
    budget: float = 300.0,
    seed: int = 0,
    out: Path = Path("out/human-pose/study"),
    noise: float = 0.001,
    decoder: Path | None = None,
) -> None:
    """Make all missing runs of all methods on all scenes; write a table and figures."""
    if runs < 3:
        raise SettingError(f"runs={runs}: errors over runs need at least 3.")
    folder, network = writable_folder(out), load_decoder(decoder)
    found = []
    for number in range(1, _SCENES + 1):
        truth = scene(network, 2, noise, seed + number - 1)
        about = {"study": "human-pose", "scene": number, "seed": seed, "noise": noise}
        about["decoder"] = "" if decoder is None else str(decoder)
        here = writable_folder(folder / f"scene-{number}")
        outcomes = Comparison(here, flat_joints, about, runs, budget).run(methods(truth))
        found.append(curves_of(outcomes, truth))
    write_table(found, folder)
    figure(found).savefig(folder / "rmse.png", dpi=130)
    with unwarned():
        monocular(scene(network, 1, noise, seed + 1), seed).savefig(
            folder / "monocular.png", dpi=130
        )
    Console().print(f"Wrote study.md, study.csv, rmse.png and monocular.png to {folder}.")


class Curves(NamedTuple):
    """The runs of a method, the truth, and the posterior mean to compare each run with."""

    outcomes: Sequence[Outcome]
    truth: np.ndarray
    posterior_means: Sequence[np.ndarray]

    def from_truth(self, times: np.ndarray) -> np.ndarray:
        """Root mean square errors (run, time) of the mean of all draws up to each time.

        An error is NaN before the first draw of its run.
        """
        return self._errors(times, [self.truth] * len(self.outcomes))

    def from_posterior(self, times: np.ndarray) -> np.ndarray:
        """The same for distances from the posterior mean."""
        return self._errors(times, self.posterior_means)

    def _errors(self, times, centres):
        rows = []
        for outcome, centre in zip(self.outcomes, centres, strict=True):
            each = np.sqrt(np.mean((outcome.means - centre) ** 2, axis=1))
            last = np.searchsorted(outcome.times, times, side="right") - 1
            rows.append(np.where(last >= 0, each[np.maximum(last, 0)], np.nan))
        return np.array(rows)

    @property
    def seconds(self) -> float:
        """The mean duration of a run."""
        return float(np.mean([outcome.seconds for outcome in self.outcomes]))

    @property
    def ess_rate(self) -> float:
        """The smallest effective sample size per second over all coordinates."""
        return float(efficiency_of(self.outcomes).rate.min())

    @property
    def disagreement(self) -> float:
        """The largest distance between the mean poses of two runs."""
        means = [outcome.means[-1] for outcome in self.outcomes]
        return max(rms(a - b) for a in means for b in means)


def curves_of(outcomes: Mapping[str, Sequence[Outcome]], truth: Scene) -> dict[str, Curves]:
    """The curves of each method for one scene."""
    ends = np.array([outcome.means[-1] for outcome in outcomes["NUTS"]])
    joints = truth.joints[list(SEEN)].ravel()
    others = [np.delete(ends, i, axis=0).mean(axis=0) for i in range(len(ends))]
    return {
        name: Curves(runs, joints, others if name == "NUTS" else [ends.mean(axis=0)] * len(runs))
        for name, runs in outcomes.items()
    }


def write_table(found: Sequence[Mapping[str, Curves]], folder: Path) -> None:
    """Write `study.md` and `study.csv`: errors at four times, in millimetres."""
    heading = ["scene", "method", "runs", "min ESS/s", "runs differ by"]
    heading += [f"from truth, {t:.0f} s" for t in _TIMES]
    heading += [f"from posterior, {t:.0f} s" for t in _TIMES]
    lines = []
    for number, scene_curves in enumerate(found):
        for name, curves in scene_curves.items():
            times = np.array(_TIMES)
            # NUTS runs are compared with each other's mean. These distances are not independent, so
            # that they have no standard error.
            has_error = {"truth": True, "posterior": name != "NUTS"}
            cells = [
                _in_millimetres(column, has_error[what]) if t <= 1.1 * curves.seconds else ""
                for what, errors in (
                    ("truth", curves.from_truth(times)),
                    ("posterior", curves.from_posterior(times)),
                )
                for t, column in zip(_TIMES, errors.T, strict=True)
            ]
            first = [str(number + 1), name, f"{len(curves.outcomes)}", short(curves.ess_rate)]
            lines.append([*first, f"{1e3 * curves.disagreement:.1f}", *cells])
    write_lines(heading, lines, folder)


def _in_millimetres(x: np.ndarray, has_error: bool) -> str:
    """The mean over runs with its standard error, unless a run is still warming up."""
    if not np.all(np.isfinite(x)):
        return "no draw yet"
    mean = f"{1e3 * x.mean():.2f}"
    return f"{mean} ± {1e3 * standard_error(x):.2f}" if has_error else mean


def figure(found: Sequence[Mapping[str, Curves]]) -> "Figure":
    """Errors against time, the mean over runs with ±3 standard errors, a column for each scene."""
    from matplotlib.figure import Figure

    whole = Figure(figsize=(11, 6), layout="constrained")
    grid = whole.subplots(2, len(found), sharex=True, sharey="row", squeeze=False)
    for column, scene_curves in zip(grid.T, found, strict=True):
        for name, curves in scene_curves.items():
            first = np.max([outcome.times[0] for outcome in curves.outcomes])
            times = np.geomspace(first, curves.seconds, 60)
            draw_errors(column[0], times, curves.from_truth(times), name)
            draw_errors(column[1], times, curves.from_posterior(times), name)
    for i, axes in enumerate(grid[0]):
        axes.set_title(f"scene {i + 1}")
    for axes in grid[1]:
        axes.set_xlabel("seconds")
    grid[0, 0].set_ylabel("RMSE from the truth, m")
    grid[1, 0].set_ylabel("RMSE from the posterior mean, m")
    handles = grid[0, 0].get_legend_handles_labels()
    whole.legend(*handles, loc="outside upper center", ncols=4, frameon=False)
    return whole


def draw_errors(axes: "Axes", times: np.ndarray, errors: np.ndarray, name: str) -> None:
    """Plot the mean of errors (run, time) with a band of ±3 standard errors."""
    mean = errors.mean(axis=0)
    band = 3 * errors.std(axis=0, ddof=1) / np.sqrt(len(errors))
    colour, style = STYLES[name]
    axes.plot(times, mean, color=colour, ls=style, lw=1.4, label=name)
    low = np.maximum(mean - band, 0.05 * mean)
    axes.fill_between(times, low, mean + band, color=colour, alpha=0.2, lw=0)
    axes.set(xscale="log", yscale="log")
    axes.grid(alpha=0.3)


def monocular(truth: Scene, seed: int, chains: int = 8) -> "Figure":
    """Sample given one image; show the last pose of each chain, grouped by mode."""
    from matplotlib.figure import Figure

    draws = co.sample(truth.posterior(), draws=300, chains=chains, seed=seed, progress=False)
    modes = find_modes(draws, truth.joints)
    Console().print(in_words(modes), highlight=False)
    joints = draws.posterior["joints"].values
    order = [(k, chain) for k, mode in enumerate(modes) for chain in mode.chains]
    titles = [f"mode {k + 1}\n(lp {modes[k].log_density:.0f})" for k, _ in order]
    whole = Figure(figsize=(1.4 * (chains + 1), 5), layout="constrained")
    poses = [truth.joints, *(joints[chain, -1] for _, chain in order)]
    draw_views(whole, poses, ["truth\n", *titles])
    return whole
