"""A second try after a rejection leaves the density as it is, and leads out of narrow places."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import coarea as co
from coarea.kernels.kernel import Tuning
from exact import assert_mean


def funnel():
    """v is standard normal, and x given v has standard deviation exp(v)."""

    def log_factor(z):
        return -0.5 * (z["x"] * jnp.exp(-z["v"])) ** 2 - z["v"] + 0.5 * z["x"] ** 2

    return co.condition(co.Generator(lambda u: u, {"v": (), "x": ()}, log_factor=log_factor))


def follow(kernel, target, tuning, start, num_chains, num_draws):
    """The values of v, and the statistics of each transition, axes (chain, draw)."""

    def chain(key):
        def next_draw(state, key):
            state, info = kernel.step(target, key, state, tuning)
            return state, (state.position, info)

        keys = jax.random.split(key, num_draws)
        return jax.lax.scan(next_draw, kernel.init(target, start), keys)[1]

    u, info = jax.jit(jax.vmap(chain))(jax.random.split(jax.random.key(0), num_chains))
    return np.asarray(u), info


@pytest.fixture
def tuning():
    """Steps that are too long where v is less than -1, and a second try in every transition."""
    return Tuning(
        step_size=jnp.asarray(0.7),
        u_turn_time=jnp.asarray(jnp.inf),
        is_adapting=jnp.asarray(False),
        num_steps=jnp.asarray(3),
        retry_step_size=jnp.asarray(0.14),
    )


def test_the_second_try_leaves_the_density_as_it_is(x64, tuning):
    """Accepted by the ratio of densities alone, E v would be off by more than 10 errors."""
    u, info = follow(co.CHMC(), funnel(), tuning, jnp.zeros(2), 100, 5000)
    rejected, accepted = info.acceptance_rate < 0.5, info.is_accepted
    assert np.mean(np.asarray(rejected & accepted)) > 0.02
    v = u[:, 500:, 0]
    assert_mean(v, 0.0)
    assert_mean(v**2, 1.0)
    assert_mean(v**3, 0.0)


def test_the_second_try_leads_out_of_narrow_places(x64, tuning):
    """At v = -3 the width of x is a fourteenth of a step, and a third of a shorter step."""
    start = jnp.array([-3.0, 0.0])
    many, _ = follow(co.CHMC(), funnel(), tuning, start, 100, 60)
    few, _ = follow(co.CHMC(), funnel(), tuning._replace(retry_step_size=None), start, 100, 60)
    never_moved = [np.mean(np.all(u[..., 0] == -3.0, axis=1)) for u in (many, few)]
    assert never_moved[0] < 0.1
    assert never_moved[1] > 0.2


def test_steps_are_counted_and_made_only_where_needed(x64, tuning):
    _, info = follow(co.CHMC(), funnel(), tuning, jnp.zeros(2), 10, 500)
    steps = np.asarray(info.num_integration_steps)
    assert set(np.unique(steps)) == {3, 9}
    assert np.all(steps[np.asarray(info.acceptance_rate) == 1.0] == 3)


def test_warm_up_frees_a_chain_that_begins_in_a_narrow_place():
    """The others accept enough: their mean acceptance does not show that one chain is stuck."""
    start = np.array([[0.0, 0.0], [0.5, 0.1], [-0.5, 0.1], [-9.0, 0.0]])
    draws = co.sample(funnel(), draws=500, chains=4, start=start, progress=False)
    v = draws.posterior["v"].values
    assert np.mean(v[3] > -4) > 0.9
    assert np.all(draws.sample_stats["acceptance_rate"].mean("draw") > 0.3)
