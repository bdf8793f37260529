"""The elementwise shape: every constraint has a noise of its own, B is diagonal. N L² a step."""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from coarea.manifolds.indices import Indices
from coarea.manifolds.split import AbstractLocal, AbstractUncoupled, units


class Diagonal(AbstractLocal):
    """B = diag(b), and C = B."""

    b: Float[Array, " N"]

    @property
    def is_square(self):  # noqa: D102
        return True

    def apply(self, n):  # noqa: D102
        return self.b * n

    def apply_transpose(self, lam):  # noqa: D102
        return self.b * lam

    def times(self, b):  # noqa: D102
        return b * self.b[None]

    def solve(self, b):  # noqa: D102
        return b / self.b[None]

    def solve_transpose(self, b):  # noqa: D102
        return b / self.b[None]

    def rotate(self, n):  # noqa: D102
        return n

    def rotate_transpose(self, r):  # noqa: D102
        return r

    def solve_product(self, older, b):  # noqa: D102
        return b / (self.b * older.b)[None]

    def pivots(self):  # noqa: D102
        return self.b


class Elementwise(AbstractUncoupled[Diagonal]):
    """`local_inputs[i]` is the one local input that constraint i sees; no other does."""

    is_cheap: ClassVar[bool] = True
    shared_inputs: Indices = eqx.field(static=True)
    local_inputs: Indices = eqx.field(static=True)

    def pieces(self, constraint, u):
        """A tangent for each shared input, and one for all local ones: they cannot mix."""
        _, push = jax.linearize(constraint, u)
        together = self.local_inputs.mark(u.size).astype(u.dtype)
        return jax.vmap(push)(units(self.shared_inputs, u)), push(together)

    def local_pieces(self, constraint, n):  # noqa: D102
        return jax.jvp(constraint, (n,), (jnp.ones_like(n),))

    def local(self, B):  # noqa: D102
        return Diagonal(B)

    def local_cotangent(self, local, W, Y, X):  # noqa: D102
        return 1 / local.b - jnp.sum(X * W, axis=0)
