"""The README's example runs as it stands."""

import re
from pathlib import Path

import numpy as np

README = Path(__file__).parents[1] / "README.md"


def test_the_example_in_the_readme_runs(monkeypatch):
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    names = {}
    exec(code, names)
    posterior = names["draws"].posterior
    assert posterior["scale"].shape == (4, 1000)
    assert np.all(posterior["scale"] > 0)
    assert names["draws"].sample_stats["convergence_error"].mean() < 0.02
