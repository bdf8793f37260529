"""The markov structure: a block of rows depends on its own and the previous block's local inputs.

B is block lower bidiagonal and BBᵀ is block tridiagonal. The Cholesky factor C of BBᵀ therefore has
blocks C_k on the diagonal and L_k below it. A step costs T (d³ + d L²), where d is the number of
rows of a block.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from typing_extensions import override

from coarea.jacobians.indices import Indices
from coarea.jacobians.linalg import prefix_scans, small
from coarea.jacobians.split import AbstractLocal, AbstractSplit
from coarea.xla import on_cpu


class Bidiagonal(eqx.Module):
    """B as blocks: D acts on a block's own local inputs, E on those of the previous block.

    E acts only on the last local inputs of the previous block. A row with `fill`, for a missing
    value, is padding: it has zeros in D and E, and a one on the diagonal of BBᵀ.
    """

    D: Float[Array, "K r w"]
    E: Float[Array, "K r d"]
    fill: Float[Array, "K r"]

    @property
    def X(self) -> Float[Array, "K r d"]:
        """The columns of D for the inputs that the next block depends on too."""
        return self.D[..., -self.E.shape[-1] :]

    def product(self, previous: "Bidiagonal"):
        """The blocks of B Bₒᵀ: on the diagonal, below it (none for the first block) and above."""
        diagonal = _outer(self.D, previous.D) + _outer(self.E, previous.E) + _diag(self.fill)
        below = _outer(self.E[1:], previous.X[:-1])
        above = _outer(self.X[:-1], previous.E[1:])
        return diagonal, below, above


class BidiagonalFactor(AbstractLocal):
    """B with the Cholesky factor of BBᵀ."""

    B: Bidiagonal
    C: Float[Array, "K r r"]
    L: Float[Array, "K r r"]  # the first is zero

    @property
    @override
    def is_square(self):
        return False

    @override
    def apply_transpose(self, lam):
        rows = self._rows(lam)
        own = _times(small.transpose(self.B.D), rows)
        after = _times(small.transpose(self.B.E[1:]), rows[1:])
        return own.at[:-1, -after.shape[1] :].add(after).ravel()

    @override
    def times(self, b):
        b = self._blocks(b)
        before = jnp.concatenate([jnp.zeros_like(b[:1]), b[:-1]])
        return _rows_of(self.C @ b + self.L @ before)

    @override
    def solve(self, b):
        def sequential(b):
            def forward(before, block):
                C, L, b = block
                x = small.solve_lower(C, b - L @ before)
                return x, x

            return jax.lax.scan(forward, jnp.zeros_like(b[0]), (self.C, self.L, b))[1]

        def parallel(b):
            inverse = self._inverse_of_C()
            return prefix_scans.affine(-inverse @ self.L, inverse @ b)

        b = self._blocks(b)
        return _rows_of(on_cpu(sequential, b, otherwise=parallel))

    @override
    def solve_transpose(self, b):
        def sequential(b):
            def backward(after, block):
                C, L, b = block
                x = small.solve_lower_transpose(C, b - after)
                return L.T @ x, x

            zero = jnp.zeros_like(b[0])
            return jax.lax.scan(backward, zero, (self.C, self.L, b), reverse=True)[1]

        def parallel(b):
            inverse = small.transpose(self._inverse_of_C())
            after = _before_none(self.L[1:])
            return prefix_scans.affine(-inverse @ small.transpose(after), inverse @ b, True)

        b = self._blocks(b)
        return _rows_of(on_cpu(sequential, b, otherwise=parallel))

    def _inverse_of_C(self):
        return small.inverse_of_lower(self.C)

    @override
    def rotate(self, n):
        own = n.reshape(self.B.D.shape[0], self.B.D.shape[2])
        d = self.B.E.shape[2]
        before = jnp.concatenate([jnp.zeros_like(own[:1, -d:]), own[:-1, -d:]])
        product = (_times(self.B.D, own) + _times(self.B.E, before)).ravel()
        return self.solve(product[None])[0]

    @override
    def rotate_transpose(self, r):
        return self.apply_transpose(self.solve_transpose(r[None])[0])

    @override
    def solve_product(self, previous, b):
        """Block elimination from the first block to the last, then back substitution."""
        r = self.C.shape[1]

        def sequential(diagonal, below, above, b):
            def eliminate(before, block):
                diagonal, below, above, b = block
                solved = small.solve(
                    diagonal - below @ before[:, :r],
                    jnp.concatenate([above, b - below @ before[:, r:]], axis=1),
                )
                return solved, solved

            def back(after, solved):
                x = solved[:, r:] - solved[:, :r] @ after
                return x, x

            start = jnp.zeros((r, r + b.shape[-1]), b.dtype)
            blocks = diagonal, _after_none(below), _before_none(above), b
            _, solved = jax.lax.scan(eliminate, start, blocks)
            return jax.lax.scan(back, jnp.zeros_like(b[0]), solved, reverse=True)[1]

        def parallel(diagonal, below, above, b):
            # Scale so that the diagonal blocks would be the identity for B = Bₒ and uncoupled
            # blocks. Otherwise the recurrence loses its digits among much larger numbers.
            unit = self._inverse_of_C()
            along = small.transpose(unit)
            below = _after_none(unit[1:] @ below @ along[:-1])
            above = unit[:-1] @ above @ along[1:]
            pivots = prefix_scans.schur_complements(
                unit @ diagonal @ along, below, _after_none(above)
            )
            right = jnp.concatenate([below, _before_none(above), unit @ b], axis=-1)
            solved = small.solve(pivots, right)
            below, above, b = solved[..., :r], solved[..., r : 2 * r], solved[..., 2 * r :]
            return along @ prefix_scans.affine(-above, prefix_scans.affine(-below, b), reverse=True)

        blocks = *self.B.product(previous.B), self._blocks(b)
        return _rows_of(on_cpu(sequential, *blocks, otherwise=parallel))

    @override
    def pivots(self):
        return jnp.diagonal(self.C, axis1=1, axis2=2).ravel()

    def inverse(self):
        """The blocks of (BBᵀ)⁻¹ on the diagonal, and above it (none for the last block)."""
        inverse = self._inverse_of_C()
        own = small.transpose(inverse) @ inverse
        # G_{k+1,k} S_k⁻¹, where S_k is the Schur complement of block k after elimination of the
        # previous blocks.
        factor = self.L[1:] @ inverse[:-1]
        factor = _before_none(factor)

        def sequential(own, factor):
            def backward(after, block):
                own, factor = block
                inverse = own + factor.T @ after @ factor
                return inverse, inverse

            zero = jnp.zeros_like(own[0])
            return jax.lax.scan(backward, zero, (own, factor), reverse=True)[1]

        def parallel(own, factor):
            return prefix_scans.congruent(factor, own, reverse=True)

        diagonal = on_cpu(sequential, own, factor, otherwise=parallel)
        after = _before_none(diagonal[1:])
        return diagonal, -small.transpose(factor) @ after

    def _rows(self, lam):
        return lam.reshape(self.C.shape[:2])

    def _blocks(self, b):
        return b.T.reshape(*self.C.shape[:2], b.shape[0])


class BlockBidiagonal(AbstractSplit[BidiagonalFactor]):
    """The markov structure; the constraint computes its own blocks.

    `constraint.blocks(u)` is (Vᵀ, B), and `constraint.inner_product(u, *X)` is ⟨X, J(u)⟩ for an X
    in the layout of (V, B).
    """

    shared_inputs: Indices = eqx.field(static=True)
    local_inputs: Indices = eqx.field(static=True)
    rows_per_block: int = eqx.field(static=True)

    @property
    @override
    def num_derivatives(self):
        return self.rows_per_block

    @property
    @override
    def has_small_factors(self):
        return super().has_small_factors and self.rows_per_block <= small.LARGEST

    @property
    @override
    def hints(self):
        """Chains are not vectorised on a CPU: loops would run as long as the slowest chain needs.

        More than one geodesic step pays only if the gradient costs more than the rest of a step and
        the manifold curves more than the density. This was measured on simulators.
        """
        return super().hints._replace(latency_bound=True, vmap_width=1, geodesic_steps=2)

    @override
    def pieces(self, constraint, u):
        return constraint.blocks(u)

    @override
    def linearise_and_differentiate(self, constraint, u):
        """The linearisation, and the gradient of ½ log |J Jᵀ| as that of ⟨X, J(u)⟩ for a fixed X.

        ⟨X, J(u)⟩ is a sum of directional derivatives, one for each row, so that its gradient is
        reverse over forward mode. Pulling X back through `blocks` would be reverse over reverse
        mode, which takes twice the time.
        """
        linearisation = self.linearise(constraint, u)
        fixed = self._cotangent(linearisation)
        return linearisation, jax.grad(lambda u: constraint.inner_product(u, *fixed))(u)

    @override
    def local(self, B):
        diagonal, below, _ = B.product(B)
        below = _after_none(below)

        def sequential(diagonal, below):
            def eliminate(before, block):
                diagonal, below = block
                # L_k = G_{k,k−1} C_{k−1}⁻ᵀ
                L = small.solve_lower(before, below.T).T
                C = small.cholesky(diagonal - L @ L.T)
                return C, (C, L)

            first = jnp.eye(diagonal.shape[1], dtype=diagonal.dtype)
            return jax.lax.scan(eliminate, first, (diagonal, below))[1]

        def parallel(diagonal, below):
            above = small.transpose(below)
            C = small.cholesky(prefix_scans.schur_complements(diagonal, below, above))
            before = jnp.concatenate([C[:1], C[:-1]])
            return C, small.transpose(small.solve_lower(before, above))

        C, L = on_cpu(sequential, diagonal, below, otherwise=parallel)
        return BidiagonalFactor(B, C, L)

    @override
    def local_cotangent(self, local, W, Y, X):
        """(JJᵀ)⁻¹B = ((BBᵀ)⁻¹ − Xᵀ Y) B, computed only where B has nonzero blocks."""
        B = local.B
        K, r, _ = B.D.shape
        X, Y = X.T.reshape(K, r, -1), Y.T.reshape(K, r, -1)
        diagonal, above = local.inverse()
        diagonal = diagonal - _outer(X, Y)
        above = above[:-1] - _outer(X[:-1], Y[1:])
        D = diagonal @ B.D
        D = D.at[:-1, :, -B.E.shape[2] :].add(above @ B.E[1:])
        E = diagonal @ B.E
        E = E.at[1:].add(small.transpose(above) @ B.X[:-1])
        return Bidiagonal(D, E, jnp.zeros_like(B.fill))


def _after_none(blocks: Float[Array, "K r s"]) -> Float[Array, "K+1 r s"]:
    """Prepend a block of zeros."""
    return jnp.concatenate([jnp.zeros_like(blocks[:1]), blocks])


def _before_none(blocks: Float[Array, "K r s"]) -> Float[Array, "K+1 r s"]:
    """Append a block of zeros."""
    return jnp.concatenate([blocks, jnp.zeros_like(blocks[:1])])


def _rows_of(x: Float[Array, "K r k"]) -> Float[Array, "k N"]:
    return x.reshape(-1, x.shape[-1]).T


def _outer(A: Float[Array, "K r w"], B: Float[Array, "K s w"]) -> Float[Array, "K r s"]:
    return jnp.einsum("krw,ksw->krs", A, B)


def _times(A: Float[Array, "K r w"], x: Float[Array, "K w"]) -> Float[Array, "K r"]:
    return jnp.einsum("krw,kw->kr", A, x)


def _diag(x: Float[Array, "K r"]) -> Float[Array, "K r r"]:
    return x[..., None] * jnp.eye(x.shape[-1], dtype=x.dtype)[None]
