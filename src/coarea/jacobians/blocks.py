"""The blocks structure: groups of constraints with separate local inputs; Σ r³ + N L² a step.

All blocks have r rows and w ≥ r local inputs; smaller blocks are padded. A padded row is satisfied
for all inputs, and a padded input has no effect.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from typing_extensions import override

from coarea.jacobians.indices import Indices
from coarea.jacobians.linalg import small
from coarea.jacobians.split import AbstractLocal, AbstractUncoupled, pushed_forward, unit_vectors


class BlockDiagonal(AbstractLocal):
    """Blocks B_k = C_k Q_k, C_k lower triangular."""

    B: Float[Array, "K r w"]
    C: Float[Array, "K r r"]
    Q: Float[Array, "K r w"]
    rows: Indices = eqx.field(static=True)
    num_constraints: int = eqx.field(static=True)
    num_inputs: int = eqx.field(static=True)

    @property
    @override
    def is_square(self):
        """Whether all blocks are square; padding may hide that some are wide."""
        return self.num_inputs == self.num_constraints

    @override
    def apply_transpose(self, lam):
        return jnp.einsum("krw,kr->kw", self.B, self.rows.take(lam)).ravel()

    @override
    def times(self, b):
        return self._unsorted(self.C @ b.T.reshape(*self.C.shape[:2], -1)).T

    @override
    def solve(self, b):
        return _stacked(small.solve_lower(self.C, self.rows.take(b.T))).T

    @override
    def solve_transpose(self, b):
        blocks = b.T.reshape(*self.C.shape[:2], -1)
        return self._unsorted(small.solve_lower_transpose(self.C, blocks)).T

    @override
    def rotate(self, n):
        return jnp.einsum("krw,kw->kr", self.Q, self._blocks(n)).ravel()

    @override
    def rotate_transpose(self, r):
        return jnp.einsum("krw,kr->kw", self.Q, r.reshape(self.C.shape[:2])).ravel()

    @override
    def solve_product(self, previous, b):
        product = jnp.einsum("krw,ksw->krs", self.B, previous.B) + self.fill
        return self._unsorted(small.solve(product, self.rows.take(b.T))).T

    @override
    def pivots(self):
        return jnp.diagonal(self.C, axis1=1, axis2=2).ravel()

    @property
    def fill(self):
        """Ones on the diagonal for padded rows, zeros elsewhere."""
        is_pad = jnp.asarray(self.rows.is_pad.reshape(self.rows.shape), self.B.dtype)
        return is_pad[..., None] * jnp.eye(self.B.shape[1], dtype=self.B.dtype)[None]

    def _blocks(self, n):
        return n.reshape(self.B.shape[0], self.B.shape[2])

    def _unsorted(self, b):
        rest = b.shape[2:]
        return self.rows.put(jnp.zeros((self.num_constraints, *rest), b.dtype), _stacked(b))


class Blocks(AbstractUncoupled[BlockDiagonal]):
    """The blocks structure; row k of `rows` and of `local_inputs` belongs to block k."""

    shared_inputs: Indices = eqx.field(static=True)
    local_inputs: Indices = eqx.field(static=True)
    rows: Indices = eqx.field(static=True)
    num_constraints: int = eqx.field(static=True)

    @property
    @override
    def num_derivatives(self):
        return len(self.shared_inputs) + min(self.local_inputs.shape[1], 2 * self.rows.shape[1])

    @property
    @override
    def has_small_factors(self):
        return super().has_small_factors and self.rows.shape[1] <= small.LARGEST

    @override
    def pieces(self, constraint, u):
        """Tangents for shared inputs; tangents or cotangents for blocks, whichever cost less."""
        r, w = self.rows.shape[1], self.local_inputs.shape[1]
        L = len(self.shared_inputs)
        if w <= 2 * r:
            local = np.stack([Indices(self.columns[:, j]).mark(u.size) for j in range(w)])
            seeds = jnp.concatenate([unit_vectors(self.shared_inputs, u), local.astype(u.dtype)])
            derivatives = pushed_forward(constraint, u, seeds)
            return derivatives[:L], self.rows.take(derivatives[L:].T)
        V = pushed_forward(constraint, u, unit_vectors(self.shared_inputs, u))
        _, pull_back = jax.vjp(constraint, u)
        seeds = [Indices(self.lines[:, i]).mark(self.num_constraints) for i in range(r)]
        gradients = jax.vmap(lambda seed: pull_back(seed)[0])(np.stack(seeds).astype(u.dtype))
        B = jax.vmap(self.local_inputs.take)(gradients)
        return V, jnp.swapaxes(B, 0, 1)

    @override
    def local_pieces(self, constraint, n):
        value, push = jax.linearize(constraint, n)
        # Seed j moves local input j of all blocks at once.
        seeds = jnp.tile(jnp.eye(self.local_inputs.shape[1], dtype=n.dtype), len(self.local_inputs))
        return value, self.rows.take(jax.vmap(push)(seeds).T)

    @property
    def columns(self):
        """The local inputs, a row for each block."""
        return self.local_inputs.flat.reshape(self.local_inputs.shape)

    @property
    def lines(self):
        """The constraints, a row for each block."""
        return self.rows.flat.reshape(self.rows.shape)

    @override
    def local(self, B):
        facts = self.rows, self.num_constraints, self.local_inputs.count
        made = BlockDiagonal(B, B[..., : B.shape[1]], B, *facts)
        if not self.rows.is_pad.any():
            C, Q = small.lq(B)
        else:
            # Each padded row gets an extra unit vector, which is dropped from Q afterwards.
            C, Q = small.lq(jnp.concatenate([B, made.fill], axis=-1))
            Q = Q[..., : B.shape[-1]]
        return BlockDiagonal(B, C, Q, *facts)

    @override
    def local_cotangent(self, local, W, Y, X):
        r = self.rows.shape[1]
        eye = jnp.broadcast_to(jnp.eye(r, dtype=W.dtype), local.C.shape)
        inverse = small.solve_lower_transpose(local.C, eye)
        blocks = jnp.einsum("krl,ksl->krs", self.rows.take(X.T), W.T.reshape(-1, r, W.shape[0]))
        return (inverse - blocks) @ local.Q


def _stacked(b):
    return b.reshape(-1, *b.shape[2:])
