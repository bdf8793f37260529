"""Inputs split into shared ones, which many constraints see, and local ones: J = [V | B].

Write B = C Q with C square and QQᵀ = I (Q is the identity where B is square), W = C⁻¹V and
A = I + WᵀW, as large as the shared inputs are many. Then ½ log|JJᵀ| = log|det C| + ½ log|A|, and
every solve is one with C and one with A. What B looks like, and so what C costs, is the local
factor's matter. Where B is square, tangent are the vectors (g, −Qᵀ W g), and the g of a projection
takes one product with W and one solve with A.

Several vectors of N are rows of a matrix, V and W among them as Vᵀ and Wᵀ: a row for each shared
input is contiguous, and what is done to each of its elements is one vectorised loop.
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
    """B with its factors. Vectors of N have rows in the order of the constraints."""

    @property
    @abstractmethod
    def is_square(self) -> bool:
        """Whether B is."""

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
        """n − Qᵀ(Q n + shift), without cancellation where Q is square, and n of no effect."""
        if self.is_square:
            return -self.rotate_transpose(shift)
        return n - self.rotate_transpose(self.rotate(n) + shift)

    def log_det(self) -> Float[Array, ""]:
        """log |det C|."""
        return small.sum_of_logs(self.pivots())


F = TypeVar("F", bound=AbstractLocal)


class SplitLinearisation(AbstractLinearisation, Generic[F]):
    """The local factor, Wᵀ, and the inverse T of A's Cholesky factor, TᵀT = A⁻¹.

    States are copied often, so that V is left to be computed from these: only a fallback needs it.
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

    def project(self, p):
        """Without the Gram matrix, through which it loses all digits as the noise shrinks."""
        v, n = self._parts(p)
        g = self._best(v - small.products(self.W, self.local.rotate(n)))
        return self._whole(p, g, self.local.tangent(n, small.combine(g, self.W)))

    def _best(self, b):
        """A⁻¹ b, for b = Wᵀs the v for which |v|² + |s − W v|² is least. A⁻¹ would lose digits."""
        return small.combine(small.combine(b, self.T.T), self.T)

    def draw(self, key, like):
        """Of a normal p the g that `project` finds is normal: where it says all, it is drawn."""
        L, num_inputs = self.T.shape[0], like.size
        if not self.local.is_square or L + self.local_inputs.count < num_inputs:
            return super().draw(key, like)
        # As sums, these would have XLA compute the draws anew for every element.
        g = jax.random.normal(key, (L,), like.dtype) @ self.T
        return self._from_parts(g, -self.local.rotate_transpose(g @ self.W))

    @override
    def solve_newton(self, previous, b):
        solved = self.local.solve_product(previous.local, jnp.concatenate([self.V, b[None]]))
        Y, x = solved[:-1], solved[-1]
        # An inner product with the previous V on the left, hence a matrix that is not symmetric.
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
    """The structures of this kind differ in how B is computed and factored."""

    shared_inputs: eqx.AbstractVar[Indices]
    local_inputs: eqx.AbstractVar[Indices]

    @abstractmethod
    def pieces(self, constraint: Any, u: Float[Array, " M"]) -> tuple[Float[Array, "L N"], Any]:
        """(Vᵀ, B), B in whatever layout `local` takes."""

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
        """(JJᵀ)⁻¹B where B is not zero, in its layout. Y is WᵀC⁻¹ and X is A⁻¹Y.

        It is (C⁻ᵀ − Xᵀ Wᵀ) Q, or ((BBᵀ)⁻¹ − Xᵀ Y) B.
        """

    @property
    @abstractmethod
    def num_derivatives(self) -> int:
        """How many tangents and cotangents `pieces` takes."""

    @property
    def has_small_factors(self) -> bool:
        """Whether LAPACK is not needed."""
        return len(self.shared_inputs) <= small.LARGEST

    @property
    @override
    def hints(self):
        """Chains are vectorised while small matrices are factored without LAPACK."""
        return ExecutionHints(
            linearisation_cost=self.num_derivatives,
            uses_lapack=not self.has_small_factors,
            vmap_width=8 if self.has_small_factors else 1,
        )

    @override
    def linearise(self, constraint, u):
        return self._factored(u, *self.pieces(constraint, u))

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
    """Splits in which constraints that see each other's local inputs are few: B alone is cheap."""

    @abstractmethod
    def local_pieces(
        self, constraint: Any, n: Float[Array, " K"]
    ) -> tuple[Float[Array, " N"], Any]:
        """A function of local inputs alone, in the order they have here, at n, and B."""


def units(indices: Indices, u) -> Float[np.ndarray | Array, "L M"]:
    """For each index the vector that is one there: if small, a constant of the program."""
    numpy = np if len(indices) * u.size <= _LARGEST_CONSTANT else jnp
    return (numpy.asarray(indices.flat)[:, None] == numpy.arange(u.size)[None]).astype(u.dtype)


def pushed_forward(constraint, u, seeds):
    """The constraint's derivatives at u along each seed, as rows."""
    _, push = jax.linearize(constraint, u)
    return jax.vmap(push)(seeds)
