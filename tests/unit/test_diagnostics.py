"""`diagnose` says what is wrong, and only that."""

import warnings

import jax.numpy as jnp
import numpy as np
import pytest
from arviz_base import from_dict

import coarea as co
from coarea.errors import SamplingWarning

MODEL = co.Generator(lambda u: {"z": u["z"], "y": u["z"] ** 3 + u["n"]}, {"z": (), "n": ()})


def named(draws):
    return {problem.name for problem in co.diagnose(draws).problems}


def test_a_good_run_has_no_problem_and_does_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error", SamplingWarning)
        draws = co.sample(co.condition(MODEL, {"y": 1.5}), draws=1000, chains=4)
    assert not named(draws)
    assert "R-hat" in str(co.diagnose(draws))


def test_a_short_run_is_reported_in_one_line():
    with pytest.warns(
        SamplingWarning, match="effective sample size, of means and squares, is .*coarea.diagnose"
    ) as caught:
        draws = co.sample(co.condition(MODEL, {"y": 1.5}), draws=30, chains=2)
    assert "ess" in named(draws)
    assert "\n" not in str(caught[0].message)


def test_too_large_a_step_shows_in_the_failures():
    ellipse = co.Manifold(
        lambda x: x[0] ** 2 / 9.0 + x[1] ** 2 - 1.0,
        lambda x: jnp.zeros(()),
        point=np.array([3.0, 0.0]),
    )
    coarse = co.CHMC(num_steps=2, step_size=2.0)
    draws = co.sample(ellipse, draws=500, warmup=0, chains=2, kernel=coarse)
    assert "convergence_error" in named(draws)
    # A failure is a divergence too, and looking at the draws has not changed them.
    stats = draws.sample_stats
    assert stats["diverging"].where(stats["convergence_error"]).min() == 1
    # Warm-up with an acceptance to aim at holds failures near one in a hundred, though every energy
    # is equal. Without one, failures are rejections that cost what they cost.
    careful = co.CHMC(target_acceptance=0.8)
    draws = co.sample(ellipse, draws=2000, warmup=1000, chains=2, kernel=careful)
    assert draws.sample_stats["convergence_error"].mean() < 0.02
    draws = co.sample(ellipse, draws=2000, chains=2)
    assert not {"ess", "rhat"} & named(draws)


def test_chains_in_different_modes_are_seen():
    """z² = 1 with little noise: a chain cannot cross from z = 1 to z = −1."""
    model = co.Generator(
        lambda u: {"z": u["z"], "y": u["z"] ** 2 + 0.001 * u["n"]}, {"z": (), "n": ()}
    )
    start = np.array([[1.0, 0.0], [-1.0, 0.0]])
    draws = co.sample(co.condition(model, {"y": 1.0}), draws=300, chains=2, start=start)
    assert "rhat" in named(draws)


def test_one_slow_element_of_many_is_seen():
    """Not every one is looked at closely, but the slowest is."""
    x = np.random.default_rng(0).normal(size=(4, 500, 300))
    walk = np.cumsum(x[..., 123], axis=1)
    slow = {"x": np.concatenate([x[..., :123], walk[..., None], x[..., 124:]], axis=-1)}
    stats = {"energy": x[..., 0], "diverging": np.zeros((4, 500), bool)}
    assert not named(from_dict({"posterior": {"x": x}, "sample_stats": stats}))
    assert named(from_dict({"posterior": slow, "sample_stats": stats})) == {"rhat", "ess"}


def test_values_that_are_not_finite_are_counted_and_named():
    model = co.Generator(
        lambda u: {"root": jnp.sqrt(u["z"]), "y": u["z"] * jnp.ones(2) + u["n"]}, {"z": (), "n": 2}
    )
    posterior = co.condition(model, {"y": np.zeros(2)})
    with pytest.warns(SamplingWarning, match=r"root is NaN or infinite in \d+ of 400 draws"):
        draws = co.sample(posterior, draws=200, chains=2)
    assert "finite" in named(draws)
    assert "inf" not in str(co.diagnose(draws)).replace("infinite", "")


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("reject", {"simulations": 1000}),
        ("smc", {"particles": 100}),
        ("optimisation_monte_carlo", {"simulations": 50}),
        ("elliptical_slice", {"draws": 100, "warmup": 20, "chains": 2, "progress": False}),
        ("nuts", {"draws": 100, "warmup": 20, "chains": 2, "progress": False}),
    ],
)
def test_approximate_methods_warn_of_values_that_are_not_finite(method, options):
    model = co.Generator(
        lambda u: {"root": jnp.sqrt(u["z"]), "y": u["z"] + u["n"]},
        {"z": (), "n": ()},
        parameters=["z"],
    )
    with pytest.warns(SamplingWarning, match=r"root is NaN or infinite in \d+ of") as seen:
        draws = getattr(co.approximate, method)(model, {"y": 0.0}, epsilon=0.5, **options)
    assert [warning.filename for warning in seen] == [__file__]
    assert "finite" in named(draws)


def test_chains_that_do_not_move_are_named():
    draws = co.sample(co.condition(MODEL, {"y": 1.5}), draws=30, chains=3)
    assert "stuck" not in named(draws)
    draws.sample_stats["acceptance_rate"][1] = 0.001
    assert "1 of 3 chains accepted almost no proposal (the first is chain 1)" in str(
        co.diagnose(draws)
    )


def test_latents_that_are_not_real_are_diagnosed():
    model = co.Generator(
        lambda u: {"up": u["z"] > 0, "count": jnp.round(u["z"]).astype(int), "y": u["z"] + u["n"]},
        {"z": (), "n": ()},
    )
    draws = co.sample(co.condition(model, {"y": 0.3}), draws=300, chains=2)
    assert draws.posterior["up"].dtype == bool
    assert "R-hat" in str(co.diagnose(draws))
