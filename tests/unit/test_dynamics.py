"""The integrator's geometry: order, reversal, tangency; the solvers against each other."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import coarea as co
from coarea.dynamics import (
    Broyden,
    Hybrid,
    Newton,
    NewtonLineSearch,
    QuasiNewton,
    Rattle,
    Rotation,
    Secant,
    Straight,
)
from coarea.dynamics.projection import Tolerance, project_onto
from coarea.manifolds import Posterior

pytestmark = pytest.mark.usefixtures("x64")

FLOWS = [Straight(), Rotation()]
SOLVERS = [QuasiNewton(), Secant(), Broyden(), Newton(), NewtonLineSearch(), Hybrid()]


@pytest.fixture(scope="module")
def posterior():
    """Three observed nonlinear functions of six standard normals."""

    def simulate(u):
        u = u["u"]
        return {"y": jnp.sin(u[:3]) + u[3:] * (1.0 + 0.1 * u[:3] ** 2)}

    return co.condition(co.Generator(simulate, {"u": 6}), {"y": np.array([0.5, -0.2, 1.0])})


@pytest.fixture(scope="module")
def start(posterior):
    return co.find_start(posterior, jax.random.key(3), 1)[0]


def moving(posterior, start, integrator):
    state = integrator.init(posterior, jnp.asarray(start))
    return integrator.refresh(jax.random.key(0), state)


@pytest.mark.parametrize("flow", FLOWS)
@pytest.mark.parametrize("geodesic_steps", [1, 3])
def test_energy_error_is_of_second_order(posterior, start, flow, geodesic_steps):
    integrator = Rattle(flow=flow)
    state = moving(posterior, start, integrator)

    def energy_error(num_steps):
        end = jax.lax.fori_loop(
            0,
            num_steps,
            lambda _, s: integrator.step(posterior, s, 1.0 / num_steps, geodesic_steps),
            state,
        )
        assert not end.failed
        return float(jnp.abs(end.energy - state.energy))

    errors = [energy_error(n) for n in (8, 16, 32)]
    assert 3.5 < errors[0] / errors[1] < 4.5
    assert 3.5 < errors[1] / errors[2] < 4.5


@pytest.mark.parametrize("flow", FLOWS)
@pytest.mark.parametrize("geodesic_steps", [1, 3])
def test_reversed_time_leads_back_to_the_start(posterior, start, flow, geodesic_steps):
    integrator = Rattle(flow=flow)
    state = moving(posterior, start, integrator)

    def steps(state, h):
        return jax.lax.fori_loop(
            0, 5, lambda _, s: integrator.step(posterior, s, h, geodesic_steps), state
        )

    away = steps(state, 0.2)
    assert jnp.max(jnp.abs(away.position - state.position)) > 0.1
    turned = steps(away._replace(momentum=-away.momentum), 0.2)
    back = steps(away, -0.2)
    for end, sign in ((turned, -1.0), (back, 1.0)):
        np.testing.assert_allclose(end.position, state.position, atol=1e-7)
        np.testing.assert_allclose(sign * end.momentum, state.momentum, atol=1e-7)


def test_geodesic_steps_follow_the_same_path(posterior, start):
    """However it is divided, a small step leads to the same place, up to its order."""
    integrator = Rattle(flow=Straight())
    state = moving(posterior, start, integrator)
    ends = [integrator.step(posterior, state, jnp.asarray(0.02), n).position for n in (1, 4)]
    assert jnp.max(jnp.abs(ends[0] - state.position)) > 1e-3
    np.testing.assert_allclose(ends[0], ends[1], atol=1e-5)


def test_a_step_stays_on_the_manifold_and_tangent_to_it(posterior, start):
    integrator = Rattle()
    end = integrator.step(posterior, moving(posterior, start, integrator), jnp.asarray(0.3))
    assert jnp.max(jnp.abs(posterior.residual(end.position))) < 1e-9 * posterior.scales.residual
    J = jax.jacfwd(posterior.residual)(end.position)
    assert jnp.max(jnp.abs(J @ end.momentum)) < 1e-12


@pytest.mark.parametrize("solver", SOLVERS)
def test_the_solvers_agree(posterior, start, solver):
    previous = posterior.linearise(jnp.asarray(start))
    ahead = jnp.asarray(start) + 0.2 * previous.project(jnp.arange(6.0) - 2.0)
    tolerance = Tolerance(1e-12, 1e-11)
    found = project_onto((solver,), posterior, previous, ahead, tolerance)
    reference = project_onto((Newton(),), posterior, previous, ahead, tolerance)
    assert found.converged
    assert found.iterations > 1
    np.testing.assert_allclose(found.u, reference.u, atol=1e-10)
    moved = found.u - ahead
    np.testing.assert_allclose(previous.project(moved), 0.0, atol=1e-10)


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_projection_without_solution_is_reported_not_raised(solver):
    """From far outside, the normal of the unit circle at (1, 0) does not meet the circle."""
    circle = co.Manifold(
        lambda x: x @ x - 1.0, lambda x: jnp.zeros(()), point=jnp.array([1.0, 0.0])
    )
    previous = circle.linearise(jnp.array([1.0, 0.0]))
    found = project_onto((solver,), circle, previous, jnp.array([1.0, 1.5]), Tolerance(1e-9, 1e-8))
    assert not found.converged


def test_a_later_solver_is_used_only_where_an_earlier_one_failed(posterior, start):
    previous = posterior.linearise(jnp.asarray(start))
    direction = previous.project(jnp.arange(6.0) - 2.0)
    ahead = jnp.stack([start + 0.1 * direction, start + 0.2 * direction])
    tolerance = Tolerance(1e-9, 1e-8)

    def counts(*solvers):
        project = jax.vmap(lambda u: project_onto(solvers, posterior, previous, u, tolerance))
        return project(ahead)

    enough, too_few = QuasiNewton(50), QuasiNewton(2)
    alone = counts(enough)
    assert np.array_equal(counts(enough, Newton()).iterations, alone.iterations)
    assert not counts(too_few).converged.any()
    rescued = counts(too_few, Newton())
    assert rescued.converged.all()
    np.testing.assert_allclose(rescued.u, alone.u, atol=1e-7)


def test_a_failed_step_is_flagged(posterior, start):
    integrator = Rattle(solvers=(QuasiNewton(1),))
    end = integrator.step(posterior, moving(posterior, start, integrator), jnp.asarray(0.5))
    assert end.convergence_error
    assert not end.non_reversible_step
    assert jnp.all(jnp.isfinite(end.position))


def test_inputs_that_turn_beside_inputs_that_go_straight_lead_back(x64):
    """A step corrects the momentum along the rows of J; each flow carries that on its own way."""
    model = co.Generator(
        lambda u: {"y": u["a"] + jnp.exp(0.3 * u["b"]) + 0.2 * u["a"] * u["b"]},
        {"a": 3, "b": dist.StudentT(5.0, 0.0, jnp.ones(3))},
    )
    posterior = co.condition(model, {"y": np.array([0.5, 1.0, 1.5])})
    assert 0 < np.sum(posterior.gaussian) < posterior.num_inputs
    integrator = Rattle(reverse_check=False)
    u = jnp.asarray(co.find_start(posterior, jax.random.key(0), 1)[0])
    start = integrator.refresh(jax.random.key(1), integrator.init(posterior, u))
    h = jnp.asarray(0.4)
    ahead = integrator.step(posterior, start, h)
    assert jnp.max(jnp.abs(ahead.position - u)) > 0.1
    back = integrator.step(posterior, ahead._replace(momentum=-ahead.momentum), h)
    np.testing.assert_allclose(back.position, u, atol=1e-7)


def test_broyden_converges_faster_than_quasi_newton_and_from_further():
    def wavy(x):
        return x[0] ** 2 + (x[1] + 0.5 * jnp.sin(3 * x[0])) ** 2 - 1.0

    point = jnp.array([0.95, np.sqrt(1 - 0.95**2) - 0.5 * np.sin(3 * 0.95)])
    target = co.Manifold(wavy, lambda x: 0.0, point=point)
    previous = target.linearise(point)
    along = previous.project(jnp.ones(2))
    along = along / jnp.linalg.norm(along)

    def solve(solver, distance):
        tolerance = Tolerance.following(1e-9)
        return project_onto((solver,), target, previous, point + distance * along, tolerance)

    near = [solve(solver, 0.2) for solver in (QuasiNewton(), Broyden())]
    assert all(projection.converged for projection in near)
    np.testing.assert_allclose(near[0].u, near[1].u, atol=1e-8)
    assert near[1].iterations <= near[0].iterations / 2
    assert not solve(QuasiNewton(), 0.5).converged
    assert solve(Broyden(), 0.5).converged


class LatencyBound(Posterior):
    """Computed, as it says, by a long loop of cheap steps."""

    @property
    def hints(self):
        return super().hints._replace(latency_bound=True)


@pytest.mark.parametrize("kind", [Posterior, LatencyBound])
def test_chains_that_a_solver_left_go_on_as_if_alone(posterior, start, kind):
    """Forty, of which some need one solver, some two, some all: more than go on at a time."""
    posterior = kind(
        posterior.generator, posterior.observations, posterior.jacobian, posterior.structure
    )
    solvers = (QuasiNewton(5), QuasiNewton(2), NewtonLineSearch())
    previous = posterior.linearise(start)
    moves = 0.3 * jax.random.normal(jax.random.key(4), (40, start.size))

    def projected(move):
        ahead = start + previous.project(move)
        return project_onto(solvers, posterior, previous, ahead, Tolerance.following(1e-9))

    together = jax.jit(jax.vmap(projected))(moves)
    alone = jax.jit(lambda moves: jax.lax.map(projected, moves))(moves)
    assert jnp.sum(alone.iterations <= 5) > 4 < jnp.sum(alone.iterations > 5)
    np.testing.assert_array_equal(together.iterations, alone.iterations)
    np.testing.assert_array_equal(together.converged, alone.converged)
    np.testing.assert_allclose(together.u, alone.u, atol=1e-12)


@pytest.mark.parametrize("solvers", [(Secant(8), Broyden()), (Secant(8), NewtonLineSearch())])
@pytest.mark.parametrize("size", [0.2, 0.5])
def test_hundreds_of_chains_end_where_each_would_alone(posterior, start, solvers, size):
    """Few iterations are made by all of them, more by those that need more: a part, or most."""
    previous = posterior.linearise(start)
    moves = size * jax.random.normal(jax.random.key(4), (300, start.size))

    def projected(move):
        ahead = start + previous.project(move)
        return project_onto(solvers, posterior, previous, ahead, Tolerance.following(1e-9))

    together = jax.jit(jax.vmap(projected))(moves)
    alone = jax.jit(lambda moves: jax.lax.map(projected, moves))(moves)
    more = jnp.mean(together.iterations > 4)
    assert (0.02 < more < 0.2) if size == 0.2 else (0.4 < more < 0.98)
    assert jnp.all(together.converged & alone.converged)
    np.testing.assert_allclose(together.u, alone.u, atol=1e-7)


def test_of_hundreds_of_chains_none_depends_on_others(x64):
    """Steps so long that some fail, by solvers that are left sooner; some chains are inactive."""
    ellipse = co.Manifold(
        lambda x: x[0] ** 2 / 9.0 + x[1] ** 2 - 1.0,
        lambda x: jnp.zeros(()),
        point=np.array([3.0, 0.0]),
    )
    start = jnp.array([3 * np.cos(1.0), np.sin(1.0)])
    previous = ellipse.linearise(start)
    moves = 1.5 * jax.random.normal(jax.random.key(4), (300, 2))
    inactive = jnp.arange(300) % 7 == 0
    solvers = (Secant(8), Broyden(), NewtonLineSearch())

    @jax.jit
    @jax.vmap
    def projected(move, inactive):
        ahead = start + previous.project(move)
        tolerance = Tolerance.following(1e-9)
        return project_onto(solvers, ellipse, previous, ahead, tolerance, inactive=inactive)

    def agree(some, others):
        np.testing.assert_array_equal(some.converged, others.converged)
        is_well = np.asarray(some.converged)
        np.testing.assert_allclose(some.u[is_well], others.u[is_well], atol=1e-7)

    found = projected(moves, inactive)
    assert not jnp.any(found.converged & inactive)
    assert 0.1 < jnp.mean(found.converged[~inactive]) < 0.9
    assert jnp.max(jax.vmap(lambda u: ellipse.constraint_error(u))(found.u[found.converged])) < 1e-8
    order = jax.random.permutation(jax.random.key(5), 300)
    agree(projected(moves[order], inactive[order]), jax.tree.map(lambda x: x[order], found))
    # With so few that need more than the first solver, these go on by themselves.
    few = jnp.arange(300) < 30
    alone = projected(jnp.where(few[:, None], moves, 0.0), inactive)
    agree(*(jax.tree.map(lambda x: x[:30], one) for one in (alone, found)))


def test_a_search_that_is_stuck_ends_where_it_got_to(x64):
    """The residual x² + 1 is least, and not zero, at 0."""
    bowl = co.Manifold(
        lambda x: x[0] ** 2 + 1.0 - 0 * x[1], lambda x: 0.0 * x[0], point=np.array([3.0, 0.0])
    )
    previous = bowl.linearise(jnp.array([1.0, 0.0]))
    solvers = (NewtonLineSearch(50),)
    end = project_onto(solvers, bowl, previous, jnp.array([3.0, 0.0]), Tolerance.following(1e-9))
    assert not end.converged
    assert end.iterations < 20
    assert abs(end.u[0]) < 0.5


def test_the_reverse_check_iterates_no_further_than_needed(posterior, start):
    previous = posterior.linearise(start)
    ahead = start + previous.project(0.3 * jnp.ones(start.size))

    def projected(known_root):
        tolerance = Tolerance.following(1e-9)
        solvers = QuasiNewton(), NewtonLineSearch()
        return project_onto(solvers, posterior, previous, ahead, tolerance, known_root=known_root)

    whole = projected(None)
    towards, elsewhere = projected(whole.u), projected(start)
    assert whole.converged & towards.converged & elsewhere.converged
    assert towards.iterations < whole.iterations == elsewhere.iterations
    assert jnp.max(jnp.abs(towards.u - whole.u)) < 1e-5
    np.testing.assert_array_equal(elsewhere.u, whole.u)


def test_a_flow_that_is_given_is_used(x64):
    """A rotation of some inputs suits any density; the others move straight."""
    model = co.Generator(lambda u: {"y": u["a"].sum() + u["b"] ** 2}, {"a": 3, "b": ()})
    posterior = co.condition(model, {"y": 1.0})
    some = np.array([True, False, True, False])
    assert Rattle(flow=Rotation(some)).flow_for(posterior).normals is some
    assert Rattle(flow=Rotation()).flow_for(posterior).normals is None
    assert isinstance(Rattle(flow=Straight()).flow_for(posterior), Straight)
