"""The triangular structure: constraint i depends on the local inputs up to its own; N² L a step.

Simulators have it if every step is observed and adds noise to what it computes (Appendix C of the
paper).
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float
from typing_extensions import override

from coarea.jacobians.indices import Indices
from coarea.jacobians.split import AbstractLocal, AbstractSplit


class LowerTriangle(AbstractLocal):
    """B with its rows reordered so that it is lower triangular, and C = B."""

    B: Float[Array, "N N"]
    rows: Indices = eqx.field(static=True)

    @property
    @override
    def is_square(self):
        return True

    @override
    def apply_transpose(self, lam):
        return self.rows.take(lam) @ self.B

    @override
    def times(self, b):
        return self._unsorted(self.B @ b.T).T

    @override
    def solve(self, b):
        return solve_triangular(self.B, self.rows.take(b.T), lower=True).T

    @override
    def solve_transpose(self, b):
        return self._unsorted(solve_triangular(self.B, b.T, lower=True, trans="T")).T

    @override
    def rotate(self, n):
        return n

    @override
    def rotate_transpose(self, r):
        return r

    @override
    def solve_product(self, previous, b):
        return previous.solve_transpose(self.solve(b))

    @override
    def pivots(self):
        return jnp.diagonal(self.B)

    def _unsorted(self, b):
        return self.rows.put(b, b)


class Triangular(AbstractSplit[LowerTriangle]):
    """The triangular structure; B is lower triangular in the order of `rows` and `local_inputs`.

    The rows of W are in that order too.
    """

    shared_inputs: Indices = eqx.field(static=True)
    local_inputs: Indices = eqx.field(static=True)
    rows: Indices = eqx.field(static=True)

    @property
    @override
    def num_derivatives(self):
        return len(self.shared_inputs) + len(self.local_inputs)

    @property
    @override
    def has_small_factors(self):
        return False

    @override
    def pieces(self, constraint, u):
        J = jax.jacfwd(constraint)(u)
        B = self.rows.take(self.local_inputs.take(J.T).T)
        return self.shared_inputs.take(J.T), B

    @override
    def local(self, B):
        return LowerTriangle(B, self.rows)

    @override
    def local_cotangent(self, local, W, Y, X):
        """The cotangent of B; of B⁻ᵀ only the diagonal meets nonzero derivatives of B."""
        return jnp.diag(1 / jnp.diagonal(local.B)) - self.rows.take(X.T) @ W
