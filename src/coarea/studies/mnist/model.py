"""The generator of the observed pixels of a digit: a code, its image, and noise at each pixel."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

import coarea as co
from coarea.errors import SettingError
from coarea.manifolds.target import AbstractTarget
from coarea.precision import in_float64
from coarea.studies.mnist.masks import SIDE, check_seen
from coarea.studies.mnist.networks import CODE, NOISE, Network, decode


class Puzzle(NamedTuple):
    """A partly observed digit."""

    decoder: Network
    seen: np.ndarray
    y: np.ndarray
    noise: float

    @classmethod
    def of(cls, decoder: Network, image: np.ma.MaskedArray, noise: float = NOISE) -> "Puzzle":
        """Make a puzzle from an image (28, 28) whose unobserved pixels are masked."""
        seen = check_seen(image)
        if not 0 < noise < np.inf:
            raise SettingError(f"noise={noise}: the noise of a pixel must be a positive number.")
        return cls(decoder, seen, np.ma.getdata(image).ravel()[seen].astype(float), noise)

    def model(self) -> co.Generator:
        """The model; its inputs are `code` (50) and one `noise` for each observed pixel in `y`."""

        def simulate(u):
            y = decode(self.decoder, u["code"], self.seen) + self.noise * u["noise"]
            return {**self.report(u), "y": y}

        return co.Generator(simulate, {"code": CODE, "noise": self.seen.size}, parameters=["code"])

    def posterior(self) -> AbstractTarget:
        """The posterior given the observed pixels."""
        return co.condition(self.model(), {"y": self.y})

    def report(self, u):
        """The code, its whole image, and its log posterior density up to a constant."""
        log_likelihood = self.log_likelihood(u, {"y": self.y})
        return {
            "code": u["code"],
            "image": decode(self.decoder, u["code"]).reshape(SIDE, SIDE),
            "log_posterior": log_likelihood - 0.5 * jnp.sum(u["code"] ** 2),
        }

    def log_likelihood(self, u, observed):
        """The log density of the observed pixels given the code, for samplers that need it."""
        error = (observed["y"] - decode(self.decoder, u["code"], self.seen)) / self.noise
        return -0.5 * jnp.sum(error**2)

    @in_float64
    def start(self, code: np.ndarray) -> np.ndarray:
        """The inputs with this code that reproduce the observed pixels."""
        mean = np.asarray(decode(self.decoder, jnp.asarray(code), self.seen))
        return np.concatenate([code, (self.y - mean) / self.noise])
