"""Train the decoder of the in-painting study: `python training/mnist.py DATA`.

DATA is a folder with mnist.npz: train_images, train_labels, test_images, test_labels (uint8).
Writes the decoder, a small classifier and twenty test digits into the package, and a figure to
out/mnist-training. Takes about four minutes on two cores.
"""

import functools
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import vae

from coarea.studies.mnist.networks import (
    CODE,
    HIDDEN,
    NOISE,
    PIXELS,
    Network,
    decode,
    named_arrays,
)

PACKAGE = Path(__file__).parents[1] / "src/coarea/studies/mnist"
OUT = Path("out/mnist-training")
STEPS, BATCH, RATE, SEED = 45_000, 200, 1e-3, 0
# With the bound itself, codes say more than their prior allows for, and codes drawn from the prior
# decode to scribbles. A heavier divergence keeps them where the prior is. It amounts to training
# with a noise of NOISE √KL_WEIGHT: with NOISE the decoder is then surer than it was trained to be.
KL_WEIGHT = 6.0
JUDGE_STEPS = 4_000


def network(key, widths) -> Network:
    """To be trained."""
    return Network(*vae.initial_layers(key, widths))


def bound(parameters, key, x, weight=1.0):
    """The ELBO of each image, with one draw of its code; the divergence may weigh more."""
    encoder, decoder = parameters
    mean, log_variance = jnp.split(encoder(2 * x - 1), 2, axis=-1)
    code = mean + jnp.exp(0.5 * log_variance) * jax.random.normal(key, mean.shape)
    image = jax.nn.sigmoid(decoder(code))
    fit = vae.gaussian_log_density(x, image, jnp.full(PIXELS, 2 * np.log(NOISE)))
    return fit - weight * vae.gaussian_kl(mean, log_variance)


def log_probability(judge, key, x_and_label):
    """That the judge calls each image what it is; the images shaken a little."""
    x, label = x_and_label[:, :-1], x_and_label[:, -1].astype(int)
    x = x + 2 * NOISE * jax.random.normal(key, x.shape)
    scores = jax.nn.log_softmax(judge(x))
    return jnp.take_along_axis(scores, label[:, None], axis=1)[:, 0]


def figure(encoder, decoder, images, path: Path) -> None:
    """Test digits, what is left of them after encoding and decoding, and draws from the prior."""
    from matplotlib.figure import Figure

    codes = encoder(2 * images - 1)[:, :CODE]
    drawn = jax.random.normal(jax.random.key(2), codes.shape)
    again, new = (np.asarray(jax.vmap(lambda h: decode(decoder, h))(h)) for h in (codes, drawn))
    whole = Figure(figsize=(12, 2.2), layout="constrained")
    for row, x in zip(whole.subplots(3, len(images)), (images, again, new), strict=True):
        for axes, image in zip(row, x, strict=True):
            axes.imshow(image.reshape(28, 28), cmap="gray_r", vmin=0, vmax=1)
            axes.set(xticks=[], yticks=[])
    whole.savefig(path, dpi=110)


def main(folder: Path) -> None:
    """Train, save, draw the figure."""
    with np.load(folder / "mnist.npz") as data:
        x, test = (data[f"{k}_images"].reshape(-1, PIXELS) for k in ("train", "test"))
        labels, test_labels = data["train_labels"], data["test_labels"]
    x, held_out = (np.float32(images / 255.0) for images in (x, test))
    keys = jax.random.split(jax.random.key(SEED), 3)
    start = (
        network(keys[0], (PIXELS, HIDDEN, HIDDEN, 2 * CODE)),
        network(keys[1], (CODE, HIDDEN, HIDDEN, PIXELS)),
    )
    objective = functools.partial(bound, weight=KL_WEIGHT)
    parameters = vae.train(
        objective, start, x, held_out, steps=STEPS, batch=BATCH, rate=RATE, seed=SEED
    )
    encoder, decoder = parameters
    plain = jax.jit(lambda x: jnp.mean(bound(parameters, keys[2], x)))
    print(f"ELBO {plain(x):.1f} training, {plain(held_out):.1f} held out")
    judge = vae.train(
        log_probability,
        network(keys[2], (PIXELS, 64, 10)),
        np.column_stack([x, labels]).astype(np.float32),
        np.column_stack([held_out, test_labels]).astype(np.float32),
        steps=JUDGE_STEPS,
        batch=BATCH,
        rate=2e-3,
        seed=SEED,
        reports=4,
    )
    right = np.mean(np.argmax(np.asarray(judge(held_out)), axis=1) == test_labels)
    print(f"The judge is right about {100 * right:.1f}% of the test digits.")
    # The first two of each kind.
    chosen = np.concatenate([np.flatnonzero(test_labels == k)[:2] for k in range(10)])
    np.savez_compressed(
        PACKAGE / "networks.npz",
        **named_arrays("decoder", decoder),
        **named_arrays("judge", judge),
        images=test[chosen].reshape(-1, 28, 28),
        labels=test_labels[chosen],
    )
    OUT.mkdir(parents=True, exist_ok=True)
    figure(encoder, decoder, held_out[chosen], OUT / "reconstructions.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
