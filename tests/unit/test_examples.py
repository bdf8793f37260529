"""The page of examples runs, and each of its models reproduces what was observed."""

import runpy
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
page = SimpleNamespace(**runpy.run_path(str(EXAMPLES / "observe_a_deterministic.py")))

HELD = {
    "known_sum": lambda x: x["times"].sum("times_dim_0") - 42.0,
    "known_difference": lambda x: x["b"] - x["a"] - 2.5,
    "mass_balance": lambda x: x["inflow"] - x["outflow"] - x["evaporation"] - 0.3,
    "measured_ratio": lambda x: x["heavy"] / x["light"] - 0.1124,
    "eight_schools": lambda x: x["theta"].mean("theta_dim_0") - 8.0,
}


@pytest.mark.parametrize("name", page.EXAMPLES)
def test_an_example_runs_and_what_it_observed_holds_in_every_draw(name, capsys, monkeypatch):
    example, kept = page.EXAMPLES[name], []

    def run(draws):
        kept.append(example(draws))
        return kept[0]

    run.__doc__ = example.__doc__
    monkeypatch.setitem(page.EXAMPLES, name, run)
    page.main([name], draws=50)
    assert "exact to" in capsys.readouterr().out
    assert float(kept[0].sample_stats["constraint_error"].max()) < 1e-8
    if name in HELD:
        np.testing.assert_allclose(HELD[name](kept[0].posterior), 0.0, atol=1e-6)
