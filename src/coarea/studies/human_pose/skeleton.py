"""A skeleton: map the angles at its 19 joints and its bone lengths to positions of its points.

The tree, its 47 free angles and 13 lengths (left and right alike) are those of the paper. The
person looks along z, y is up, and the left arm at rest points along x.

The derivatives are given by hand. Automatic differentiation would run through the chain of
rotations again for each derivative, in 3×3 products too small to be worth their kernel launches.
The effect of a rotation about an axis is known in closed form: the points that it moves change by
axis × (point − origin), and the axes that it moves change by axis × (moved axis). Derivatives of
positions and axes of any order are therefore products of positions and axes. Only the values
themselves need the chain of rotations.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

BONES = (
    "waist",
    "mid-spine",
    "spine",
    "head",
    "half-shoulder",
    "upper arm",
    "lower arm",
    "hand",
    "half-hip",
    "upper leg",
    "lower leg",
    "back foot",
    "fore foot",
)
_UP, _DOWN, _LEFT, _RIGHT, _AHEAD = (0, 1, 0), (0, -1, 0), (1, 0, 0), (-1, 0, 0), (0, 0, 1)
_HEEL_TO_TOE = (0, -0.25882, 0.96593)  # the foot slopes by 15°


class Joint(NamedTuple):
    """A point of the skeleton: the bone that ends at it, and its free rotations in order."""

    name: str
    parent: str | None
    direction: tuple[float, ...]
    bone: str | None
    free: str = ""


def _limbs(side: str, outward) -> tuple[Joint, ...]:
    return (
        Joint(f"{side} shoulder", "spine", _UP, "mid-spine", "xyz"),
        Joint(f"{side} arm", f"{side} shoulder", outward, "half-shoulder", "xyz"),
        Joint(f"{side} forearm", f"{side} arm", outward, "upper arm", "yx"),
        Joint(f"{side} hand", f"{side} forearm", outward, "lower arm", "xyz"),
        Joint(f"{side} hand end", f"{side} hand", outward, "hand"),
    )


def _legs(side: str, outward) -> tuple[Joint, ...]:
    return (
        Joint(f"{side} thigh", "hips", outward, "half-hip", "xyz"),
        Joint(f"{side} shin", f"{side} thigh", _DOWN, "upper leg", "x"),
        Joint(f"{side} foot", f"{side} shin", _DOWN, "lower leg", "xyz"),
        Joint(f"{side} toes", f"{side} foot", _HEEL_TO_TOE, "back foot", "x"),
        Joint(f"{side} toes end", f"{side} toes", _AHEAD, "fore foot"),
    )


# The order must match that of the angles in the paper's decoder.
JOINTS = (
    Joint("hips", None, (0, 0, 0), None, "xyz"),
    Joint("spine", "hips", _UP, "waist", "xyz"),
    Joint("head", "spine", _UP, "spine", "xyz"),
    Joint("head end", "head", _UP, "head"),
    *_limbs("left", _LEFT),
    *_limbs("right", _RIGHT),
    *_legs("left", _LEFT),
    *_legs("right", _RIGHT),
)
NAMES = tuple(joint.name for joint in JOINTS)
ANGLES = tuple(f"{joint.name} {axis}" for joint in JOINTS for axis in joint.free)
# The observed points. The hips and the tips of the toes are not observed. Neither are the two
# shoulders, which are one point.
SEEN = tuple(
    i
    for i, name in enumerate(NAMES)
    if name not in ("hips", "left shoulder", "right shoulder", "left toes end", "right toes end")
)
PARENTS = tuple(None if j.parent is None else NAMES.index(j.parent) for j in JOINTS)


class _Tables(NamedTuple):
    """The tree as arrays; every joint has three rotations, and those not free are the identity."""

    free: np.ndarray  # [i, r]: whether rotation r of joint i is free
    onto: np.ndarray  # [i, r, x]: the axis of rotation r, in the frame that it rotates
    directions: np.ndarray  # [i, x]: the direction of joint i, in its parent's frame
    bone: np.ndarray  # [i]: the number of the bone that ends at joint i
    ancestors: np.ndarray  # [d, i]: the joint 2^d generations before i, or the root
    is_on_way: np.ndarray  # [m, i]: whether the bone to joint i is on the path to joint m
    origin: np.ndarray  # [k]: the joint that angle k belongs to
    turns_joint: np.ndarray  # [k, m]: whether angle k moves joint m
    turns_axis: np.ndarray  # [k, l]: whether angle k moves the axis of angle l


def _tables() -> _Tables:
    J = len(JOINTS)
    free, onto = np.zeros((J, 3), dtype=bool), np.zeros((J, 3, 3))
    for i, joint in enumerate(JOINTS):
        free[i, : len(joint.free)] = True
        for r, axis in enumerate(joint.free):
            onto[i, r, "xyz".index(axis)] = 1.0
    parents = np.array([i if p is None else p for i, p in enumerate(PARENTS)])
    ancestors = [parents]
    while np.any(ancestors[-1]):
        ancestors.append(ancestors[-1][ancestors[-1]])
    is_on_way = np.eye(J, dtype=bool)
    for m in range(1, J):
        is_on_way[m] |= is_on_way[parents[m]]
    origin, rotation = np.nonzero(free)
    comes_after = is_on_way.T & ~np.eye(J, dtype=bool)  # [i, m]: joint m is a descendant of joint i
    same_joint = origin[:, None] == origin[None]
    return _Tables(
        free=free,
        onto=onto,
        directions=np.array([joint.direction for joint in JOINTS], dtype=float),
        bone=np.array([0 if j.bone is None else BONES.index(j.bone) for j in JOINTS]),
        ancestors=np.stack(ancestors),
        is_on_way=is_on_way,
        origin=origin,
        turns_joint=comes_after[origin],
        turns_axis=np.where(
            same_joint, rotation[:, None] < rotation[None], comes_after[origin][:, origin]
        ),
    )


_TREE = _tables()


class Pose(NamedTuple):
    """Positions of the joints relative to the hips, in metres, and the rotation axes."""

    positions: Float[Array, "24 3"]
    axes: Float[Array, "47 3"]


@jax.custom_jvp
def pose(cos_sin: Float[Array, " 94"], lengths: Float[Array, " 13"]) -> Pose:
    """The pose for given bone lengths and angles.

    The cosine and sine of an angle may be scaled by a common positive factor.
    """
    cosines, sines = jnp.split(cos_sin, 2)
    size = jnp.sqrt(cosines**2 + sines**2)
    first, second, third = jnp.moveaxis(_rotations(cosines / size, sines / size), 1, 0)
    onto = jnp.asarray(_TREE.onto, cos_sin.dtype)
    two = _product(first, second)
    local_axes = jnp.stack([onto[:, 0], _image(first, onto[:, 1]), _image(two, onto[:, 2])], axis=1)
    # Recursive doubling: make frames relative to the joint 1, 2, 4, … generations before, until
    # that joint is the root.
    frames = _product(two, third)
    of_root = np.arange(len(JOINTS)) == 0
    root, frames = frames[0], jnp.where(of_root[:, None, None], jnp.eye(3), frames)
    for before in _TREE.ancestors:
        frames = _product(frames[before], frames)
    frames = _product(root[None], frames)
    parents = jnp.where(of_root[:, None, None], jnp.eye(3), frames[_TREE.ancestors[0]])
    steps = lengths[_TREE.bone][:, None] * _image(parents, _TREE.directions)
    axes = _image(parents[:, None], local_axes)[_TREE.free]
    return Pose(jnp.asarray(_TREE.is_on_way, steps.dtype) @ steps, axes)


@pose.defjvp
def _pose_jvp(primals, tangents):
    cos_sin, lengths = primals
    at = pose(cos_sin, lengths)
    cosines, sines = jnp.split(cos_sin, 2)
    d_cosines, d_sines = jnp.split(tangents[0], 2)
    turned = (cosines * d_sines - sines * d_cosines) / (cosines**2 + sines**2)
    arms = at.positions[None] - at.positions[_TREE.origin][:, None]
    by_angles = _TREE.turns_joint[:, :, None] * jnp.cross(at.axes[:, None], arms)
    axes_by_angles = _TREE.turns_axis[:, :, None] * jnp.cross(at.axes[:, None], at.axes[None])
    steps = at.positions - at.positions[_TREE.ancestors[0]]
    longer = (tangents[1] / lengths)[_TREE.bone]
    positions = (turned @ by_angles.reshape(len(ANGLES), -1)).reshape(at.positions.shape)
    positions = positions + _TREE.is_on_way @ (longer[:, None] * steps)
    axes = (turned @ axes_by_angles.reshape(len(ANGLES), -1)).reshape(at.axes.shape)
    return at, Pose(positions, axes)


def _rotations(cosines, sines):
    """The matrices (joint, 3, 3, 3) of the three rotations of each joint, in order."""
    c = jnp.ones(_TREE.free.shape, cosines.dtype).at[_TREE.free].set(cosines)[..., None, None]
    s = jnp.zeros(_TREE.free.shape, sines.dtype).at[_TREE.free].set(sines)[..., None, None]
    onto = _TREE.onto
    along = onto[..., :, None] * onto[..., None, :]
    across = np.cross(onto[..., None, :], np.eye(3)).swapaxes(-1, -2)
    return along + c * (np.eye(3) - along) + s * across


def _product(A, B):
    """Matrix products, written as sums so that the compiler can fuse them."""
    return jnp.sum(A[..., :, :, None] * B[..., None, :, :], axis=-2)


def _image(A, x):
    return jnp.sum(A * x[..., None, :], axis=-1)
