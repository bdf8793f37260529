"""The examples in the README and in the guides run as they stand."""

import functools
import re
from importlib.util import find_spec
from pathlib import Path

import jax
import numpy as np

import coarea as co

README = Path(__file__).parents[2] / "README.md"
DEEP_MODELS = Path(__file__).parents[2] / "docs/guides/deep-generative-models.md"


def test_the_examples_in_the_readme_run(monkeypatch):
    """With fewer draws than they have by default, which take half of the time."""
    fewer = functools.partial(co.sample, draws=300, warmup=200)
    monkeypatch.setattr(co, "sample", fewer)
    names = {}
    first, second, third, fourth = re.findall(
        r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL
    )
    exec(first, names)
    posterior = names["draws"].posterior
    assert posterior["scale"].shape == (4, 300)
    assert np.all(posterior["scale"] > 0)
    assert names["draws"].sample_stats["convergence_error"].mean() < 0.02
    exec(second, names)
    x = names["draws"].posterior["x"].values
    assert x.shape == (4, 300, 25, 2)
    np.testing.assert_allclose(x[..., 0], np.broadcast_to(names["y"], x.shape[:3]), atol=1e-7)
    exec(third, names)
    np.testing.assert_allclose(names["draws"].posterior["times"].sum("times_dim_0"), 42.0)
    exec(fourth, names)
    assert set(names["near"].posterior) == set(names["exact"].posterior) == {"z"}


def test_the_guide_to_deep_models_runs(x64):
    """Each decoder gives the same images, and a generator that can be conditioned on."""
    names = {}
    blocks = re.findall(
        r"(?:<!-- needs: (\w+) -->\n)?```python\n(.*?)```", DEEP_MODELS.read_text(), flags=re.DOTALL
    )
    for needed, block in blocks:
        if not needed or find_spec(needed):
            exec(block, names)
    drawn = names["draws"].posterior["image"].values
    assert drawn.shape == (1, 20, 784)
    u = {"code": names["code"], "noise": np.zeros(196)}
    made = [names[name] for name in ("from_equinox", "from_flax", "from_torch") if name in names]
    assert len(made) >= 2
    expected = names["simulate"](u)["y"]
    for simulate in made:
        np.testing.assert_allclose(jax.jit(simulate)(u)["y"], expected, atol=1e-6)
