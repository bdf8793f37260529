"""`Manifold`: a density given directly on an implicitly defined manifold (Brubaker et al.)."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import PyTree

from coarea.errors import ModelError
from coarea.manifolds.dense import Dense
from coarea.manifolds.target import AbstractTarget, Evaluation
from coarea.manifolds.validation import check_constraint
from coarea.precision import in_float64


class Manifold(AbstractTarget):
    """A density on {x : constraint(x) = 0}.

    `log_density` is with respect to the manifold's own (Hausdorff) measure: zero everywhere means
    uniform by surface area. `point` is a point on the manifold or near it; both functions take
    values of its structure, an array or a dictionary of them.

    >>> import coarea as co, jax.numpy as jnp
    >>> sphere = co.Manifold(lambda x: x @ x - 1.0, lambda x: 3.0 * x[0], point=jnp.ones(3))
    >>> sphere.num_inputs, sphere.num_constraints
    (3, 1)
    """

    constraint: Callable[[Any], Any]
    log_density: Callable[[Any], Any]
    point: PyTree[np.ndarray]
    shape: Dense
    _num_constraints: int = eqx.field(static=True)

    @in_float64
    def __init__(self, constraint: Callable, log_density: Callable, *, point: PyTree):
        self.constraint = constraint
        self.log_density = log_density
        self.point = jax.tree.map(lambda x: np.asarray(x, dtype=float), point)
        if not all(np.all(np.isfinite(x)) for x in jax.tree.leaves(self.point)):
            raise ModelError("point has elements that are not finite: give one near the manifold.")
        residual = jax.eval_shape(lambda u: self.residual(u), self._flat_point)
        self._num_constraints = residual.size
        self.shape = Dense.for_size(self.num_constraints, self.num_inputs)
        check_constraint(self, "constraint")

    @property
    def _flat_point(self):
        return ravel_pytree(self.point)[0].astype(float)

    def _unravel(self, u):
        return ravel_pytree(self.point)[1](u.astype(float))

    @property
    def num_inputs(self):  # noqa: D102
        return sum(x.size for x in jax.tree.leaves(self.point))

    @property
    def num_constraints(self):  # noqa: D102
        return self._num_constraints

    @property
    def scale(self):  # noqa: D102
        return jnp.ones(())

    @property
    def is_standard_normal(self):  # noqa: D102
        return False

    def residual(self, u):  # noqa: D102
        parts = [jnp.ravel(x) for x in jax.tree.leaves(self.constraint(self._unravel(u)))]
        return jnp.concatenate(parts)

    def linearise(self, u):  # noqa: D102
        return self.shape.linearise(self.residual, u)

    def evaluate(self, u):  # noqa: D102
        value, gradient = jax.value_and_grad(lambda u: self.log_density(self._unravel(u)))(u)
        return Evaluation(self.linearise(u), value, gradient)

    def guess(self, key):
        """The given point, moved at random: chains must not all start at one place."""
        return self._flat_point + jax.random.normal(key, (self.num_inputs,))

    def latents(self, u):
        """The point by the names of its dictionary; `point` if it is a bare array."""
        point = self._unravel(u)
        return point if isinstance(point, dict) else {"point": point}

    def inputs(self, u):  # noqa: D102
        return self.latents(u)

    def describe(self, constraint):  # noqa: D102
        return f"constraint[{constraint}]"
