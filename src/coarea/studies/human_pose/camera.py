"""Pinhole cameras that look at a skeleton from the front."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

FOCAL_LENGTH = float(np.exp(2.0))
# Two cameras stand this far to either side, in metres.
_HALF_BASELINE = 0.5


def place(u: Float[Array, " 3"]) -> Float[Array, " 3"]:
    """The hips' position in the camera frame: tₓ, t_y ~ N(0, 0.1²), log t_z ~ N(1.5, 0.5²)."""
    return jnp.concatenate([0.1 * u[:2], jnp.exp(1.5 + 0.5 * u[2:])])


def project(
    positions: Float[Array, "joints 3"], place: Float[Array, " 3"], num_cameras: int
) -> Float[Array, "cameras joints 2"]:
    """The image of each point in each camera, in units of the image plane.

    A camera's x axis is that of the skeleton, its y axis points down, and its z axis points away
    from the camera.
    """
    aside = np.zeros((num_cameras, 1, 3))
    if num_cameras == 2:
        aside[:, 0, 0] = [_HALF_BASELINE, -_HALF_BASELINE]
    towards = np.array([[1.0, -1.0, -1.0]])
    seen = (positions * towards + place[None])[None] + aside
    return FOCAL_LENGTH * seen[..., :2] / seen[..., 2:]
