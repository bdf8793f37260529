"""The networks that ship with the study: a decoder of digits, and a classifier (the judge)."""

import functools
from importlib import resources
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float

CODE, HIDDEN, PIXELS = 50, 200, 784
# The standard deviation of the noise of a pixel; black is 0 and white is 1.
NOISE = 0.05


class Network(NamedTuple):
    """Weights (in, out) and biases of each layer, first to last, with softplus between them."""

    weights: tuple[np.ndarray, ...]
    biases: tuple[np.ndarray, ...]

    def hidden(self, x: Float[Array, "*batch inputs"]) -> Float[Array, "*batch hidden"]:
        """The input of the last layer."""
        for W, b in zip(self.weights[:-1], self.biases[:-1], strict=True):
            x = jax.nn.softplus(x @ W + b)
        return x

    def __call__(self, x: Float[Array, "*batch inputs"]) -> Float[Array, "*batch outputs"]:
        """The linear outputs."""
        return self.hidden(x) @ self.weights[-1] + self.biases[-1]


def decode(
    decoder: Network, code: Float[Array, " 50"], pixels: np.ndarray | None = None
) -> Float[Array, " pixels"]:
    """The mean image of a code, or only some of its pixels."""
    W, b = decoder.weights[-1], decoder.biases[-1]
    if pixels is not None:
        W, b = W[:, pixels], b[pixels]
    return jax.nn.sigmoid(decoder.hidden(code) @ W + b)


class Shipped(NamedTuple):
    """The networks, and labelled digits of the test set."""

    decoder: Network
    judge: Network
    images: np.ndarray
    labels: np.ndarray


@functools.cache
def shipped() -> Shipped:
    """Load what the training script wrote into the package."""
    with (resources.files("coarea.studies.mnist") / "networks.npz").open("rb") as file:
        kept = dict(np.load(file))
    decoder, judge = (
        Network(
            tuple(kept[f"{name}_W_{i}"].astype(np.float64) for i in range(depth)),
            tuple(kept[f"{name}_b_{i}"].astype(np.float64) for i in range(depth)),
        )
        for name, depth in (("decoder", 3), ("judge", 2))
    )
    return Shipped(decoder, judge, kept["images"] / 255.0, kept["labels"])


def named_arrays(name: str, network: Network) -> dict[str, np.ndarray]:
    """A network as arrays for a file; the weights are rounded to half precision."""
    found = {}
    for i, (W, b) in enumerate(zip(network.weights, network.biases, strict=True)):
        found[f"{name}_W_{i}"] = np.asarray(W, np.float16)
        found[f"{name}_b_{i}"] = np.asarray(b, np.float16)
    return found
