"""The README's examples run as they stand."""

import re
from pathlib import Path

import numpy as np

README = Path(__file__).parents[1] / "README.md"


def test_the_examples_in_the_readme_run():
    names = {}
    first, second, third, fourth = re.findall(
        r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL
    )
    exec(first, names)
    posterior = names["draws"].posterior
    assert posterior["scale"].shape == (4, 1000)
    assert np.all(posterior["scale"] > 0)
    assert names["draws"].sample_stats["convergence_error"].mean() < 0.02
    exec(second, names)
    x = names["draws"].posterior["x"].values
    assert x.shape == (4, 1000, 25, 2)
    np.testing.assert_allclose(x[..., 0], np.broadcast_to(names["y"], x.shape[:3]), atol=1e-7)
    exec(third, names)
    np.testing.assert_allclose(names["draws"].posterior["times"].sum("times_dim_0"), 42.0)
    exec(fourth, names)
    assert names["near"].posterior["z"].shape == names["exact"].posterior["z"].shape
