"""Factors of small matrices, and sums of logarithms, against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from coarea.jacobians.linalg import small


@pytest.mark.parametrize("n", [0, 1, 100, 1023, 3000])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_sum_of_logarithms_of_any_size(n, dtype, x64):
    x = np.exp(np.random.default_rng(n).normal(scale=20, size=n)).astype(dtype)
    x[::2] *= -1
    exact = np.sum(np.log(np.abs(x.astype(float))))
    found = small.sum_of_logs(jnp.asarray(x))
    assert found.dtype == dtype
    np.testing.assert_allclose(found, exact, rtol=20 * np.finfo(dtype).eps, atol=1e-6 * (n > 0))
    np.testing.assert_allclose(jax.grad(small.sum_of_logs)(jnp.asarray(x)), 1 / x, rtol=1e-6)


@pytest.mark.parametrize(("value", "log"), [(0.0, -np.inf), (np.inf, np.inf), (np.nan, np.nan)])
def test_a_sum_of_logarithms_without_end(value, log, x64):
    np.testing.assert_equal(float(small.sum_of_logs(jnp.asarray([2.0, value]))), log)


@pytest.mark.parametrize("n", [1, 3, 4, 6, 12, 70])
def test_the_inverse_of_a_cholesky_factor(n, x64):
    B = np.random.default_rng(n).normal(size=(2, n, n + 3))
    A = B @ np.swapaxes(B, 1, 2)
    exact = np.linalg.inv(np.linalg.cholesky(A))
    found = jax.jit(jax.vmap(small.inverse_of_cholesky))(jnp.asarray(A))
    np.testing.assert_allclose(found, exact, rtol=1e-9, atol=1e-11)
