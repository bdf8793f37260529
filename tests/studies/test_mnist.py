"""The in-painting study: what is seen is reproduced, two ways to the posterior agree, masks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import coarea as co
from coarea.errors import DataError, SettingError
from coarea.studies.comparison import Outcome
from coarea.studies.mnist import quick, study
from coarea.studies.mnist.drawing import painted
from coarea.studies.mnist.masks import MASKS, check_seen, read_image, see
from coarea.studies.mnist.model import Puzzle
from coarea.studies.mnist.networks import CODE, NOISE, decode, shipped
from exact import standard_errors_off

pytestmark = pytest.mark.usefixtures("x64")
NUM_SEEN = {"top-quarter": 196, "left-half": 392, "centre-hole": 684, "random": None}


def puzzle(digit=4, mask="top-quarter"):
    known = shipped()
    return Puzzle.of(known.decoder, see(known.images[digit], mask))


def test_the_package_has_two_digits_of_each_kind_and_a_judge_of_them():
    known = shipped()
    np.testing.assert_array_equal(known.labels, np.repeat(np.arange(10), 2))
    assert np.mean(quick.judged(known.judge, known.images) == known.labels) >= 0.9


@pytest.mark.parametrize("mask", MASKS)
def test_masks_show_what_they_say(mask):
    image = shipped().images[0]
    observed = see(image, mask)
    seen = check_seen(observed)
    if NUM_SEEN[mask] is None:
        assert 100 < seen.size < 220
    else:
        assert seen.size == NUM_SEEN[mask]
    np.testing.assert_array_equal(observed.compressed(), image.ravel()[seen])
    unknown = np.ma.array(image, mask=np.arange(784).reshape(28, 28) == seen[0])
    assert check_seen(see(unknown, mask)).size == seen.size - 1


def test_the_structure_is_found():
    posterior = puzzle().posterior()
    assert (posterior.num_inputs, posterior.num_constraints) == (246, 196)
    assert posterior.structure.startswith("elementwise: 196 constraints")
    assert "50 shared inputs" in posterior.structure


def test_some_pixels_are_decoded_as_among_all():
    known, code = shipped(), jnp.linspace(-1, 1, CODE)
    some = np.array([700, 3, 100])
    whole = decode(known.decoder, code)
    np.testing.assert_allclose(decode(known.decoder, code, some), whole[some], atol=1e-14)


@pytest.fixture(scope="module")
def given_the_density():
    """Draws of a sampler that is given the density of the code."""
    one, options = puzzle(), {"draws": 500, "warmup": 300, "chains": 2}
    return co.approximate.tractable(
        one.model(), {"y": one.y}, one.log_likelihood, outputs=one.report, **options
    )


@pytest.mark.parametrize(
    ("parametrisation", "options"),
    [
        ("manifold", {"kernel": co.NUTS(), "draws": 250, "warmup": 150}),
        ("chart", {"draws": 2000, "warmup": 1000}),
    ],
)
def test_two_ways_to_the_posterior_agree(parametrisation, options, given_the_density):
    """Exactly conditioned, and given the density of the code. What is seen is reproduced."""
    one, given = puzzle(), given_the_density
    options = {**options, "chains": 2, "keep": "inputs", "parametrisation": parametrisation}
    exact = co.sample(one.posterior(), **options)
    size = 2 * options["draws"]
    inputs = {name: x.values.reshape(size, -1) for name, x in exact["inputs"].items()}
    again = jax.jit(jax.vmap(lambda u: one.model().outputs_of(u)["y"]))(inputs)
    assert np.max(np.abs(again - one.y[None])) < 1e-8

    off = []
    for i in [*range(200, 784, 25), None]:  # some pixels, and what weighs all of the code
        x, y = (
            draws.posterior["log_posterior"].values
            if i is None
            else draws.posterior["image"].values.reshape(2, -1, 784)[..., i]
            for draws in (exact, given)
        )
        errors = [draws.mean() / standard_errors_off(draws, 0.0) for draws in (x, y)]
        off.append((x.mean() - y.mean()) / np.hypot(*errors))
    assert np.max(np.abs(off)) < 4.5, f"{off}"  # of 25 comparisons, once in 6 000 data sets


def test_the_quick_run_paints(tmp_path, capsys):
    pixels = shipped().images[3]
    np.save(tmp_path / "digit.npy", pixels)
    image = tmp_path / "digit.npy"
    with jax.enable_x64(False):  # as a user calls it
        quick.run(4, 20, 1, 0, tmp_path / "out", "centre-hole", image=image)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"draws.nc", "posterior.png"}
    assert "A classifier reads the paintings as" in capsys.readouterr().out


def test_a_picture_is_read_as_an_image(tmp_path):
    from matplotlib.image import imsave

    pixels = shipped().images[3]
    imsave(tmp_path / "digit.png", pixels, cmap="gray", vmin=0, vmax=1)
    np.testing.assert_allclose(read_image(tmp_path / "digit.png"), pixels, atol=1 / 200)
    (tmp_path / "empty.npy").touch()
    with pytest.raises(DataError, match=r"empty\.npy"):
        read_image(tmp_path / "empty.npy")
    (tmp_path / "text.png").write_text("no picture")
    with pytest.raises(DataError, match=r"text\.png"):
        read_image(tmp_path / "text.png")


def test_what_is_painted_is_only_what_is_not_seen():
    observed = see(shipped().images[0], "left-half")
    images = painted(np.full((3, 28, 28), 0.5), observed, NOISE)
    np.testing.assert_array_equal(images[:, :, :14], np.stack([observed.data[:, :14]] * 3))
    assert 0.5 * NOISE < images[:, :, 14:].std() < 2 * NOISE


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (np.zeros((20, 28)), r"shape \(20, 28\): 28 × 28 pixels"),
        (np.full((28, 28), 255.0), "divide bytes by 255"),
        (np.full((28, 28), "x"), "dtype"),
        (np.full((28, 28), np.nan), "mask pixels that are not known"),
        (np.ma.masked_all((28, 28)), "nothing is seen"),
        (np.zeros((28, 28)), "nothing is left to paint"),
    ],
)
def test_what_is_no_puzzle_is_refused(image, message):
    with pytest.raises(DataError, match=message):
        Puzzle.of(shipped().decoder, np.ma.asarray(image))


def test_what_cannot_be_chosen_is_refused():
    with pytest.raises(SettingError, match="choose one of top-quarter"):
        see(shipped().images[0], "bottom")
    with pytest.raises(SettingError, match="0 to 19"):
        quick.shipped_digit(20)
    with pytest.raises(SettingError, match="noise=0"):
        Puzzle.of(shipped().decoder, see(shipped().images[0], "random"), noise=0)


def outcome(seed):
    draws = np.random.default_rng(seed).normal(size=(50, CODE + 1))
    sizes = np.arange(1.0, CODE + 2)
    return Outcome(draws, 2.0, sizes, 0.8, 0.0, np.arange(3.0), draws[:3], draws[:3], 0.0)


def test_the_table_counts_digits_and_rates(tmp_path):
    with jax.enable_x64(False):
        names = [method.name for method in study.methods(puzzle())]
        outcomes = {name: [outcome(k) for k in range(3)] for name in names}
        heading, lines = study.table(outcomes, dict.fromkeys(names, 400))
    line = dict(zip(heading, lines[0], strict=True))
    assert line["ESS/s, code, least"].startswith("0.5 ")
    assert line["ESS/s, log p(h | y)"] == "26 ± 0"
    assert line["ms a draw"] == "5"
    assert 1 <= float(line["digits a run"]) <= 10
    assert study.often_painted(np.array([3] * 90 + [8] * 6 + [5] * 4)) == 2
    study.figure(outcomes, see(shipped().images[4], "top-quarter")).savefig(tmp_path / "p.png")


def test_the_papers_start_reproduces_what_is_seen():
    one = puzzle()
    u = jnp.asarray(one.start(np.zeros(CODE)))
    np.testing.assert_allclose(one.model().outputs(u)["y"], one.y, atol=1e-12)
