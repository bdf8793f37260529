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

from coarea.manifolds import small
from coarea.manifolds.posterior import Posterior
from coarea.manifolds.split import AbstractUncoupled
from coarea.manifolds.target import (
    AbstractGeodesic,
    AbstractLinearisation,
    AbstractTarget,
    Evaluation,
    Units,
    in_own_units,
    measured_in,
)


class Lines(AbstractGeodesic):
    """Straight lines, for where there is no constraint."""

    @property
    def quarter_turn(self):  # noqa: D102
        return math.inf

    def project(self, u, p):  # noqa: D102
        return p

    def move(self, u, p, tau):  # noqa: D102
        return u + tau * p, p


class Free(AbstractLinearisation):
    """No constraints."""

    num_inputs: int = eqx.field(static=True)

    def project(self, p):  # noqa: D102
        return p

    def apply(self, p):  # noqa: D102
        return p[:0]

    def apply_transpose(self, lam):  # noqa: D102
        return jnp.zeros(self.num_inputs, lam.dtype)

    def solve_gram(self, b):  # noqa: D102
        return b

    def pseudo_inverse(self, b):  # noqa: D102
        return self.apply_transpose(b)

    def solve_newton(self, older, b):  # noqa: D102
        return b

    def half_log_det(self):  # noqa: D102
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
    def scale(self):  # noqa: D102
        return self.posterior.scale

    @property
    def extent(self):  # noqa: D102
        return jnp.ones(())

    @property
    def normals(self):  # noqa: D102
        return np.zeros(self.num_inputs, bool)

    @property
    def observed(self):  # noqa: D102
        return self.posterior.observed

    @property
    def structure(self) -> str:
        """What was found, in words."""
        return self.posterior.structure

    @property
    def is_cheap(self):  # noqa: D102
        return True

    def chains_together(self, num_chains):  # noqa: D102
        return self._shape.chains_together(num_chains)

    @property
    def closed_form(self):  # noqa: D102
        return Lines()

    @property
    def ambient(self):  # noqa: D102
        return self.posterior

    def embed(self, u):
        """All inputs: the coordinates, and the noise with which they reproduce the data."""
        return self._solved(u)[0]

    def restrict(self, u):  # noqa: D102
        return measured_in(self._shape.shared_inputs.take(u), self.units)

    def metric(self, u):
        """A = I + WᵀW, in which a change of coordinates is as long as that of all inputs."""
        V, B = self._shape.pieces(self.posterior.residual, self.embed(u))
        W = self._shape.local(B).solve(V)
        A = jnp.eye(W.shape[0], dtype=W.dtype) + small.outer_products(W, W)
        if self.units is None:
            return A
        R = jnp.diag(self.units) if self.units.ndim == 1 else self.units
        return R.T @ A @ R

    def in_units(self, units):  # noqa: D102
        return replace(self, units=units)

    def residual(self, u):  # noqa: D102
        return u[:0]

    def linearise(self, u):  # noqa: D102
        return Free(u.size)

    def evaluate(self, u):  # noqa: D102
        log_density, gradient = jax.value_and_grad(self._log_density)(u)
        return Evaluation(self.linearise(u), log_density, gradient)

    def _log_density(self, u):
        whole, log_det = self._solved(u)
        return self.posterior.generator.log_density(whole) - log_det

    def _solved(self, u):
        """All inputs that these coordinates stand for, and log |det B|."""
        shape, inputs = self._shape, self.posterior.generator.inputs
        v = in_own_units(u, self.units)
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

    def guess(self, key):  # noqa: D102
        return self.restrict(self.posterior.guess(key))

    def latents(self, u):  # noqa: D102
        return self.posterior.latents(self.embed(u))

    @property
    def fixed(self):  # noqa: D102
        return self.posterior.fixed

    def inputs(self, u):  # noqa: D102
        return self.posterior.inputs(self.embed(u))

    def describe(self, constraint):  # noqa: D102
        return self.posterior.describe(constraint)
