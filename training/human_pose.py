"""Train the prior over poses of the human pose study: `python training/human_pose.py DATA`.

DATA is a folder with cmu_poses.npz and cmu_skeleton.bvh: frames of the CMU Graphics Lab motion
capture database and the skeleton they were recorded on. Writes the decoder into the package, and
figures to out/human-pose-training. Takes about three minutes on two cores.
"""

import sys
from pathlib import Path

import cmu_poses
import jax
import jax.numpy as jnp
import numpy as np
import vae

from coarea.studies.human_pose.decoder import CODE, WIDTHS, Decoder
from coarea.studies.human_pose.drawing import draw_skeleton
from coarea.studies.human_pose.model import log_length_moments
from coarea.studies.human_pose.skeleton import pose

PACKAGE = Path(__file__).parents[1] / "src/coarea/studies/human_pose"
OUT = Path("out/human-pose-training")
# Some angles never change in the recordings. Noise of this size on every cosine and sine keeps the
# decoder from being surer of them than a skeleton's angles can be: some three degrees.
JITTER = 0.05
HELD_OUT = 0.15  # of the people
STEPS, BATCH, RATE, SEED = 40_000, 512, 2e-3, 0


def elbo(parameters, key, x):
    """Of each row of x, with one draw of its code."""
    encoder, decoder = parameters
    jitter_key, code_key = jax.random.split(key)
    x = x + JITTER * jax.random.normal(jitter_key, x.shape)
    mean, sd = encoder(x)
    code = mean + sd * jax.random.normal(code_key, mean.shape)
    centre, spread = decoder(code)
    fit = vae.gaussian_log_density(x, centre, 2 * jnp.log(spread))
    return fit - vae.gaussian_kl(mean, 2 * jnp.log(sd))


def figure(decoder: Decoder, recorded: np.ndarray, path: Path) -> None:
    """Poses from the recordings above, poses from the decoder below."""
    from matplotlib.figure import Figure

    lengths = jnp.asarray(np.exp(log_length_moments()[0]))
    keys = jax.random.split(jax.random.key(1), 2)
    centre, spread = decoder(jax.random.normal(keys[0], (20, CODE)))
    drawn = centre + spread * jax.random.normal(keys[1], centre.shape)
    whole = Figure(figsize=(14, 6.2), layout="constrained")
    grid = whole.subplots(4, 10)
    shown = np.concatenate([recorded[:20], np.asarray(drawn)])
    for axes, cos_sin in zip(grid.ravel(), shown, strict=True):
        positions = np.asarray(pose(jnp.asarray(cos_sin), lengths).positions)
        draw_skeleton(axes, positions[:, :2])
        axes.set(aspect="equal", xlim=(-1.1, 1.1), ylim=(-1.15, 1.05), xticks=[], yticks=[])
    grid[0, 0].set_title("recorded", loc="left")
    grid[2, 0].set_title("drawn from the decoder", loc="left")
    whole.savefig(path, dpi=110)


def main(folder: Path) -> None:
    """Train, save the decoder, draw the figure."""
    angles, subject = cmu_poses.load(folder, SEED)
    rng = np.random.default_rng(SEED)
    people = rng.permutation(np.unique(subject))
    kept_back = np.isin(subject, people[: int(HELD_OUT * len(people))])
    x = np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    print(f"{np.sum(~kept_back)} poses to train on, {np.sum(kept_back)} of other people.")
    keys = jax.random.split(jax.random.key(SEED))
    encoder_widths = (94, *WIDTHS[1:-1], 2 * CODE)
    start = tuple(
        Decoder(*vae.initial_layers(key, widths))
        for key, widths in zip(keys, (encoder_widths, WIDTHS), strict=True)
    )
    _, decoder = vae.train(
        elbo, start, x[~kept_back], x[kept_back], steps=STEPS, batch=BATCH, rate=RATE, seed=SEED
    )
    arrays = {f"W_{i}": W for i, W in enumerate(decoder.weights)}
    arrays |= {f"b_{i}": b for i, b in enumerate(decoder.biases)}
    np.savez_compressed(
        PACKAGE / "decoder.npz", **{k: np.asarray(a, np.float32) for k, a in arrays.items()}
    )
    OUT.mkdir(parents=True, exist_ok=True)
    figure(decoder, x[rng.choice(np.flatnonzero(kept_back), 20)], OUT / "poses.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
