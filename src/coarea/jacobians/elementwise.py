"""The elementwise structure: each constraint has its own noise, so B is diagonal; N L² a step."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from typing_extensions import override

from coarea.jacobians.indices import Indices
from coarea.jacobians.split import AbstractLocal, AbstractUncoupled, unit_vectors


class Diagonal(AbstractLocal):
    """B = diag(b), and C = B."""

    b: Float[Array, " N"]

    @property
    @override
    def is_square(self):
        return True

    @override
    def apply_transpose(self, lam):
        return self.b * lam

    @override
    def times(self, b):
        return b * self.b[None]

    @override
    def solve(self, b):
        return b / self.b[None]

    @override
    def solve_transpose(self, b):
        return b / self.b[None]

    @override
    def rotate(self, n):
        return n

    @override
    def rotate_transpose(self, r):
        return r

    @override
    def solve_product(self, previous, b):
        return b / (self.b * previous.b)[None]

    @override
    def pivots(self):
        return self.b


class Elementwise(AbstractUncoupled[Diagonal]):
    """The elementwise structure; only constraint i depends on `local_inputs[i]`."""

    shared_inputs: Indices = eqx.field(static=True)
    local_inputs: Indices = eqx.field(static=True)

    @property
    @override
    def num_derivatives(self):
        return len(self.shared_inputs) + 1

    @override
    def pieces(self, constraint, u):
        """One tangent for each shared input, and one for all local inputs together.

        A constraint depends on only one local input, so that their derivatives cannot mix.
        """
        _, push = jax.linearize(constraint, u)
        all_local = self.local_inputs.mark(u.size).astype(u.dtype)
        return jax.vmap(push)(unit_vectors(self.shared_inputs, u)), push(all_local)

    @override
    def local_pieces(self, constraint, n):
        return jax.jvp(constraint, (n,), (jnp.ones_like(n),))

    @override
    def local(self, B):
        return Diagonal(B)

    @override
    def local_cotangent(self, local, W, Y, X):
        return 1 / local.b - jnp.sum(X * W, axis=0)
