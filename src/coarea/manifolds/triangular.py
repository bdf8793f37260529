"""The triangular shape: constraint i sees the local inputs up to its own. N² L a step.

So do simulators whose every step is observed and adds noise to what it computes (Appendix C of the
paper).
"""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from coarea.manifolds.indices import Indices
from coarea.manifolds.split import AbstractLocal, AbstractSplit


class LowerTriangle(AbstractLocal):
    """B with its rows put in an order in which it is lower triangular, and C = B."""

    B: Float[Array, "N N"]
    rows: Indices = eqx.field(static=True)

    @property
    def is_square(self):  # noqa: D102
        return True

    def apply(self, n):  # noqa: D102
        return self._unsorted(self.B @ n)

    def apply_transpose(self, lam):  # noqa: D102
        return self.rows.take(lam) @ self.B

    def times(self, b):  # noqa: D102
        return self._unsorted(self.B @ b.T).T

    def solve(self, b):  # noqa: D102
        return solve_triangular(self.B, self.rows.take(b.T), lower=True).T

    def solve_transpose(self, b):  # noqa: D102
        return self._unsorted(solve_triangular(self.B, b.T, lower=True, trans="T")).T

    def rotate(self, n):  # noqa: D102
        return n

    def rotate_transpose(self, r):  # noqa: D102
        return r

    def solve_product(self, older, b):  # noqa: D102
        return older.solve_transpose(self.solve(b))

    def pivots(self):  # noqa: D102
        return jnp.diagonal(self.B)

    def _unsorted(self, b):
        return self.rows.put(b, b)


class Triangular(AbstractSplit[LowerTriangle]):
    """`rows` and `local_inputs` are in the order in which B is lower triangular.

    W, between the two factors of B, has its rows in that order too.
    """

    is_cheap: ClassVar[bool] = False
    shared_inputs: Indices = eqx.field(static=True)
    local_inputs: Indices = eqx.field(static=True)
    rows: Indices = eqx.field(static=True)

    def chains_together(self, num_chains):
        """One: the factors are LAPACK's."""
        return 1

    def pieces(self, constraint, u):  # noqa: D102
        J = jax.jacfwd(constraint)(u)
        B = self.rows.take(self.local_inputs.take(J.T).T)
        return self.shared_inputs.take(J.T), B

    def local(self, B):  # noqa: D102
        return LowerTriangle(B, self.rows)

    def local_cotangent(self, local, W, Y, X):
        """Only the diagonal of B⁻ᵀ meets a nonzero element of B's derivative."""
        return jnp.diag(1 / jnp.diagonal(local.B)) - self.rows.take(X.T) @ W
