"""What the studies stand on: runs that can go on, tables, and models that are what they claim."""

import csv
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate

from coarea.errors import AcceptanceError, SettingError
from coarea.execution.blocks import Block
from coarea.execution.transitions import TransitionStats
from coarea.results.datatree import as_datatree
from coarea.studies import lotka_volterra, lotka_volterra_study, tukey_lambda
from coarea.studies import lotka_volterra_methods as methods
from coarea.studies.comparison import Comparison, Method, summarise
from coarea.studies.study_report import efficiency, errors, marginals, write_tables


def normal_draws(seed, size):
    """What a perfect method returns."""
    x = np.random.default_rng(seed).normal(size=(1, size, 2))
    ones = np.ones((1, size))
    stats = TransitionStats(*[ones * 0.5] * len(TransitionStats._fields))
    return as_datatree(Block({"z": x}, None, stats), None, {"tuning_steps": 10, "epsilon": 3.0})


def nothing(seed, size):
    raise AcceptanceError("none", 7.0 + seed)


def compare(folder, calls, budget=0.1):
    def counted(seed, size):
        calls.append(seed)
        return normal_draws(seed, size)

    compared = [
        Method("perfect", "exact", counted, pilot=50, scales=False),
        Method("none at all, ε = 1", "slice", nothing, scales=False),
    ]
    parameters = lambda draws: draws.posterior["z"].values[0]  # noqa: E731
    outcomes = Comparison(folder, parameters, {"seed": 0}, runs=4, budget=budget).run(compared)
    return compared, outcomes


def test_a_study_goes_on_with_what_is_there(tmp_path):
    calls = []
    _, first = compare(tmp_path, calls)
    assert calls == [4, 0, 1, 2, 3]  # a first run that compiles, and four
    (tmp_path / "perfect-2.npz").unlink()
    _, again = compare(tmp_path, calls)
    assert calls[5:] == [4, 2]
    for a, b in zip(first["perfect"], again["perfect"], strict=True):
        np.testing.assert_array_equal(a.draws, b.draws)
    with pytest.raises(SettingError, match="other settings"):
        compare(tmp_path, calls, budget=5.0)
    assert json.loads((tmp_path / "settings.json").read_text())["seed"] == 0


def test_tables_and_figures_tell_of_methods_that_find_something_and_of_those_that_do_not(tmp_path):
    compared, outcomes = compare(tmp_path, [])
    mean, sd = np.zeros(2), np.ones(2)
    rows = summarise(compared, outcomes, mean, sd)
    assert np.all(np.abs(rows[0].bias) < 4 * rows[0].bias_error)
    assert rows[0].rhat < 1.1
    assert rows[1].smallest_distance == 7.0
    write_tables(rows, ("a", "b"), {"perfect": {"paper": "2.7"}}, tmp_path)
    text = (tmp_path / "study.md").read_text()
    assert "none (nearest: 7)" in text
    assert "| 2.7 |" in text
    with (tmp_path / "study.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert [line["method"] for line in lines] == ["perfect", "none at all, ε = 1"]
    assert float(lines[0]["sd_ratio_1"]) == pytest.approx(rows[0].sd_ratio[0], rel=1e-5)
    prior = [lambda x: np.ones_like(x)] * 2
    shown = [("perfect", outcomes["perfect"][0].draws)]
    for figure in (
        efficiency(rows, ("a", "b"), {"perfect": (2.7,)}),
        errors({row.name: row.family for row in rows}, outcomes, mean, sd),
        marginals(shown, ("a", "b"), mean, prior, [(-3, 3)] * 2),
    ):
        figure.savefig(tmp_path / "figure.png")
        assert (tmp_path / "figure.png").stat().st_size > 5_000


def test_the_study_of_lotka_volterra_shows_and_cites_methods_that_it_has():
    names = {method.name for method in methods.methods(lotka_volterra.dataset())}
    for table in ("_SHOWN", "_PAPER", "_THESIS"):
        assert set(getattr(lotka_volterra_study, table)) <= names


def test_the_numerical_likelihood_of_a_tukey_lambda_is_its_density(x64):
    z = dict(zip(tukey_lambda.NAMES, jnp.asarray(tukey_lambda.TRUTH), strict=True))

    @jax.jit
    def density(y):
        return jnp.exp(tukey_lambda.log_likelihood(z, {"y": y[None]})) / jnp.sqrt(2 * jnp.pi)

    low, high = (
        float(tukey_lambda.quantile(jnp.asarray(tukey_lambda.TRUTH), n)) for n in (-2.0, 1.0)
    )
    inside, _ = integrate.quad(lambda y: float(density(jnp.asarray(y))), low, high)
    assert abs(inside - (0.8413447461 - 0.0227501319)) < 1e-7
    # The gradient is that of the solution, not of its steps.
    slope = jax.grad(lambda a: jnp.log(density(a)))(jnp.asarray(5.5))
    nearby = [float(jnp.log(density(jnp.asarray(5.5 + e)))) for e in (-1e-5, 1e-5)]
    assert abs(float(slope) - (nearby[1] - nearby[0]) / 2e-5) < 1e-5
