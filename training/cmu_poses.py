"""Poses of the CMU motion capture database on the skeleton of the study.

The database's skeleton has 31 joints with three rotations each. From its joints' positions and
orientations come orientations of the 19 joints here, such that bones point the same way (but for
those at the hips, where the two skeletons differ); from these the 47 angles. Where a joint here
cannot do what was recorded (a knee that twists), the nearest that it can is taken.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.spatial.transform import Rotation

from coarea.studies.human_pose.skeleton import ANGLES, JOINTS, NAMES, PARENTS

# How far people look away from the camera: a normal distribution, in degrees.
_HEADING_SD = 25.0


class Recorded(NamedTuple):
    """Positions and orientations of the recorded joints, by name: (frames, 3), (frames, 3, 3)."""

    positions: dict[str, np.ndarray]
    frames: dict[str, np.ndarray]


def read_hierarchy(path: Path) -> list[tuple[str, str | None, np.ndarray]]:
    """Name, parent and offset of each joint of a BVH file; end sites are named after theirs."""
    joints, stack, name = [], [], None
    for line in path.read_text().splitlines():
        words = line.split()
        if not words:
            continue
        if words[0] in ("ROOT", "JOINT"):
            name = words[1]
        elif words[0] == "End":
            name = f"{stack[-1]} end"
        elif words[0] == "OFFSET":
            offset = np.array(words[1:4], dtype=float)
            joints.append((name, stack[-1] if stack else None, offset))
            stack.append(name)
        elif words[0] == "}":
            stack.pop()
    return joints


def recorded(hierarchy, channels, values) -> Recorded:
    """Forward kinematics of the recorded skeleton, hips at the origin."""
    column = {name: values[:, i].astype(float) for i, name in enumerate(channels)}
    positions, frames = {}, {}
    for name, parent, offset in hierarchy:
        if parent is None:
            base, at = np.tile(np.eye(3), (len(values), 1, 1)), np.zeros((len(values), 3))
        else:
            base = frames[parent]
            at = positions[parent] + base @ offset
        turns = [f"{name}.{axis}rotation" for axis in "ZYX"]
        if turns[0] in column:
            # Angles beyond ±180° are the same rotations.
            degrees = np.stack([column[turn] for turn in turns], axis=-1)
            base = base @ Rotation.from_euler("ZYX", degrees, degrees=True).as_matrix()
        positions[name], frames[name] = at, base
    return Recorded(positions, frames)


def _unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def _turned_onto(frames, axis, direction):
    """The frames, turned as little as it takes for their axis to point in the direction."""
    now, wanted = frames @ np.asarray(axis, dtype=float), _unit(direction)
    across = np.cross(now, wanted)
    sine = np.linalg.norm(across, axis=-1, keepdims=True)
    angle = np.arctan2(sine, np.sum(now * wanted, axis=-1, keepdims=True))
    turn = across / np.maximum(sine, 1e-12) * angle
    return Rotation.from_rotvec(turn).as_matrix() @ frames


def orientations(known: Recorded) -> dict[str, np.ndarray]:
    """The orientation of each joint of the study's skeleton."""
    p, f = known.positions, known.frames
    waist, neck = p["Spine"], p["Neck1"]
    # Shoulders hang on the spine where the paper's bone lengths put them: .315 of .448 m up.
    middle = waist + 0.315 / 0.448 * (neck - waist)
    found = {
        "hips": f["Hips"],
        "spine": _turned_onto(f["Spine1"], (0, 1, 0), neck - waist),
        "head": _turned_onto(f["Head"], (0, 1, 0), p["Head end"] - neck),
    }
    for side, name, outward in (("left", "Left", (1, 0, 0)), ("right", "Right", (-1, 0, 0))):
        arm, elbow, wrist = p[f"{name}Arm"], p[f"{name}ForeArm"], p[f"{name}Hand"]
        found[f"{side} shoulder"] = _turned_onto(f[f"{name}Shoulder"], outward, arm - middle)
        upper = _turned_onto(f[f"{name}Arm"], outward, elbow - arm)
        # An elbow bends about y alone, so that the upper arm turns about itself to let it.
        found[f"{side} arm"] = _twisted(upper, wrist - elbow, axis=0, zero=1)
        found[f"{side} forearm"] = _turned_onto(f[f"{name}ForeArm"], outward, wrist - elbow)
        fingers = p[f"{name}HandIndex1"] - wrist
        found[f"{side} hand"] = _turned_onto(f[f"{name}Hand"], outward, fingers)
        hip, knee = p[f"{name}UpLeg"], p[f"{name}Leg"]
        ankle, toes = p[f"{name}Foot"], p[f"{name}ToeBase"]
        tips = p[f"{name}ToeBase end"]
        # The recorded legs stand apart at rest: what points down here points outward there.
        rest = _rest(known, name)
        thigh = _turned_onto(f[f"{name}UpLeg"] @ rest, (0, -1, 0), knee - hip)
        found[f"{side} thigh"] = _twisted(thigh, ankle - knee, axis=1, zero=0)
        shin = _turned_onto(f[f"{name}Leg"] @ rest, (0, -1, 0), ankle - knee)
        found[f"{side} shin"] = shin
        slope = (0, -0.25882, 0.96593)
        found[f"{side} foot"] = _turned_onto(f[f"{name}Foot"] @ rest, slope, toes - ankle)
        found[f"{side} toes"] = _turned_onto(f[f"{name}ToeBase"] @ rest, (0, 0, 1), tips - toes)
    return found


def _rest(known, name):
    """The rotation from straight down to where a leg points when all recorded angles are zero."""
    frames = known.frames[f"{name}UpLeg"]
    bone = known.positions[f"{name}Leg"] - known.positions[f"{name}UpLeg"]
    local = _unit(np.einsum("fij,fi->fj", frames, bone)[0])
    return _turned_onto(np.eye(3)[None], (0, -1, 0), local[None])[0]


def _twisted(frames, next_bone, axis, zero):
    """The frames, turned about their own bone until the next bone has no component `zero`.

    Only as far as the joint is bent: where it is straight, the recorded twist is as good.
    """
    local = _unit(np.einsum("fij,fi->fj", frames, next_bone))
    other = 3 - axis - zero
    sign = np.where(local[:, other] < 0, -1.0, 1.0)
    angle = np.arctan2(sign * local[:, zero], sign * local[:, other])
    bent = np.hypot(local[:, zero], local[:, other])
    angle = angle * np.clip(bent / 0.3, 0.0, 1.0)
    vector = np.zeros((len(frames), 3))
    vector[:, axis] = angle if (zero, other) == (0, 2) else -angle
    return frames @ Rotation.from_rotvec(vector).as_matrix()


def angles(found: dict[str, np.ndarray]) -> np.ndarray:
    """The 47 free angles in radians, (frames, 47), in their order."""
    columns = []
    for i, joint in enumerate(JOINTS):
        if not joint.free:
            continue
        parent = PARENTS[i]
        base = np.eye(3) if parent is None else found[NAMES[parent]]
        local = np.swapaxes(np.broadcast_to(base, found[joint.name].shape), -1, -2)
        local = local @ found[joint.name]
        order = joint.free.upper()
        if len(order) == 3:
            columns.append(Rotation.from_matrix(local).as_euler(order))
        elif order == "YX":
            columns.append(Rotation.from_matrix(local).as_euler("YZX")[:, [0, 2]])
        else:
            columns.append(np.arctan2(local[:, 2, 1], local[:, 1, 1])[:, None])
    together = np.concatenate(columns, axis=1)
    assert together.shape[1] == len(ANGLES)
    return together


def load(folder: Path, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Angles (frames, 47) of people who look towards the camera, more or less; and who they are."""
    rng = np.random.default_rng(seed)
    with np.load(folder / "cmu_poses.npz") as data:
        channels, values, subject = data["channels"], data["values"], data["subject"]
    known = recorded(read_hierarchy(folder / "cmu_skeleton.bvh"), channels, values)
    found = orientations(known)
    ahead = found["hips"][:, :, 2]
    heading = np.arctan2(ahead[:, 0], ahead[:, 2])
    wanted = np.radians(_HEADING_SD) * rng.normal(size=len(heading))
    turn = Rotation.from_rotvec(np.outer(wanted - heading, [0.0, 1.0, 0.0])).as_matrix()
    return angles({name: turn @ frames for name, frames in found.items()}), subject
