"""Every shape does the linear algebra of the dense one, and the detector finds the right one."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import coarea as co
from coarea.errors import ModelError, StructureWarning
from coarea.jacobians import choose
from coarea.jacobians.blocks import Blocks
from coarea.jacobians.dense import Dense
from coarea.jacobians.elementwise import Elementwise
from coarea.jacobians.indices import PAD, Indices
from coarea.jacobians.triangular import Triangular


def assert_like_dense(shape, constraint, num_inputs, seed=0, tolerance=1e-9):
    """All operations of a linearisation, and the gradient, at a random point."""
    rng = np.random.default_rng(seed)
    u = jnp.asarray(rng.normal(size=num_inputs))
    old = u + 0.1 * jnp.asarray(rng.normal(size=num_inputs))
    N = constraint(u).size
    p, lam = jnp.asarray(rng.normal(size=num_inputs)), jnp.asarray(rng.normal(size=N))

    def everything(shape):
        at, gradient = shape.linearise_and_differentiate(constraint, u)
        previous = shape.linearise(constraint, old)
        return {
            "apply_transpose": at.apply_transpose(lam),
            "pseudo_inverse": at.pseudo_inverse(lam),
            "project": at.project(p),
            "solve_newton": at.solve_newton(previous, lam),
            "half_log_det": at.half_log_det(),
            "gradient": gradient,
        }

    ours, dense = (
        jax.jit(everything, static_argnums=0)(one) for one in (shape, Dense(N, num_inputs))
    )
    for name, exact in dense.items():
        size = float(jnp.max(jnp.abs(exact)))
        np.testing.assert_allclose(ours[name], exact, rtol=0, atol=tolerance * size, err_msg=name)


SIZES = [(1, 7), (3, 7), (5, 5), (9, 4), (12, 20)]


def mixed(rng, L, N, extra=1):
    """Shared and local inputs in random places, and a response of N rows to the shared ones."""
    order = rng.permutation(L + N + extra)
    K = jnp.asarray(rng.normal(size=(N, L)))
    return order[:L], order[L : L + N], lambda v: jnp.sin(K @ v)


@pytest.mark.parametrize(("L", "N"), SIZES)
def test_elementwise_is_like_dense(L, N, x64):
    shared, local, response = mixed(np.random.default_rng(L), L, N)

    def constraint(u):
        v = u[shared]
        return response(v) + (1.5 + jnp.cos(v[0])) * jnp.exp(0.3 * u[local])

    assert_like_dense(Elementwise(Indices(shared), Indices(local)), constraint, L + N + 1)


@pytest.mark.parametrize(("L", "N"), SIZES)
def test_triangular_is_like_dense(L, N, x64):
    rng = np.random.default_rng(L)
    shared, local, response = mixed(rng, L, N)
    T, rows = jnp.asarray(np.tril(rng.normal(size=(N, N)), -1)), rng.permutation(N)

    def constraint(u):
        v, n = u[shared], u[local]
        c = response(v) + (1.5 + jnp.cos(v[0])) * jnp.exp(0.3 * n) + jnp.tanh(v[0] * (T @ n))
        return jnp.zeros(N).at[rows].set(c)

    shape = Triangular(Indices(shared), Indices(local), Indices(rows))
    assert_like_dense(shape, constraint, L + N + 1)


@pytest.mark.parametrize("L", [2, 6, 9])
@pytest.mark.parametrize(("r", "w"), [(1, 1), (2, 2), (2, 3), (2, 7), (1, 4), (9, 10)])
def test_blocks_are_like_dense(r, w, L, x64):
    """Square and wide, below, at and above as many shared inputs as constraints."""
    rng = np.random.default_rng(L)
    K = 3
    order = rng.permutation(L + K * w + 1)
    shared, local = order[:L], order[L : L + K * w].reshape(K, w)
    rows = rng.permutation(K * r).reshape(K, r)
    A, G = jnp.asarray(rng.normal(size=(K * r, L))), jnp.asarray(rng.normal(size=(K, r, w)))

    def constraint(u):
        v = u[shared]
        own = jnp.einsum("krw,kw->kr", G, jnp.sinh(0.3 * u[local])) * (1.5 + jnp.cos(v[0]))
        return jnp.zeros(K * r).at[rows.ravel()].set(jnp.sin(A @ v) + own.ravel())

    shape = Blocks(Indices(shared), Indices(local), Indices(rows), K * r)
    assert_like_dense(shape, constraint, L + K * w + 1)


def test_blocks_of_unequal_size_are_padded(x64):
    rows = np.array([[0, 1], [2, PAD], [3, 4]])
    local = np.array([[2, 3, 4], [5, PAD, PAD], [6, 7, PAD]])
    A = jnp.asarray(np.random.default_rng(0).normal(size=(5, 2)))

    def constraint(u):
        own = [
            jnp.sinh(u[2] + u[3] * u[4]) + u[4],
            jnp.exp(u[3]) - u[2],
            2 * u[5] + u[5] ** 3,
            2 * u[6] + u[7],
            3 * u[7] - jnp.sin(u[6]),
        ]
        return jnp.sin(A @ u[:2]) + jnp.stack(own)

    shape = Blocks(Indices(np.arange(2)), Indices(local), Indices(rows), 5)
    assert_like_dense(shape, constraint, 8)


def square_and_wide(u):
    """A square block of three, and blocks of one that respond to two inputs."""
    square = jnp.array([[1.0, 0.3, 0.2], [0.1, 1.0, 0.4], [0.2, 0.5, 1.0]]) @ jnp.sinh(u[1:4])
    wide = jnp.stack([u[4] + jnp.sin(u[5]), u[6] + 0.7 * u[7] ** 2])
    return jnp.concatenate([square, wide]) + u[0]


SQUARE_AND_WIDE = Blocks(
    Indices(np.arange(1)),
    Indices(np.array([[1, 2, 3], [4, 5, PAD], [6, 7, PAD]])),
    Indices(np.array([[0, 1, 2], [3, PAD, PAD], [4, PAD, PAD]])),
    5,
)


def test_wide_blocks_padded_to_squares_are_still_wide(x64):
    assert_like_dense(SQUARE_AND_WIDE, square_and_wide, 8)


def noisy(u):
    return jnp.sin(u[:2].sum() * jnp.arange(1.0, 4)) + jnp.exp(0.3 * u[2:5]) * jnp.cos(u[0])


# The last of these leaves an input that nothing responds to.
@pytest.mark.parametrize(
    ("shape", "constraint", "num_inputs"),
    [
        (SQUARE_AND_WIDE, square_and_wide, 8),
        (Dense(5, 8), square_and_wide, 8),
        (Elementwise(Indices(np.arange(2)), Indices(np.arange(2, 5))), noisy, 5),
        (Elementwise(Indices(np.arange(2)), Indices(np.arange(2, 5))), noisy, 6),
    ],
)
def test_a_draw_from_the_tangent_space_has_its_projection_as_covariance(
    shape, constraint, num_inputs, x64
):
    u = jnp.asarray(np.random.default_rng(0).normal(size=num_inputs))
    at = shape.linearise(constraint, u)
    num = 20_000
    keys = jax.random.split(jax.random.key(0), num)
    drawn = np.asarray(jax.jit(jax.vmap(lambda key: at.draw(key, u)))(keys))
    np.testing.assert_allclose(jax.jacobian(constraint)(u) @ drawn.T, 0, atol=1e-12)
    covariance = drawn.T @ drawn / num
    projection = jax.vmap(at.project)(jnp.eye(num_inputs))
    # The largest standard error is that of a unit variance.
    assert np.max(np.abs(covariance - projection)) < 4 * np.sqrt(2 / num)


@pytest.mark.parametrize("sigma", [1.0, 1e-2, 1e-4, 1e-6, 1e-8])
def test_the_tangent_projection_keeps_its_digits_as_the_noise_shrinks(sigma, x64):
    """Through the Gram matrix an error of 7e-3 is left at 1e-6."""
    X = jnp.asarray(np.random.default_rng(0).normal(size=(40, 3)))

    def constraint(u):
        return X @ u[:3] + sigma * u[3:]

    elementwise = Elementwise(Indices(np.arange(3)), Indices(3 + np.arange(40)))
    blocks = Blocks(
        Indices(np.arange(3)),
        Indices(3 + np.arange(40).reshape(20, 2)),
        Indices(np.arange(40).reshape(20, 2)),
        40,
    )
    u, p = jnp.asarray(np.random.default_rng(1).normal(size=(2, 43)))
    # In terms of an orthonormal basis of the tangents, q ↦ (q, −Xq/σ), with nothing squared.
    basis, _ = np.linalg.qr(np.concatenate([sigma * np.eye(3), -X]))
    exact = basis @ (basis.T @ p)
    for shape in (elementwise, blocks):
        tangent = shape.linearise(constraint, u).project(p)
        np.testing.assert_allclose(tangent, exact, atol=1e-12)


def found(function, inputs, shape, **options):
    """The kind of shape that is found, and the posterior."""
    model = co.Generator(lambda u: {"y": function(u)}, inputs)
    posterior = co.condition(model, {"y": np.full(shape, 0.3)}, **options)
    return posterior.structure.split(":")[0], posterior


def walk(u):
    def step(x, n):
        x = 0.9 * x + jnp.exp(u["b"]) * n
        return x, x

    return jax.lax.scan(step, jnp.zeros(()), u["n"])[1]


X = np.random.default_rng(0).normal(size=(9, 3))
GENERATORS = {
    "regression": ("elementwise", lambda u: X @ u["b"] + u["n"], {"b": 3, "n": 9}, 9),
    "scale": ("elementwise", lambda u: jnp.exp(u["b"]) * u["n"] + 1, {"b": (), "n": 9}, 9),
    "noise first": ("elementwise", lambda u: u["n"] + u["b"], {"n": 9, "b": ()}, 9),
    "matrix noise": ("elementwise", lambda u: (u["n"] + u["b"]).T, {"n": (3, 4), "b": ()}, (4, 3)),
    "two noises": ("blocks", lambda u: u["n"][0] * u["n"][1] + u["b"], {"b": (), "n": (2, 9)}, 9),
    "plate": (
        "blocks", lambda u: u["b"] + u["g"][:, None] + u["n"],
        {"b": (), "g": 4, "n": (4, 3)}, (4, 3),
    ),
    "mixing step": (
        "blocks", lambda u: u["b"] + u["n"] @ jnp.array([[1.0, 0.5], [0.3, 2.0]]),
        {"b": (), "n": (6, 2)}, (6, 2),
    ),
    "cumulative sum": ("triangular", lambda u: jnp.cumsum(u["b"] + u["n"]), {"b": (), "n": 9}, 9),
    "scan": ("triangular", walk, {"b": (), "n": 9}, 9),
    "scan backwards": ("triangular", lambda u: walk(u)[::-1], {"b": (), "n": 9}, 9),
    "everything": ("dense", lambda u: jnp.sin(X.T @ u["n"]), {"n": 9}, 3),
    "as many parameters": ("dense", lambda u: X.T @ u["b"] + u["n"], {"b": 9, "n": 3}, 3),
    "no noise": ("dense", lambda u: X @ u["b"][:3] + X @ u["b"][8:], {"b": 11}, 9),
    "unreadable": ("dense", lambda u: jnp.fft.fft(u["b"] + u["n"]).real[:5], {"b": (), "n": 9}, 5),
    "vanishing derivative": ("dense", lambda u: u["b"] + jax.nn.relu(u["n"]), {"b": (), "n": 9}, 9),
    "cubed noise": ("dense", lambda u: u["b"] + u["n"] ** 9, {"b": (), "n": 9}, 9),
    "diagonal at the origin only": (
        "dense", lambda u: u["b"] + u["n"] + (X @ X.T @ u["n"]) ** 2, {"b": (), "n": 9}, 9
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", GENERATORS)
def test_the_right_structure_is_found(name):
    expected, function, inputs, shape = GENERATORS[name]
    kind, posterior = found(function, inputs, shape)
    assert kind == expected, posterior.structure


def test_the_structure_is_described_in_words():
    _, posterior = found(*GENERATORS["regression"][1:])
    assert "9 constraints" in posterior.structure
    assert "3 shared inputs" in posterior.structure
    _, posterior = found(*GENERATORS["unreadable"][1:])
    assert "cannot be read: No handler for primitive 'fft'" in posterior.structure
    _, posterior = found(*GENERATORS["vanishing derivative"][1:])
    assert "derivative with respect to some local input vanishes" in posterior.structure


def test_a_structure_can_be_required():
    assert found(*GENERATORS["regression"][1:], structure="dense")[0] == "dense"
    assert found(*GENERATORS["regression"][1:], structure="triangular")[0] == "triangular"
    with pytest.raises(ModelError, match="structure='elementwise' does not fit"):
        found(*GENERATORS["scan"][1:], structure="elementwise")
    with pytest.raises(ModelError, match="structure='diagonal': choose 'auto', 'dense'"):
        found(*GENERATORS["scan"][1:], structure="diagonal")
    with pytest.raises(ModelError, match=r"structure='markov' is for a coarea.Markov model"):
        found(*GENERATORS["scan"][1:], structure="markov")


@st.composite
def generators(draw):
    """Outputs composed at random from what couples rows and what does not."""
    rows = draw(st.integers(3, 6))
    parts = draw(
        st.lists(
            st.sampled_from(["own", "pair", "running", "reverse", "shared", "product", "all"]),
            min_size=1,
            max_size=4,
        )
    )
    seed = draw(st.integers(0, 99))
    return rows, tuple(parts), seed


def composed(rows, parts, seed):
    rng = np.random.default_rng(seed)
    A = rng.normal(size=(rows, rows))
    weights = rng.uniform(0.5, 2.0, size=(len(parts), rows))

    def function(u):
        y = u["n"] * (1.0 + 0.1 * jnp.tanh(u["v"][0]))
        for weight, part, extra in zip(weights, parts, u["e"], strict=True):
            term = {
                "own": jnp.sinh(extra),
                "pair": extra + jnp.roll(extra, 1) * (jnp.arange(rows) % 2 == 1),
                "running": jnp.cumsum(jnp.tanh(extra)),
                "reverse": jnp.cumsum(extra[::-1])[::-1],
                "shared": jnp.sin(u["v"][0] + u["v"][1] * jnp.arange(rows)),
                "product": extra * u["v"][1],
                "all": A @ extra,
            }[part]
            y = y + weight * term
        return y

    return function, {"v": 2, "e": (len(parts), rows), "n": rows}


@settings(max_examples=10, deadline=None)
@given(generators())
def test_what_is_found_is_never_wrong(sizes):
    function, inputs = composed(*sizes)
    _, posterior = found(function, inputs, sizes[0])
    with jax.enable_x64(True):
        assert_like_dense(
            posterior.jacobian, posterior.residual, posterior.num_inputs, sizes[2], 1e-7
        )


def test_a_missing_pattern_reader_is_warned_of_once(monkeypatch):
    monkeypatch.setitem(sys.modules, "asdex", None)
    choose.reader_is_missing.cache_clear()
    model = co.Generator(lambda u: {"z": u["z"], "y": u["z"] + u["n"]}, {"z": (), "n": 9})
    try:
        with pytest.warns(StructureWarning, match="treated as dense"):
            posterior = co.condition(model, {"y": np.ones(9)})
        assert co.condition(model, {"y": np.ones(9)}).structure == posterior.structure
    finally:
        choose.reader_is_missing.cache_clear()
    assert posterior.structure.startswith("dense")
    assert "cannot be read" in posterior.structure
