"""`Manifold`: a density given directly on an implicitly defined manifold (Brubaker et al.)."""

from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from typing_extensions import override

from coarea.errors import ModelError
from coarea.generators.generator import described
from coarea.jacobians.dense import Dense
from coarea.manifolds.rescaling import Rescaling
from coarea.manifolds.target import (
    AbstractConstrainedTarget,
    AbstractGeodesicFlow,
    AbstractReporter,
    Evaluation,
    Scales,
)
from coarea.manifolds.validation import check_derivatives, check_digits
from coarea.precision import in_float64
from coarea.tracing import trace
from coarea.xla import jit_fast_compile


class Manifold(AbstractConstrainedTarget):
    """A density on {x : constraint(x) = 0}.

    `log_density` is with respect to the manifold's own (Hausdorff) measure: zero everywhere means
    uniform by surface area. `point` is a point on the manifold or near it; both functions take
    values of its structure, an array or a dictionary of arrays. Spheres and Stiefel manifolds,
    whose `geodesic` has a closed form, are ready made: `coarea.manifolds.Sphere` and `Stiefel`.

    >>> import coarea as co, jax.numpy as jnp
    >>> sphere = co.Manifold(lambda x: x @ x - 1.0, lambda x: 3.0 * x[0], point=jnp.ones(3))
    >>> sphere.num_inputs, sphere.num_constraints
    (3, 1)
    """

    constraint: Callable[[Any], Any]
    log_density: Callable[[Any], Any]
    point: np.ndarray | dict[str, np.ndarray]
    jacobian: Dense
    rescaling: Rescaling
    closed_form: AbstractGeodesicFlow | None
    _num_constraints: int = eqx.field(static=True)
    _size: np.ndarray
    _residual_size: np.ndarray

    @in_float64
    def __init__(
        self,
        constraint: Callable,
        log_density: Callable,
        *,
        point: Any,
        geodesic: AbstractGeodesicFlow | None = None,
    ):
        if not (geodesic is None or isinstance(geodesic, AbstractGeodesicFlow)):
            raise ModelError(
                f"geodesic={geodesic!r}: leave it out; spheres and Stiefel manifolds have theirs "
                "(coarea.manifolds.Sphere, coarea.manifolds.Stiefel)."
            )
        self.closed_form = geodesic
        self.point = _as_arrays(point)
        like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, float), self.point)
        self.constraint = trace(_equations(constraint), like, what="constraint")
        self.log_density = trace(_number(log_density), like, what="log_density")
        self.rescaling = Rescaling()
        flat = self._flat_point
        self._size = np.asarray(float(jnp.max(jnp.abs(flat))) or 1.0)
        residual = jax.eval_shape(lambda u: self.residual(u), flat)
        self._num_constraints = residual.size
        if self._num_constraints >= flat.size:
            raise ModelError(
                f"the constraint has {residual.size} equations for {flat.size} unknowns, which "
                "leaves isolated points or none. Give fewer equations, or a point with more "
                "elements."
            )
        self.jacobian = Dense(self._num_constraints, flat.size)
        check_digits(self.residual, flat, "constraint")
        check_digits(self._log_density, flat, "log_density")
        # A residual is judged by how far the constraint moves when the point does.
        J = _jacobian(self.jacobian, self.constraint, self.point)
        size = float(jnp.max(jnp.linalg.norm(J, axis=1))) * float(self._size)
        self._residual_size = np.asarray(size if 0 < size < float("inf") else 1.0)
        check_derivatives(self, "constraint or log_density")

    @property
    def _flat_point(self):
        return ravel_pytree(self.point)[0].astype(float)

    def _unravel(self, u):
        return ravel_pytree(self.point)[1](self.rescaling.to_model_space(u).astype(float))

    def _log_density(self, u):
        return self.log_density(self._unravel(u))

    @property
    @override
    def num_inputs(self):
        return sum(x.size for x in jax.tree.leaves(self.point))

    @property
    @override
    def num_constraints(self):
        return self._num_constraints

    @property
    @override
    def scales(self):
        size = jnp.asarray(self._size, float)
        R = self.rescaling.matrix
        return Scales(
            residual=jnp.asarray(self._residual_size, float),
            position=size if R is None else jnp.max(size / R),
        )

    @property
    @override
    def gaussian(self):
        return np.zeros(self.num_inputs, dtype=bool)

    @property
    @override
    def hints(self):
        return self.jacobian.hints

    @property
    @override
    def reporter(self):
        return ManifoldReporter(self.point)

    @property
    @override
    def geodesic(self):
        """As given, in model space: a rescaled manifold is another one."""
        return self.closed_form if self.rescaling.is_identity else None

    @override
    def rescale(self, rescaling):
        return eqx.tree_at(lambda t: t.rescaling, self, rescaling)

    @override
    def residual(self, u):
        return self.constraint(self._unravel(u))

    @override
    def linearise(self, u):
        return self.jacobian.linearise(self.residual, u)

    @override
    def evaluate(self, u):
        value, gradient = jax.value_and_grad(self._log_density)(u)
        R = self.rescaling.matrix
        if R is None:
            return Evaluation(self.linearise(u), value, gradient)
        # The Hausdorff measure changes with the scales, by the ratio of the determinants.
        here, here_gradient = self.jacobian.linearise_and_differentiate(self.residual, u)
        model = self.rescale(Rescaling())
        there, there_gradient = self.jacobian.linearise_and_differentiate(model.residual, R * u)
        return Evaluation(
            here,
            value + there.half_log_det() - here.half_log_det(),
            gradient + R * there_gradient - here_gradient,
        )

    @override
    def guess(self, key):
        """The given point, moved at random, by anything from all to a thousandth of its size.

        Chains must not all start at one place, and far from the point the density may be zero.
        """
        distance_key, direction_key = jax.random.split(key)
        distance = self._size * 10 ** (-3 * jax.random.uniform(distance_key, dtype=float))
        moved = self._flat_point + distance * jax.random.normal(direction_key, (self.num_inputs,))
        return self.rescaling.to_sampler_space(moved)


class ManifoldReporter(AbstractReporter):
    """A point by the names of its dictionary; `point` if it is a bare array."""

    point: np.ndarray | dict[str, np.ndarray]

    @override
    def latents(self, u):
        point = ravel_pytree(self.point)[1](u.astype(float))
        return point if isinstance(point, dict) else {"point": point}

    @override
    def inputs(self, u):
        return self.latents(u)

    @override
    def describe(self, constraint):
        return f"constraint[{constraint}]"


@jit_fast_compile
def _jacobian(structure: Dense, constraint: Callable, point):
    flat, unravel = ravel_pytree(point)
    return structure.jacobian(lambda u: constraint(unravel(u)))(flat.astype(float))


def _equations(constraint: Callable) -> Callable:
    """The constraint as one vector."""
    if not callable(constraint):
        raise ModelError(f"constraint must be a function of the point, not {constraint!r}.")

    def flat(x):
        found = constraint(x)
        parts = [jnp.ravel(jnp.asarray(part)) for part in jax.tree.leaves(found)]
        if not parts or not sum(part.size for part in parts):
            raise ModelError(f"constraint returns no equations, but {described(found)}.")
        if any(not jnp.issubdtype(part.dtype, jnp.floating) for part in parts):
            raise ModelError(
                "constraint returns values that are not real numbers but "
                f"{parts[0].dtype}: return what must be zero, not whether it is."
            )
        return jnp.concatenate(parts)

    return flat


def _number(log_density: Callable) -> Callable:
    if not callable(log_density):
        raise ModelError(f"log_density must be a function of the point, not {log_density!r}.")

    def scalar(x):
        value = log_density(x)
        if value is None or jnp.shape(value) != ():
            shape = "None" if value is None else f"shape {jnp.shape(value)}"
            raise ModelError(f"log_density must return one number, not {shape}.")
        return jnp.asarray(value, float)

    return scalar


def _as_arrays(point: Any) -> np.ndarray | dict[str, np.ndarray]:
    try:
        if isinstance(point, Mapping):
            arrays: Any = {name: np.array(x, dtype=float) for name, x in point.items()}
        else:
            arrays = np.array(point, dtype=float)
    except (TypeError, ValueError) as error:
        raise ModelError(
            f"point must be an array, or a dictionary from names to arrays: {error}."
        ) from error
    if not sum(x.size for x in jax.tree.leaves(arrays)):
        raise ModelError("point has no elements: give one near the manifold.")
    if not all(np.all(np.isfinite(x)) for x in jax.tree.leaves(arrays)):
        raise ModelError("point has elements that are not finite: give one near the manifold.")
    return arrays
