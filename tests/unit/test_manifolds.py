"""The density on the manifold: its gradient, its Jacobian, what it says of the data."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import coarea as co
from coarea.jacobians.dense import Dense

pytestmark = pytest.mark.usefixtures("x64")


def simulate(u):
    y = jnp.sin(u["a"]) * u["b"] + jnp.exp(0.3 * u["c"])
    return {"total": jnp.sum(u["a"]), "y": y}


@pytest.fixture(scope="module")
def posterior():
    inputs = {"a": 3, "b": dist.StudentT(5.0, 0.0, 1.0).expand([3]), "c": (3,)}
    return co.condition(co.Generator(simulate, inputs), {"y": np.array([1.0, 0.5, 2.0])})


def log_density(posterior, u):
    """The definition, without any factor: log ρ − ½ log |J Jᵀ|."""
    J = jax.jacfwd(posterior.residual)(u)
    return posterior.generator.inputs.log_density(u) - 0.5 * jnp.linalg.slogdet(J @ J.T)[1]


U = np.linspace(-1.3, 1.4, 9)


def test_log_density_is_the_definition(posterior):
    u = jnp.asarray(U)
    assert jnp.abs(posterior.evaluate(u).log_density - log_density(posterior, u)) < 1e-12


def test_gradient_against_finite_differences(posterior):
    gradient = posterior.evaluate(jnp.asarray(U)).gradient
    for i in range(9):
        e = 1e-5 * np.eye(9)[i]
        difference = log_density(posterior, U + e) - log_density(posterior, U - e)
        np.testing.assert_allclose(gradient[i], difference / 2e-5, atol=1e-7)


@pytest.mark.parametrize("dense", [Dense(9, 9), Dense(3, 9)], ids=lambda dense: dense.mode)
def test_the_gradient_by_the_factor_equals_that_through_the_determinant(posterior, dense):
    u = jnp.asarray(U)
    linearisation, gradient = dense.linearise_and_differentiate(posterior.residual, u)
    exact = jax.grad(
        lambda u: posterior.generator.inputs.log_density(u) - log_density(posterior, u)
    )(u)
    np.testing.assert_allclose(gradient, exact, atol=1e-11)
    J = jax.vmap(linearisation.apply_transpose)(jnp.eye(3))
    np.testing.assert_allclose(J, jax.jacfwd(posterior.residual)(u), atol=1e-13)


def test_the_linearisation_solves_what_it_says(posterior):
    points = jnp.asarray(U), jnp.asarray(0.9 * U)
    new, old = (posterior.linearise(u) for u in points)
    J, older_J = (jax.jacfwd(posterior.residual)(u) for u in points)
    b, p = jnp.arange(3.0), jnp.asarray(U[::-1].copy())
    np.testing.assert_allclose(new.pseudo_inverse(b), J.T @ np.linalg.solve(J @ J.T, b), atol=1e-11)
    np.testing.assert_allclose(J @ older_J.T @ new.solve_newton(old, b), b, atol=1e-11)
    np.testing.assert_allclose(J @ new.project(p), 0.0, atol=1e-12)
    np.testing.assert_allclose(new.apply_transpose(b), J.T @ b, atol=1e-12)


@pytest.mark.parametrize("N", [32, 33, 131, 525])
def test_a_dense_linearisation_is_right_whatever_its_size(N, x64):
    A = np.random.default_rng(N).normal(size=(N, N + 3)) + 10 * np.eye(N, N + 3)
    u = jnp.linspace(-1.0, 1.0, N + 3)

    def constraint(u):
        return A @ jnp.sinh(u)

    at, gradient = Dense(N, N + 3).linearise_and_differentiate(constraint, u)
    J = A * np.cosh(u)
    np.testing.assert_allclose(at.C_inverse, np.linalg.inv(np.linalg.cholesky(J @ J.T)), atol=1e-9)
    np.testing.assert_allclose(at.Q @ at.Q.T, np.eye(N), atol=1e-9)
    # Of ½ log|JJᵀ|, where column j of J is A's times cosh uⱼ.
    share = np.sum(np.linalg.solve(J @ J.T, J) * J, axis=0)
    np.testing.assert_allclose(gradient, share * np.tanh(u), atol=1e-9)


def test_the_mode_follows_the_shape():
    assert Dense(100, 104).mode == "forward"
    assert Dense(3, 500).mode == "reverse"


def test_elements_are_named_where_others_are_missing():
    model = co.Generator(lambda u: {"y": jnp.outer(u["a"], u["b"])}, {"a": 2, "b": 3})
    data = np.ma.masked_array(np.ones((2, 3)), mask=[[0, 1, 1], [0, 1, 0]])
    posterior = co.condition(model, {"y": data})
    assert [posterior.reporter.describe(i) for i in range(3)] == ["y[0, 0]", "y[1, 0]", "y[1, 2]"]
