"""The human pose study: kinematics and cameras by hand, and a posterior reached in two ways."""

import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import coarea as co
from coarea.errors import DataError, SettingError
from coarea.execution.blocks import Block
from coarea.execution.transitions import TransitionStats
from coarea.results.datatree import as_datatree
from coarea.studies.comparison import Outcome
from coarea.studies.human_pose import quick, study
from coarea.studies.human_pose.camera import FOCAL_LENGTH, place, project
from coarea.studies.human_pose.decoder import CODE, load_decoder
from coarea.studies.human_pose.model import (
    generator,
    log_length_moments,
    log_likelihood,
    person,
    scene,
)
from coarea.studies.human_pose.modes import find_modes, in_words
from coarea.studies.human_pose.skeleton import ANGLES, BONES, NAMES, PARENTS, SEEN, pose
from exact import standard_errors_off

pytestmark = pytest.mark.usefixtures("x64")

LENGTHS = dict(zip(BONES, np.exp(log_length_moments()[0]), strict=True))
PAPER = Path(__file__).parents[3] / "shared/data/paper/pose_decoder.npz"


def posed(**degrees):
    """Positions by name at angles given by name (spaces as underscores), the others zero."""
    angles = np.zeros(len(ANGLES))
    for name, value in degrees.items():
        angles[ANGLES.index(name.replace("_", " "))] = np.radians(value)
    cos_sin = jnp.concatenate([jnp.cos(angles), jnp.sin(angles)])
    found = pose(cos_sin, jnp.array(list(LENGTHS.values()))).positions
    return dict(zip(NAMES, np.asarray(found), strict=True))


def random_pose(seed):
    rng = np.random.default_rng(seed)
    return jnp.asarray(rng.normal(size=2 * len(ANGLES))), jnp.asarray(rng.uniform(0.1, 0.5, 13))


def test_at_rest_a_person_stands_with_arms_spread():
    at, b = posed(), LENGTHS
    top = b["waist"] + b["spine"] + b["head"]
    np.testing.assert_allclose(at["head end"], [0, top, 0], atol=1e-12)
    shoulders = b["waist"] + b["mid-spine"]
    reach = b["half-shoulder"] + b["upper arm"] + b["lower arm"] + b["hand"]
    np.testing.assert_allclose(at["left hand end"], [reach, shoulders, 0], atol=1e-12)
    np.testing.assert_allclose(at["right hand end"], [-reach, shoulders, 0], atol=1e-12)
    ankle = np.array([b["half-hip"], -b["upper leg"] - b["lower leg"], 0])
    np.testing.assert_allclose(at["left foot"], ankle, atol=1e-12)
    slope = b["back foot"] * np.array([0, -np.sin(np.pi / 12), np.cos(np.pi / 12)])
    np.testing.assert_allclose(at["left toes"], ankle + slope, atol=1e-5)
    np.testing.assert_allclose(at["left toes end"] - at["left toes"], [0, 0, b["fore foot"]])


def test_joints_turn_what_hangs_on_them():
    rest, b = posed(), LENGTHS
    bent = posed(left_forearm_y=-90, right_forearm_y=90)
    for side in ("left", "right"):  # elbows forward
        hand = bent[f"{side} forearm"] + [0, 0, b["lower arm"]]
        np.testing.assert_allclose(bent[f"{side} hand"], hand, atol=1e-12)
    np.testing.assert_allclose(bent["left forearm"], rest["left forearm"])
    seated = posed(left_thigh_x=-90, left_shin_x=90)
    knee = rest["left thigh"] + [0, 0, b["upper leg"]]
    np.testing.assert_allclose(seated["left shin"], knee, atol=1e-12)
    np.testing.assert_allclose(seated["left foot"], knee - [0, b["lower leg"], 0], atol=1e-12)
    lying = posed(hips_x=90)  # on the face: up becomes ahead
    for name, x in rest.items():
        np.testing.assert_allclose(lying[name], [x[0], -x[2], x[1]], atol=1e-12)
    # Rotations in turn: first about x, then about the y that this has moved.
    arm = posed(left_arm_x=90, left_arm_y=-90)
    np.testing.assert_allclose(
        arm["left forearm"] - arm["left arm"], [0, -b["upper arm"], 0], atol=1e-12
    )


def test_bone_lengths_are_kept():
    cos_sin, lengths = random_pose(0)
    positions = pose(cos_sin, lengths).positions
    for i, parent in enumerate(PARENTS[1:], start=1):
        step = jnp.linalg.norm(positions[i] - positions[parent])
        assert jnp.min(jnp.abs(step - lengths)) < 1e-5


def test_the_derivatives_written_down_are_those_of_the_chain_of_rotations():
    cos_sin, lengths = random_pose(1)
    inputs = jnp.concatenate([cos_sin, lengths])

    def positions(function, x):
        return function(x[: cos_sin.size], x[cos_sin.size :]).positions

    def second(function, x):
        weighted = lambda x: jnp.sum(jnp.sin(positions(function, x)))  # noqa: E731
        return jax.jvp(jax.grad(weighted), (x,), (jnp.cos(x),))[1]

    chain = pose.fun  # without the rule
    for of in (
        lambda f: jax.jacrev(functools.partial(positions, f)),
        lambda f: functools.partial(second, f),
    ):
        np.testing.assert_allclose(of(pose)(inputs), of(chain)(inputs), atol=1e-12)


def test_cameras_see_as_on_paper():
    points = jnp.array([[0.0, 0.0, 0.0], [1.0, 0.5, 0.0], [0.0, 0.0, 1.0]])
    at = jnp.array([0.2, 0.0, 4.0])
    one = project(points, at, 1)
    f = FOCAL_LENGTH
    # y is down; what is ahead of the person is nearer to the camera.
    expected = f * np.array([[0.05, 0.0], [0.3, -0.125], [0.2 / 3, 0.0]])
    np.testing.assert_allclose(one[0], expected, atol=1e-12)
    two = project(points, at, 2)
    shift = f * 0.5 / np.array([4.0, 4.0, 3.0])
    np.testing.assert_allclose(two[0, :, 0] - expected[:, 0], shift, atol=1e-12)
    np.testing.assert_allclose(two[1, :, 0] - expected[:, 0], -shift, atol=1e-12)
    np.testing.assert_allclose(place(jnp.array([1.0, -1.0, 2.0])), [0.1, -0.1, np.exp(2.5)])


@pytest.mark.parametrize(("cameras", "inputs", "outputs"), [(1, 178, 38), (2, 216, 76)])
def test_the_model_is_as_large_as_the_papers(cameras, inputs, outputs):
    truth = scene(load_decoder(), cameras, 0.001, 0)
    assert (truth.model().inputs.size, truth.y.size) == (inputs, outputs)


def test_one_camera_and_two_see_the_same_person():
    one, two = (scene(load_decoder(), n, 0.001, 5) for n in (1, 2))
    np.testing.assert_array_equal(one.joints, two.joints)


def test_two_ways_to_the_posterior_agree():
    """Exactly conditioned, and given the likelihood. Also: every draw reproduces its images."""
    truth = scene(load_decoder(), 2, 0.03, 0)
    model = truth.model()
    exact = co.sample(truth.posterior(), draws=80, warmup=80, chains=2, keep="inputs")
    given = co.approximate.tractable(
        model,
        {"y": truth.y},
        log_likelihood(truth.decoder, 2, 0.03),
        outputs=functools.partial(person, truth.decoder),
        draws=200,
        warmup=150,
        chains=2,
    )
    inputs = {name: x.values.reshape(160, *x.shape[2:]) for name, x in exact["inputs"].items()}
    again = jax.jit(jax.vmap(lambda u: model.outputs_of(u)["y"]))(inputs)
    assert np.max(np.abs(again - truth.y[None])) < 1e-8

    off = []
    for name in ("joints", "lengths", "camera"):
        a, b = (draws.posterior[name].values for draws in (exact, given))
        a, b = (x.reshape(*x.shape[:2], -1) for x in (a, b))
        for i in range(a.shape[-1]):
            if a[..., i].std() < 1e-12:  # the hips are the origin
                continue
            of_a, of_b = (standard_errors_off(x[..., i], 0.0) for x in (a, b))
            errors = a[..., i].mean() / of_a, b[..., i].mean() / of_b
            off.append((a[..., i].mean() - b[..., i].mean()) / np.hypot(*errors))
    assert len(off) > 80
    assert np.max(np.abs(off)) < 4.5  # of 85 comparisons, once in 1 700 data sets


def test_the_quick_run_says_what_it_found(tmp_path, capsys):
    with jax.enable_x64(False):  # as a user calls it
        result = quick.run(draws=4, warmup=20, chains=2, seed=1, out=tmp_path, noise=0.05)
    assert float(result.sample_stats["constraint_error"].max()) < 1e-8
    assert {path.name for path in tmp_path.iterdir()} == {"draws.nc", "posterior.png"}
    printed = capsys.readouterr().out
    assert "distance of the hips" in printed
    assert "chains" in printed


def draws_around(centres, seed=0):
    rng = np.random.default_rng(seed)
    x = np.array(centres)[:, None, None, None] + 0.01 * rng.normal(size=(len(centres), 200, 24, 3))
    stats = TransitionStats(*[np.ones(x.shape[:2])] * len(TransitionStats._fields))
    return as_datatree(Block({"joints": x}, None, stats), None, {})


def test_chains_that_agree_are_one_mode():
    modes = find_modes(draws_around([0.0, 1.0, 0.0, 1.0]), np.zeros((24, 3)))
    assert sorted(tuple(mode.chains) for mode in modes) == [(0, 2), (1, 3)]
    assert sorted(round(mode.error, 2) for mode in modes) == [0.0, 1.0]
    assert "found 2 modes" in in_words(modes)
    assert "run several" in in_words(find_modes(draws_around([0.0]), np.zeros((24, 3))))
    assert "one mode" in in_words(find_modes(draws_around([0.0, 0.0]), np.zeros((24, 3))))


def outcome(seed, offset, seconds):
    """A run whose means come to `offset` as time passes."""
    rng = np.random.default_rng(seed)
    times = np.geomspace(5.0, seconds, 20)
    means = offset + rng.normal(size=(20, 57)) / np.sqrt(times)[:, None]
    return Outcome(means, seconds, np.full(57, 40.0), 0.8, 0.0, times, means, means, 0.0)


def test_errors_are_read_at_the_times_asked_for(tmp_path):
    truth = scene(load_decoder(), 2, 0.001, 0)
    centre = truth.joints[list(SEEN)].ravel()
    runs = {name: [outcome(k, centre + 0.1, 40.0) for k in range(3)] for name in study.STYLES}
    curves = study.curves_of(runs, truth)["NUTS, hierarchical"]
    at = curves.from_truth(np.array([1.0, 5.0, 40.0]))
    assert np.all(np.isnan(at[:, 0]))  # before the first draw
    last = runs["NUTS"][0].means[-1] - centre
    np.testing.assert_allclose(at[0, 2], np.sqrt(np.mean(last**2)))
    # NUTS is compared with its other runs, not with itself.
    others = np.mean([runs["NUTS"][k].means[-1] for k in (1, 2)], axis=0)
    of_nuts = study.curves_of(runs, truth)["NUTS"].from_posterior(np.array([40.0]))
    np.testing.assert_allclose(
        of_nuts[0, 0], np.sqrt(np.mean((runs["NUTS"][0].means[-1] - others) ** 2))
    )
    study.write_table([study.curves_of(runs, truth)], tmp_path)
    table = (tmp_path / "study.md").read_text()
    assert table.count("NUTS, hierarchical") == 1
    figure = study.figure([study.curves_of(runs, truth)])
    figure.savefig(tmp_path / "rmse.png")


def test_the_papers_starts_reproduce_the_images():
    truth = scene(load_decoder(), 2, 0.001, 0)
    y = jax.jit(truth.model().outputs)(jnp.asarray(study.prior_starts(truth)[0]))["y"]
    np.testing.assert_allclose(y, truth.y, atol=1e-9)


def test_another_decoder_of_the_same_layout_is_taken(tmp_path):
    decoder = load_decoder()
    arrays = {f"W_{i}": W for i, W in enumerate(decoder.weights)}
    arrays |= {f"b_{i}": 2 * b for i, b in enumerate(decoder.biases)}
    np.savez(tmp_path / "other.npz", **arrays)
    other = load_decoder(tmp_path / "other.npz")
    np.testing.assert_array_equal(other.biases[0], 2 * decoder.biases[0])
    del arrays["W_3"]
    np.savez(tmp_path / "short.npz", **arrays)
    with pytest.raises(DataError, match=r"W_3 has shape none, wanted \(50, 50\)"):
        load_decoder(tmp_path / "short.npz")
    (tmp_path / "text.npz").write_text("no arrays")
    with pytest.raises(DataError, match=r"text\.npz"):
        load_decoder(tmp_path / "text.npz")
    (tmp_path / "empty.npz").touch()
    np.save(tmp_path / "one.npy", np.zeros(3))
    for name in ("empty.npz", "one.npy"):
        with pytest.raises(DataError, match=name):
            load_decoder(tmp_path / name)
    with pytest.raises(DataError, match="cannot be read"):
        load_decoder(tmp_path / "absent.npz")


@pytest.mark.skipif(not PAPER.exists(), reason="the paper's decoder is not part of the project")
def test_the_papers_decoder_gives_people_too():
    mean, sd = jax.vmap(load_decoder(PAPER))(np.random.default_rng(0).normal(size=(500, CODE)))
    size = np.hypot(*np.split(np.asarray(mean), 2, axis=1))
    assert abs(np.median(size) - 1) < 0.1  # cosines and sines
    assert np.median(sd) < 0.2


@pytest.mark.parametrize(("cameras", "noise"), [(3, 0.1), (1, 0.0), (1, np.nan), (2, -1.0)])
def test_what_no_camera_has_is_refused(cameras, noise):
    with pytest.raises(SettingError, match=r"num_cameras=3|noise="):
        generator(load_decoder(), cameras, noise)
