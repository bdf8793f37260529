"""The inverse of the maps from standard normals: which normals stand for a value."""

from typing import Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array

from coarea.generators.normal_maps import from_normal

# No double is further out in the tail of a normal than this.
_FARTHEST = 38.0
_HALVINGS = 50
_NEWTON_STEPS = 3


def to_normal(distribution: dist.Distribution, value: Any) -> Any:
    """The standard normals that `from_normal` maps to `value`, with the shape of both."""
    if isinstance(distribution, dist.ExpandedDistribution | dist.Independent):
        return to_normal(distribution.base_dist, value)
    if isinstance(distribution, dist.TransformedDistribution):
        for transform in reversed(distribution.transforms):
            value = transform.inv(value)
        return to_normal(distribution.base_dist, value)
    if isinstance(distribution, dist.Normal):
        loc: Any = distribution.loc
        scale: Any = distribution.scale
        return (value - _like(loc, value)) / _like(scale, value)
    if isinstance(distribution, dist.MultivariateNormal):
        loc = distribution.loc
        centred = (value - _like(loc, value))[..., None]
        factor: Any = distribution.scale_tril
        triangle = jnp.broadcast_to(factor, (*value.shape[:-1], *factor.shape[-2:]))
        return jax.scipy.linalg.solve_triangular(triangle, centred, lower=True)[..., 0]
    return _by_bisection(lambda n: from_normal(distribution, n), value)


def _like(parameter: Any, value: Array) -> Array:
    return jnp.broadcast_to(parameter, value.shape)


def _by_bisection(increasing, value: Array) -> Array:
    """Solve increasing(n) = value for each element, to the last digits by Newton's method."""

    def halve(_, ends):
        low, high = ends
        middle = 0.5 * (low + high)
        is_below = increasing(middle) < value
        return jnp.where(is_below, middle, low), jnp.where(is_below, high, middle)

    farthest = jnp.full_like(value, _FARTHEST)
    low, high = jax.lax.fori_loop(0, _HALVINGS, halve, (-farthest, farthest))

    def improve(_, n):
        found, slope = jax.jvp(increasing, (n,), (jnp.ones_like(n),))
        better = jnp.clip(n - (found - value) / slope, low - 1e-6, high + 1e-6)
        return jnp.where(jnp.isfinite(better), better, n)

    return jax.lax.fori_loop(0, _NEWTON_STEPS, improve, 0.5 * (low + high))
