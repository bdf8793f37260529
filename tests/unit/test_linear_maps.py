"""Jacobians whose first products are not with the identity."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from coarea.jacobians.dense import Dense
from coarea.xla import equations

rng = np.random.default_rng(0)
A, B, C = rng.normal(size=(5, 7)), rng.normal(size=(3, 5)), rng.normal(size=(4, 3))
D = rng.normal(size=(3, 2, 4))
U = rng.normal(size=7)
MODES = {"forward": Dense(7, 7), "reverse": Dense(3, 7)}

# Those that begin with a product, and end with one.
PRODUCTS = {
    "one": lambda u: A @ u,
    "two layers": lambda u: B @ jnp.tanh(A @ u),
    "changed before": lambda u: B @ jnp.tanh(A @ (2 * jnp.exp(u) + u / (1 + u**2))),
    "inputs joined": lambda u: A @ jnp.concatenate([u[:3], 2 * u[3:]]),
    "the other way round": lambda u: u[::-1] @ A.T,
    "two axes at once": lambda u: jnp.einsum("ba,abc->c", u[:6].reshape(2, 3), D),
    "where it is positive": lambda u: A @ jnp.where(u > 0, u, 0.1 * u),
}
OTHERS = {
    "some inputs, used twice": lambda u: (C @ u[2:5]) * u[0],
    "one input, many times": lambda u: A @ jnp.tile(u[:1], 7),
    "rows of a matrix": lambda u: (u[:6].reshape(2, 3) @ C.T).ravel(),
    "nothing": lambda u: jnp.ones(3),
    "each by itself": lambda u: jnp.sin(u),
    "two of a kind": lambda u: jnp.stack([u @ u, u @ A.T @ A @ u]),
    "a scan": lambda u: jax.lax.scan(lambda c, x: (c * x + jnp.sin(x), c), 1.0, u)[1],
    "a loop": lambda u: jax.lax.fori_loop(0, 3, lambda i, x: jnp.sin(x) * u, u),
    "a branch": lambda u: jax.lax.cond(u[0] > 0, lambda u: A @ u, lambda u: -A @ u, u),
    "a solve": lambda u: jnp.linalg.solve(A[:, :5] + jnp.diag(u[:5]), u[:5]),
    "a sort": jnp.sort,
    "places": lambda u: u[jnp.array([0, 0, 3])],
    "a checkpoint": jax.checkpoint(lambda u: B @ jnp.tanh(A @ u)),
    "single precision in between": lambda u: (A.astype("f") @ u.astype("f")).astype(float),
}


@pytest.mark.parametrize("mode", ["forward", "reverse"])
@pytest.mark.parametrize("name", [*PRODUCTS, *OTHERS])
def test_jacobians_and_their_gradients_are_jaxs(name, mode, x64):
    function = {**PRODUCTS, **OTHERS}[name]
    ours, jaxs = MODES[mode].jacobian(function), jax.jacfwd(function)
    np.testing.assert_allclose(ours(jnp.asarray(U)), jaxs(U), atol=1e-12)

    def gradients(jacobian):
        several = jnp.stack([U, 0.5 * U])
        return jax.jit(jax.vmap(jax.grad(lambda u: jnp.sum(jnp.sin(jacobian(u))))))(several)

    np.testing.assert_allclose(gradients(ours), gradients(jaxs), atol=1e-11)


@pytest.mark.parametrize("mode", ["forward", "reverse"])
@pytest.mark.parametrize("name", PRODUCTS)
def test_no_product_is_with_the_identity(name, mode, x64):
    def products(function):
        jaxpr = jax.make_jaxpr(function)(U).jaxpr
        return [x for x in equations(jaxpr) if x.primitive.name == "dot_general"]

    function = PRODUCTS[name]
    # One for each layer's value, and one for each layer but the first (the last).
    values = len(products(function))
    assert len(products(MODES[mode].jacobian(function))) == 2 * values - 1
