"""Split structures: many constraints depend on a shared input, few on a local one, J = [V | B].

Write B = C Q with C square and QQᵀ = I (Q is the identity if B is square), W = C⁻¹V and
A = I + WᵀW (L×L for L shared inputs). Then ½ log|JJᵀ| = log|det C| + ½ log|A|, and every solve is
one with C and one with A. The local factor knows the layout of B, which determines the cost of C.
If B is square, the tangent vectors are (g, −Qᵀ W g), and a projection computes g with one product
with W and one solve with A.

Sets of vectors of length N are stored as the rows of a matrix. V and W are therefore stored as Vᵀ
and Wᵀ: the row of a shared input is contiguous, and an elementwise operation on it is one
vectorised loop.
"""

from abc import abstractmethod
from typing import Any, Generic, Self, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from typing_extensions import override

from coarea.jacobians.indices import Indices
from coarea.jacobians.linalg import small
from coarea.jacobians.structure import (
    AbstractLinearisation,
    AbstractStructure,
    ExecutionHints,
)
from coarea.xla import materialize

_LARGEST_CONSTANT = 2**16


class AbstractLocal(eqx.Module):
    """B with its factors; elements of vectors of length N are in the order of the constraints."""

    @property
    @abstractmethod
    def is_square(self) -> bool:
        """Whether B is square."""

    @abstractmethod
    def apply_transpose(self, lam: Float[Array, " N"]) -> Float[Array, " K"]:
        """Bᵀ λ."""

    @abstractmethod
    def times(self, b: Float[Array, "k N"]) -> Float[Array, "k N"]:
        """C b for each row b."""

    @abstractmethod
    def solve(self, b: Float[Array, "k N"]) -> Float[Array, "k N"]:
        """C⁻¹ b for each row b."""

    @abstractmethod
    def solve_transpose(self, b: Float[Array, "k N"]) -> Float[Array, "k N"]:
        """C⁻ᵀ b for each row b."""

    @abstractmethod
    def rotate(self, n: Float[Array, " K"]) -> Float[Array, " N"]:
        """Q n."""

    @abstractmethod
    def rotate_transpose(self, r: Float[Array, " N"]) -> Float[Array, " K"]:
        """Qᵀ r."""

    @abstractmethod
    def solve_product(self, previous: Self, b: Float[Array, "k N"]) -> Float[Array, "k N"]:
        """(B Bₒᵀ)⁻¹ b for each row b."""

    @abstractmethod
    def pivots(self) -> Float[Array, " N"]:
        """The diagonal of C."""

    def tangent(self, n: Float[Array, " K"], shift: Float[Array, " N"]) -> Float[Array, " K"]:
        """n − Qᵀ(Q n + shift); if Q is square, n is left out, because it cancels exactly."""
        if self.is_square:
            return -self.rotate_transpose(shift)
        return n - self.rotate_transpose(self.rotate(n) + shift)

    def log_det(self) -> Float[Array, ""]:
        """log |det C|."""
        return small.sum_of_logs(self.pivots())


F = TypeVar("F", bound=AbstractLocal)


class SplitLinearisation(AbstractLinearisation, Generic[F]):
    """The local factor, Wᵀ, and the inverse T of A's Cholesky factor, TᵀT = A⁻¹.

    V is not stored, because states are copied often and only a fallback solver needs V. It is
    computed from the other fields.
    """

    local: F
    W: Float[Array, "L N"]
    T: Float[Array, "L L"]
    shared_inputs: Indices = eqx.field(static=True)
    local_inputs: Indices = eqx.field(static=True)
    num_inputs: int = eqx.field(static=True)

    @property
    def V(self) -> Float[Array, "L N"]:
        """(C W)ᵀ."""
        return self.local.times(self.W)

    def _parts(self, p):
        return self.shared_inputs.take(p), self.local_inputs.take(p).ravel()

    def _whole(self, template, v, n):
        if self.shared_inputs.is_followed_by(self.local_inputs, template.size):
            return jnp.concatenate([v, n])
        return self.local_inputs.put(self.shared_inputs.put(template, v), n)

    @override
    def apply_transpose(self, lam):
        return self._from_parts(small.products(self.V, lam), self.local.apply_transpose(lam))

    @override
    def pseudo_inverse(self, b):
        s = self.local.solve(b[None])[0]
        v = self._best(small.products(self.W, s))
        return self._from_parts(v, self.local.rotate_transpose(s - small.combine(v, self.W)))

    @override
    def project(self, p):
        """The tangential part of p, without the Gram matrix.

        Through the Gram matrix all digits would be lost as the noise shrinks.
        """
        v, n = self._parts(p)
        g = self._best(v - small.products(self.W, self.local.rotate(n)))
        return self._whole(p, g, self.local.tangent(n, small.combine(g, self.W)))

    def _best(self, b):
        """A⁻¹ b, by products with T, because forming A⁻¹ would lose digits.

        For b = Wᵀs it is the v that minimises |v|² + |s − W v|².
        """
        return small.combine(small.combine(b, self.T.T), self.T)

    @override
    def draw(self, key, like):
        """Draw a tangent vector from a normal distribution.

        The g that `project` computes from a normal p is itself normal. If g determines the tangent
        vector, only g is drawn.
        """
        L, num_inputs = self.T.shape[0], like.size
        if not self.local.is_square or L + self.local_inputs.count < num_inputs:
            return super().draw(key, like)
        # Use matrix products here: with sums XLA would recompute the draws for every element.
        g = jax.random.normal(key, (L,), like.dtype) @ self.T
        return self._from_parts(g, -self.local.rotate_transpose(g @ self.W))

    @override
    def solve_newton(self, previous, b):
        solved = self.local.solve_product(previous.local, jnp.concatenate([self.V, b[None]]))
        Y, x = solved[:-1], solved[-1]
        # The previous V is on the left of the inner product, so the matrix is not symmetric.
        previous_V = previous.V
        inner = jnp.eye(Y.shape[0], dtype=Y.dtype) + small.outer_products(previous_V, Y)
        weights = small.solve(inner, small.products(previous_V, x)[:, None])[:, 0]
        return x - small.combine(weights, Y)

    @override
    def half_log_det(self):
        return self.local.log_det() - small.sum_of_logs(jnp.diagonal(self.T))

    def _from_parts(self, v, n):
        template = jnp.zeros(self.num_inputs, v.dtype)
        return self._whole(template, v, n)


class AbstractSplit(AbstractStructure[SplitLinearisation[F]], Generic[F]):
    """A structure J = [V | B]; subclasses differ in how B is computed and factored."""

    shared_inputs: eqx.AbstractVar[Indices]
    local_inputs: eqx.AbstractVar[Indices]

    @abstractmethod
    def pieces(self, constraint: Any, u: Float[Array, " M"]) -> tuple[Float[Array, "L N"], Any]:
        """(Vᵀ, B), with B in the layout that `local` takes."""

    @abstractmethod
    def local(self, B: Any) -> F:
        """The factor of B."""

    @abstractmethod
    def local_cotangent(
        self,
        local: F,
        W: Float[Array, "L N"],
        Y: Float[Array, "L N"],
        X: Float[Array, "L N"],
    ) -> Any:
        """(JJᵀ)⁻¹B where B is not zero, in the layout of B; Y is WᵀC⁻¹ and X is A⁻¹Y.

        It is (C⁻ᵀ − Xᵀ Wᵀ) Q, or ((BBᵀ)⁻¹ − Xᵀ Y) B.
        """

    @property
    @abstractmethod
    def num_derivatives(self) -> int:
        """The number of tangents and cotangents that `pieces` takes."""

    @property
    def has_small_factors(self) -> bool:
        """Whether all factored matrices are small enough to do without LAPACK."""
        return len(self.shared_inputs) <= small.LARGEST

    @property
    @override
    def hints(self):
        """Chains are vectorised on a CPU only if no factor needs LAPACK."""
        return ExecutionHints(
            linearisation_cost=self.num_derivatives,
            uses_lapack=not self.has_small_factors,
            vmap_width=8 if self.has_small_factors else 1,
        )

    @override
    def linearise(self, constraint, u):
        return self._factored(u, *self.pieces(constraint, u))

    @override
    def linearise_and_differentiate(self, constraint, u):
        """The gradient pulls back the cotangent (JJᵀ)⁻¹J of J, restricted to J's pattern."""
        (V, B), pull_back = jax.vjp(lambda u: self.pieces(constraint, u), u)
        V, B = materialize((V, B))
        linearisation = self._factored(u, V, B)
        (gradient,) = pull_back(self._cotangent(linearisation))
        return linearisation, gradient

    def _cotangent(self, linearisation: SplitLinearisation[F]):
        """(JJᵀ)⁻¹J where J is not zero, in the layout of `pieces`."""
        W, local = linearisation.W, linearisation.local
        Y = local.solve_transpose(W)
        X = materialize(small.matmul(linearisation.T.T, small.matmul(linearisation.T, Y)))
        return X, self.local_cotangent(local, W, Y, X)

    def _factored(self, u, V, B) -> SplitLinearisation[F]:
        local = self.local(B)
        W = materialize(local.solve(V))  # transposed, as V
        eye = jnp.eye(W.shape[0], dtype=W.dtype)
        T = small.inverse_of_cholesky(eye + small.outer_products(W, W))
        return SplitLinearisation(local, W, T, self.shared_inputs, self.local_inputs, u.size)


class AbstractUncoupled(AbstractSplit[F]):
    """Splits in which few constraints share local inputs, so that B alone is cheap to compute."""

    @abstractmethod
    def local_pieces(
        self, constraint: Any, n: Float[Array, " K"]
    ) -> tuple[Float[Array, " N"], Any]:
        """The value at n, and B, of a constraint as a function of the local inputs alone."""


def unit_vectors(indices: Indices, u) -> Float[np.ndarray | Array, "L M"]:
    """A unit vector for each index, as rows; a constant of the program if they are small."""
    numpy = np if len(indices) * u.size <= _LARGEST_CONSTANT else jnp
    return (numpy.asarray(indices.flat)[:, None] == numpy.arange(u.size)[None]).astype(u.dtype)


def pushed_forward(constraint, u, seeds):
    """The directional derivatives of the constraint at u along each seed, as rows."""
    _, push = jax.linearize(constraint, u)
    return jax.vmap(push)(seeds)
