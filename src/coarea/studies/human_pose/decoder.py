"""The prior over poses: a network from a 30-dimensional code to cosines and sines of the angles.

The layout is the paper's: six layers of 50 tanh units, with residual connections from the second
layer on, then a linear layer to 94 means and 94 log variances.
"""

import itertools
from importlib import resources
from pathlib import Path
from typing import IO, NamedTuple
from zipfile import BadZipFile

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.lib.npyio import NpzFile

from coarea.errors import DataError

CODE = 30
WIDTHS = (CODE, 50, 50, 50, 50, 50, 50, 188)


class Decoder(NamedTuple):
    """Weights (in, out) and biases of each layer, first to last."""

    weights: tuple[np.ndarray, ...]
    biases: tuple[np.ndarray, ...]

    def __call__(
        self, code: Float[Array, "*batch 30"]
    ) -> tuple[Float[Array, "*batch 94"], Float[Array, "*batch 94"]]:
        """Means and standard deviations of the cosines, followed by those of the sines."""
        hidden = jnp.tanh(code @ self.weights[0] + self.biases[0])
        for W, b in zip(self.weights[1:-1], self.biases[1:-1], strict=True):
            hidden = hidden + jnp.tanh(hidden @ W + b)
        mean, log_variance = jnp.split(hidden @ self.weights[-1] + self.biases[-1], 2, axis=-1)
        return mean, jnp.exp(0.5 * log_variance)


def load_decoder(path: Path | None = None) -> Decoder:
    """Load a decoder from arrays `W_0`, `b_0`, … `b_6` in a file; by default coarea's own."""
    if path is None:
        shipped = resources.files("coarea.studies.human_pose") / "decoder.npz"
        with shipped.open("rb") as file:
            return _read(file, "decoder.npz")
    try:
        with path.open("rb") as file:
            return _read(file, str(path))
    except (OSError, ValueError, EOFError, BadZipFile) as error:
        raise DataError(f"the decoder {str(path)!r} cannot be read: {error}.") from error


def _read(file: IO[bytes], name: str) -> Decoder:
    loaded = np.load(file)
    if not isinstance(loaded, NpzFile):
        raise DataError(f"the decoder {name!r} is one array; a .npz file of several is needed.")
    with loaded as arrays:
        kept = {key: np.asarray(arrays[key], dtype=np.float64) for key in arrays.files}
    layers = list(enumerate(itertools.pairwise(WIDTHS)))
    expected = {f"W_{i}": pair for i, pair in layers} | {f"b_{i}": pair[1:] for i, pair in layers}
    found = {key: x.shape for key, x in kept.items()}
    if found != expected:
        wrong = sorted(key for key in {*found, *expected} if found.get(key) != expected.get(key))
        raise DataError(
            f"the decoder {name!r} is not of the paper's layout: "
            + "; ".join(
                f"{key} has shape {found.get(key, 'none')}, wanted {expected.get(key, 'none')}"
                for key in wrong[:4]
            )
            + ". It takes W_0, b_0, … W_6, b_6 of a 30 → 6 × 50 → 188 network, weights (in, out)."
        )
    return Decoder(
        tuple(kept[f"W_{i}"] for i, _ in layers), tuple(kept[f"b_{i}"] for i, _ in layers)
    )
