"""Geodesic Monte Carlo on manifolds whose geodesics have a closed form."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import coarea as co
from coarea.dynamics import Geodesic, Rattle, Straight
from exact import assert_mean

KAPPA = 3.0
# Steps long enough for many rejections: without them the draws would be wrong.
COARSE = co.CHMC(num_steps=(1, 3), step_size=0.9)


@pytest.mark.parametrize(
    "kernel",
    [COARSE, co.NUTS(), co.CHMC(num_steps=(1, 3), integrator=Rattle(flow=Straight()))],
    ids=["geodesics", "NUTS", "projection"],
)
def test_a_von_mises_fisher_density_has_its_moments(kernel):
    target = co.manifolds.Sphere(lambda x: KAPPA * x[2], 3)
    draws = co.sample(target, draws=3000, kernel=kernel, progress=False)
    x = draws.posterior["point"].values
    mean = 1 / np.tanh(KAPPA) - 1 / KAPPA
    assert_mean(x[..., 2], mean)
    assert_mean(x[..., 2] ** 2, 1 - 2 * mean / KAPPA)
    assert_mean(x[..., 0], 0.0)
    if kernel is COARSE:
        assert draws.sample_stats["acceptance_rate"].mean() < 0.9


def test_points_on_two_spheres_that_attract_each_other_have_the_moments_of_one():
    target = co.manifolds.Sphere(lambda x: KAPPA * x[0] @ x[1], (2, 3))
    draws = co.sample(target, draws=2000, progress=False)
    x = draws.posterior["point"].values
    assert_mean(np.sum(x[..., 0, :] * x[..., 1, :], axis=-1), 1 / np.tanh(KAPPA) - 1 / KAPPA)
    np.testing.assert_allclose(np.linalg.norm(x, axis=-1), 1.0, rtol=1e-12)


def test_a_matrix_bingham_density_has_the_moments_of_the_direction_left_over():
    """Of two orthonormal columns in space, tr XᵀAX = tr A − cᵀAc, c orthogonal to both."""
    A = np.array([4.0, 1.0, 0.0])
    target = co.manifolds.Stiefel(lambda X: jnp.sum(A[:, None] * X**2), (3, 2))
    draws = co.sample(target, draws=3000, kernel=COARSE, progress=False)
    X = draws.posterior["point"].values
    c = np.cross(X[..., 0], X[..., 1])
    height, angle = np.meshgrid(np.linspace(-1, 1, 801), np.linspace(0, 2 * np.pi, 801)[:-1])
    ring = np.sqrt(1 - height**2)
    points = np.stack([ring * np.cos(angle), ring * np.sin(angle), height])
    weight = np.exp(-np.einsum("i,ijk->jk", A, points**2))
    weight[:, [0, -1]] /= 2
    for i in range(3):
        assert_mean(c[..., i] ** 2, np.sum(weight * points[i] ** 2) / weight.sum())


def test_a_matrix_von_mises_fisher_density_has_its_moments():
    """On rotations of space, parametrised by quaternions; two columns fix the third."""
    F = np.array([[2.0, 0.0], [0.0, 1.0], [0.5, 0.0]])
    target = co.manifolds.Stiefel(lambda X: jnp.sum(F * X), (3, 2))
    draws = co.sample(target, draws=3000, progress=False)
    X = draws.posterior["point"].values
    # A quasi-random uniform rotation for each of many points of the cube (Shoemake).
    u = np.modf(np.outer(np.arange(400_000), [0.8191725134, 0.6710436067, 0.5497004779]))[0].T
    q = np.stack(
        [
            np.sqrt(1 - u[0]) * np.sin(2 * np.pi * u[1]),
            np.sqrt(1 - u[0]) * np.cos(2 * np.pi * u[1]),
            np.sqrt(u[0]) * np.sin(2 * np.pi * u[2]),
            np.sqrt(u[0]) * np.cos(2 * np.pi * u[2]),
        ]
    )
    x, y, z, w = q
    first = np.stack([1 - 2 * (y**2 + z**2), 2 * (x * y + z * w), 2 * (x * z - y * w)])
    second = np.stack([2 * (x * y - z * w), 1 - 2 * (x**2 + z**2), 2 * (y * z + x * w)])
    R = np.stack([first, second], axis=1)
    weight = np.exp(np.einsum("ij,ijn->n", F, R))
    for i, j in [(0, 0), (1, 1), (2, 0), (0, 1)]:
        assert_mean(X[..., i, j], np.sum(weight * R[i, j]) / weight.sum())


@pytest.mark.parametrize(
    "target",
    [
        co.manifolds.Sphere(lambda x: x[0, 1] * x[2, 2], (3, 3)),
        co.manifolds.Stiefel(lambda X: X[0, 0] + X[1, 1] * X[2, 0], (4, 2)),
    ],
    ids=["spheres", "Stiefel"],
)
def test_geodesics_are_what_projected_steps_tend_to(target, x64):
    u = jnp.asarray(co.find_start(target, jax.random.key(0), 1)[0])
    exact, projected = Geodesic(), Rattle()
    start = exact.refresh(jax.random.key(1), exact.init(target, u))
    end = exact.step(target, start, jnp.asarray(0.3))
    at, p = target.geodesic.move(u, start.momentum, jnp.asarray(0.3))
    still = co.Manifold(target.constraint, lambda x: 0.0 * jnp.sum(x), point=target.point)
    slow = projected.init(still, u)._replace(momentum=start.momentum)
    slow = projected.step(still, slow, jnp.asarray(0.3), geodesic_steps=400)
    np.testing.assert_allclose(at, slow.position, atol=1e-5)
    np.testing.assert_allclose(p, slow.momentum, atol=1e-4)
    back = exact.step(target, end._replace(momentum=-end.momentum), jnp.asarray(0.3))
    np.testing.assert_allclose(back.position, u, atol=1e-13)
    assert abs(end.energy - start.energy) < 0.02


def test_square_matrices_are_rotations():
    target = co.manifolds.Stiefel(lambda X: X[0, 0] - X[1, 1], (2, 2))
    X = co.sample(target, draws=200, warmup=100, progress=False).posterior["point"].values
    np.testing.assert_allclose(np.linalg.det(X), 1.0)
