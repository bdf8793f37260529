"""A posterior in coordinates: where noise can be solved for, the other inputs say all.

If every constraint has local noise of its own that enters it as a summand, whatever its factor,
c(v, n) = c(v, 0) + B(v) n with B square, the manifold is the graph of n(v) = −B(v)⁻¹ c(v, 0). Then
v has a density of its own, ρ(v, n(v)) / |det B(v)|: the posterior without its determinant |A|,
since that is the volume of the graph over v. Nothing is projected, and a step costs a gradient.

What is lost is the metric. On the manifold equal steps are equal changes of all inputs; in the
chart that metric is A(v) = I + WᵀW, W = B⁻¹V, of which warm-up can use no more than an average.
While A changes little this loses nothing. Where noise is small, and yet v left open, it changes
much, and the manifold is the place to move.
"""

import math
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from typing_extensions import override

from coarea.jacobians.linalg import small
from coarea.jacobians.split import AbstractUncoupled
from coarea.jacobians.structure import AbstractLinearisation
from coarea.manifolds.posterior import Posterior
from coarea.manifolds.target import (
    AbstractGeodesic,
    AbstractTarget,
    Evaluation,
    Units,
    to_model_space,
    to_sampler_space,
)


class Lines(AbstractGeodesic):
    """Straight lines, for where there is no constraint."""

    @property
    @override
    def max_flow_time(self):
        return math.inf

    @override
    def project(self, u, p):
        return p

    @override
    def move(self, u, p, tau):
        return u + tau * p, p


class Free(AbstractLinearisation):
    """No constraints."""

    num_inputs: int = eqx.field(static=True)

    @override
    def project(self, p):
        return p

    @override
    def apply(self, p):
        return p[:0]

    @override
    def apply_transpose(self, lam):
        return jnp.zeros(self.num_inputs, lam.dtype)

    @override
    def solve_gram(self, b):
        return b

    @override
    def pseudo_inverse(self, b):
        return self.apply_transpose(b)

    @override
    def solve_newton(self, previous, b):
        return b

    @override
    def half_log_det(self):
        return jnp.zeros(())


class Chart(AbstractTarget):
    """A posterior whose local noise is solved for: a density of its other inputs, the coordinates.

    Its positions are those. Made by `condition(…, structure="chart")`.
    """

    posterior: Posterior
    units: Units | None = None

    @property
    def _shape(self) -> AbstractUncoupled:
        assert isinstance(self.posterior.shape, AbstractUncoupled)
        return self.posterior.shape

    @property
    def num_inputs(self):
        """The number of coordinates."""
        return len(self._shape.shared_inputs)

    @property
    def num_constraints(self):
        """None is left."""
        return 0

    @property
    @override
    def scale(self):
        return self.posterior.scale

    @property
    @override
    def extent(self):
        return jnp.ones(())

    @property
    @override
    def normals(self):
        return np.zeros(self.num_inputs, bool)

    @property
    @override
    def observed(self):
        return self.posterior.observed

    @property
    def structure(self) -> str:
        """What was found, in words."""
        return self.posterior.structure

    @property
    @override
    def is_cheap(self):
        return True

    @override
    def vmap_width(self, num_chains):
        return self._shape.vmap_width(num_chains)

    @property
    @override
    def closed_form(self):
        return Lines()

    @property
    @override
    def ambient(self):
        return self.posterior

    def embed(self, u):
        """All inputs: the coordinates, and the noise with which they reproduce the data."""
        return self._solved(u)[0]

    @override
    def restrict(self, u):
        return to_sampler_space(self._shape.shared_inputs.take(u), self.units)

    def metric(self, u):
        """A = I + WᵀW, in which a change of coordinates is as long as that of all inputs."""
        V, B = self._shape.pieces(self.posterior.residual, self.embed(u))
        W = self._shape.local(B).solve(V)
        A = jnp.eye(W.shape[0], dtype=W.dtype) + small.outer_products(W, W)
        if self.units is None:
            return A
        R = jnp.diag(self.units) if self.units.ndim == 1 else self.units
        return R.T @ A @ R

    @override
    def in_units(self, units):
        return replace(self, units=units)

    @override
    def residual(self, u):
        return u[:0]

    @override
    def linearise(self, u):
        return Free(u.size)

    @override
    def evaluate(self, u):
        log_density, gradient = jax.value_and_grad(self._log_density)(u)
        return Evaluation(self.linearise(u), log_density, gradient)

    def _log_density(self, u):
        whole, log_det = self._solved(u)
        return self.posterior.generator.log_density(whole) - log_det

    def _solved(self, u):
        """All inputs that these coordinates stand for, and log |det B|."""
        shape, inputs = self._shape, self.posterior.generator.inputs
        v = to_model_space(u, self.units)
        silent = shape.shared_inputs.put(jnp.zeros(inputs.size, v.dtype), v)
        noisy = set(inputs.groups[shape.local_inputs.flat[~shape.local_inputs.is_pad]])

        def residual(n):
            # Inputs without noise are kept apart: what is computed from them alone then has no
            # tangent, rather than one of zeros.
            parts = enumerate(zip(inputs.split(silent), inputs.split(put(n)), strict=True))
            return self.posterior.residual(tuple(pair[i in noisy] for i, pair in parts))

        def put(n):
            return shape.local_inputs.put(silent, n)

        value, B = shape.local_pieces(residual, jnp.zeros(shape.local_inputs.flat.size, v.dtype))
        local = shape.local(B)
        return put(-local.rotate_transpose(local.solve(value[None])[0])), local.log_det()

    @override
    def guess(self, key):
        return self.restrict(self.posterior.guess(key))

    @override
    def latents(self, u):
        return self.posterior.latents(self.embed(u))

    @property
    @override
    def fixed(self):
        return self.posterior.fixed

    @override
    def inputs(self, u):
        return self.posterior.inputs(self.embed(u))

    @override
    def describe(self, constraint):
        return self.posterior.describe(constraint)
