"""The generator of images: bone lengths, a pose from its prior, a camera or two, and noise."""

import functools
from importlib import resources
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import coarea as co
from coarea.errors import SettingError
from coarea.manifolds.target import AbstractTarget
from coarea.precision import in_float64
from coarea.studies.human_pose.camera import place, project
from coarea.studies.human_pose.decoder import CODE, Decoder
from coarea.studies.human_pose.skeleton import ANGLES, BONES, SEEN, pose

# Inputs other than the noise of the images.
HIDDEN: tuple[str, ...] = ("bones", "code", "angles", "camera")


@functools.cache
def log_length_moments() -> tuple[np.ndarray, np.ndarray]:
    """The mean of the log lengths and the Cholesky factor of their covariance."""
    text = (resources.files("coarea.studies.human_pose") / "bone_lengths.csv").read_text("utf-8")
    rows = [line.split(",") for line in text.splitlines() if not line.startswith("#")]
    assert tuple(row[0] for row in rows) == BONES
    lower = np.zeros((len(BONES), len(BONES)))
    for i, row in enumerate(rows):
        lower[i, : i + 1] = np.array(row[2:], dtype=float)
    covariance = lower + np.tril(lower, -1).T
    return np.array([float(row[1]) for row in rows]), np.linalg.cholesky(covariance)


def person(decoder: Decoder, u):
    """Bone lengths, joint positions relative to the hips, and the position of the hips."""
    mean, factor = log_length_moments()
    lengths = jnp.exp(mean + factor @ u["bones"])
    centre, spread = decoder(u["code"])
    positions = pose(centre + spread * u["angles"], lengths).positions
    return {"lengths": lengths, "joints": positions, "camera": place(u["camera"])}


def images(outputs, num_cameras: int):
    """The noise-free images of the observed joints in all cameras."""
    return project(outputs["joints"][np.array(SEEN)], outputs["camera"], num_cameras)


def generator(decoder: Decoder, num_cameras: int, noise: float) -> co.Generator:
    """The model of images `y` (camera, joint, 2); `noise` is their standard deviation."""
    if num_cameras not in (1, 2):
        raise SettingError(f"num_cameras={num_cameras}: the study has one camera or two.")
    if not 0 < noise < np.inf:
        raise SettingError(f"noise={noise}: the images' noise must be a positive number.")

    def simulate(u):
        outputs = person(decoder, u)
        return {**outputs, "y": images(outputs, num_cameras) + noise * u["noise"]}

    names = (*HIDDEN, "noise")
    inputs = dict(zip(names, _shapes(num_cameras), strict=True))
    return co.Generator(simulate, inputs, parameters=HIDDEN)


def _shapes(num_cameras: int) -> tuple[tuple[int, ...], ...]:
    return (len(BONES),), (CODE,), (2 * len(ANGLES),), (3,), (num_cameras, len(SEEN), 2)


def log_likelihood(decoder: Decoder, num_cameras: int, noise: float):
    """The log density of images given all other inputs, for samplers that need a likelihood."""

    def value(given, observed):
        error = (observed["y"] - images(person(decoder, given), num_cameras)) / noise
        return -0.5 * jnp.sum(error**2)

    return value


class Scene(NamedTuple):
    """A model of images and one draw from it: the data `y` and the true values."""

    decoder: Decoder
    num_cameras: int
    noise: float
    y: np.ndarray
    joints: np.ndarray
    lengths: np.ndarray
    camera: np.ndarray

    def model(self) -> co.Generator:
        """A new copy of the generator that the scene was drawn from."""
        return generator(self.decoder, self.num_cameras, self.noise)

    def posterior(self) -> AbstractTarget:
        """The posterior given the images."""
        return co.condition(self.model(), {"y": self.y})


@in_float64
def scene(decoder: Decoder, num_cameras: int, noise: float, seed: int) -> Scene:
    """Draw a scene; the person depends on neither the number of cameras nor the noise."""
    model = generator(decoder, num_cameras, noise)
    keys = jax.random.split(jax.random.key(seed), len(model.inputs.names))
    u = {
        name: jax.random.normal(key, shape)
        for name, key, shape in zip(model.inputs.names, keys, _shapes(2), strict=True)
    }
    drawn = model.outputs_of(u | {"noise": u["noise"][:num_cameras]})
    kept = (np.asarray(drawn[name]) for name in ("y", "joints", "lengths", "camera"))
    return Scene(decoder, num_cameras, noise, *kept)
