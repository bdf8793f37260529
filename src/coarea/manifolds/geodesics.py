"""Manifolds whose geodesics have a closed form: spheres, products of them, Stiefel manifolds."""

import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import expm
from typing_extensions import override

from coarea.errors import ModelError
from coarea.manifolds.manifold import Manifold
from coarea.manifolds.target import AbstractGeodesicFlow


class Arcs(AbstractGeodesicFlow):
    """Great circles, one for each of the unit vectors in the last axis of a shape."""

    shape: tuple[int, ...] = eqx.field(static=True)

    @property
    @override
    def max_flow_time(self):
        return 0.5 * math.pi / math.sqrt(self.shape[-1] - 1)

    @override
    def project(self, u, p):
        x, v = u.reshape(self.shape), p.reshape(self.shape)
        return (v - x * jnp.sum(x * v, axis=-1, keepdims=True)).ravel()

    @override
    def move(self, u, p, tau):
        x, v = u.reshape(self.shape), p.reshape(self.shape)
        speed = jnp.linalg.norm(v, axis=-1, keepdims=True)
        angle = tau * speed
        direction = v / jnp.where(speed > 0, speed, 1.0)
        cos, sin = jnp.cos(angle), jnp.sin(angle)
        end = x * cos + direction * sin
        end = end / jnp.linalg.norm(end, axis=-1, keepdims=True)
        p = speed * (direction * cos - x * sin)
        return end.ravel(), self.project(end.ravel(), p.ravel())


class StiefelGeodesic(AbstractGeodesicFlow):
    """Geodesics of n×d matrices with orthonormal columns, in the metric of the ambient space."""

    shape: tuple[int, int] = eqx.field(static=True)

    @property
    @override
    def max_flow_time(self):
        return 0.5 * math.pi / math.sqrt(max(self.shape[0] - 1, 1))

    @override
    def project(self, u, p):
        X, V = u.reshape(self.shape), p.reshape(self.shape)
        inner = X.T @ V
        return (V - 0.5 * X @ (inner + inner.T)).ravel()

    @override
    def move(self, u, p, tau):
        X, V = u.reshape(self.shape), p.reshape(self.shape)
        A, d = X.T @ V, self.shape[1]
        generator = jnp.block([[A, -V.T @ V], [jnp.eye(d), A]])
        turned = expm(-tau * A)
        end = jnp.concatenate([X, V], axis=1) @ expm(tau * generator)
        X, V = end[:, :d] @ turned, end[:, d:] @ turned
        # Rounding makes the columns slightly non-orthonormal. One Newton step moves X towards the
        # nearest matrix with orthonormal columns.
        X = X @ (1.5 * jnp.eye(d) - 0.5 * X.T @ X)
        return X.ravel(), self.project(X.ravel(), V.ravel())


def Sphere(log_density: Callable[[Any], Any], shape: int | tuple[int, ...]) -> Manifold:
    """A density on the unit sphere in ℝⁿ, or with shape (…, n) on a product of such spheres.

    `log_density` takes an array of this shape, whose vectors along the last axis have length one.
    It is the log density with respect to surface area, so that zero means uniform. Moves follow
    great circles exactly, without solving equations. The draws are called `point`. The log density
    of a von Mises–Fisher distribution is linear:

    >>> import coarea as co, numpy as np
    >>> sphere = co.manifolds.Sphere(lambda x: 3.0 * x[0], 3)
    >>> draws = co.sample(sphere, draws=200, chains=2)
    >>> bool(np.allclose(np.linalg.norm(draws.posterior["point"], axis=-1), 1.0))
    True
    """
    shape = _shape(shape)
    if not shape or shape[-1] < 2:
        raise ModelError(f"shape={shape}: vectors on a sphere need two or more elements.")
    return Manifold(
        lambda x: 0.5 * (jnp.sum(x**2, axis=-1) - 1.0),
        log_density,
        point=np.full(shape, shape[-1] ** -0.5),
        geodesic=Arcs(shape),
    )


def Stiefel(log_density: Callable[[Any], Any], shape: tuple[int, int]) -> Manifold:
    """A density on the n×d matrices X with orthonormal columns, XᵀX = I.

    `log_density` takes such a matrix. It is the log density with respect to the volume of the
    manifold, so that zero means uniform. Moves follow geodesics in closed form. A geodesic cannot
    lead from a rotation to a reflection, so that square matrices are restricted to rotations,
    det X = 1. The draws are called `point`. The matrix von Mises–Fisher log density is tr(FᵀX), and
    the matrix Bingham log density is tr(B XᵀAX):

    >>> import coarea as co, jax.numpy as jnp, numpy as np
    >>> A = np.diag([3.0, 1.0, 0.0])
    >>> frames = co.manifolds.Stiefel(lambda X: jnp.trace(X.T @ A @ X), (3, 2))
    >>> X = co.sample(frames, draws=200, chains=2).posterior["point"].values
    >>> bool(np.allclose(np.swapaxes(X, -1, -2) @ X, np.eye(2)))
    True
    """
    whole = _shape(shape)
    if len(whole) != 2 or not 1 <= whole[1] <= whole[0] or whole[0] < 2:
        raise ModelError(
            f"shape={shape}: give the matrix's rows and columns, no more columns than rows."
        )
    n, d = whole
    upper = np.triu_indices(d)

    def of_rotations(X):
        return jnp.where(jnp.linalg.det(X) > 0, log_density(X), -jnp.inf)

    return Manifold(
        lambda X: (X.T @ X - jnp.eye(d))[upper],
        of_rotations if n == d else log_density,
        point=np.eye(n, d),
        geodesic=StiefelGeodesic((n, d)),
    )


def _shape(given: Any) -> tuple[int, ...]:
    shape = tuple(given) if isinstance(given, list | tuple) else (given,)
    if not all(isinstance(n, int | np.integer) and n > 0 for n in shape):
        raise ModelError(f"shape={given!r}: give positive whole numbers.")
    return tuple(int(n) for n in shape)
