"""Maps from standard normals to draws from NumPyro distributions, accurate in the tails."""

import math
from functools import singledispatch
from typing import Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.lax import erf_inv
from jax.scipy.special import erf, log_ndtr, ndtr, ndtri
from jaxtyping import Array
from numpyro.distributions.transforms import AbsTransform
from numpyro.distributions.truncated import (
    LeftTruncatedDistribution,
    RightTruncatedDistribution,
    TwoSidedTruncatedDistribution,
)

_TRUNCATED = (
    LeftTruncatedDistribution,
    RightTruncatedDistribution,
    TwoSidedTruncatedDistribution,
)


def has_normal_map(distribution: dist.Distribution) -> bool:
    """Whether `from_normal` supports the distribution, with one normal for each element."""
    if from_normal.dispatch(type(distribution)) is from_normal.dispatch(object):
        return False
    if isinstance(distribution, dist.TransformedDistribution):
        same_shape = distribution.shape() == distribution.base_dist.shape()
        # An absolute value has two noise values for each value. No chain would move between them.
        folds = any(isinstance(t, AbsTransform) for t in distribution.transforms)
        return same_shape and not folds and has_normal_map(distribution.base_dist)
    if isinstance(distribution, dist.ExpandedDistribution | dist.Independent):
        return has_normal_map(distribution.base_dist)
    if isinstance(distribution, _TRUNCATED):
        return isinstance(distribution.base_dist, dist.Normal)
    return True


@singledispatch
def from_normal(distribution: dist.Distribution, n: Any) -> Any:
    """Map standard normals `n`, with the shape of the distribution, to a draw from it.

    Each map uses log Φ(n) or log Φ(−n), whichever is small. It is therefore accurate even where
    Φ(n) itself rounds to one.
    """
    raise TypeError(type(distribution))


@from_normal.register
def _(distribution: dist.Normal, n):
    loc, scale = _spread(n, distribution.loc, distribution.scale)
    return loc + scale * n


@from_normal.register
def _(distribution: dist.MultivariateNormal, n):
    (loc,) = _spread(n, distribution.loc)
    return loc + jnp.squeeze(distribution.scale_tril @ n[..., None], -1)


@from_normal.register
def _(distribution: dist.Uniform, n):
    low, high = _spread(n, distribution.low, distribution.high)
    part = (high - low) * ndtr(-jnp.abs(n))
    return jnp.where(n < 0, low + part, high - part)


@from_normal.register
def _(distribution: dist.Exponential, n):
    (rate,) = _spread(n, distribution.rate)
    return _exponential(n) / rate


@from_normal.register
def _(distribution: dist.Weibull, n):
    scale, concentration = _spread(n, distribution.scale, distribution.concentration)
    return scale * _exponential(n) ** (1 / concentration)


@from_normal.register
def _(distribution: dist.Gumbel, n):
    loc, scale = _spread(n, distribution.loc, distribution.scale)
    return loc - scale * jnp.log(_exponential(-n))


@from_normal.register
def _(distribution: dist.Logistic, n):
    loc, scale = _spread(n, distribution.loc, distribution.scale)
    return loc + scale * (log_ndtr(n) - log_ndtr(-n))


@from_normal.register
def _(distribution: dist.Laplace, n):
    loc, scale = _spread(n, distribution.loc, distribution.scale)
    part = math.log(2) + log_ndtr(-jnp.abs(n))
    return loc + scale * jnp.where(n < 0, part, -part)


@from_normal.register
def _(distribution: dist.Cauchy, n):
    loc, scale = _spread(n, distribution.loc, distribution.scale)
    far = _tangent(jnp.abs(n), 2 * ndtr(-jnp.abs(n)), erf(jnp.abs(n) / math.sqrt(2)))
    return loc + scale * jnp.where(n < 0, -far, far)


@from_normal.register
def _(distribution: dist.HalfCauchy, n):
    (scale,) = _spread(n, distribution.scale)
    return scale * _tangent(n, ndtr(-n), ndtr(n))


@from_normal.register
def _(distribution: dist.HalfNormal, n):
    (scale,) = _spread(n, distribution.scale)
    is_low = n < 0
    # Φ(x) = (1 + Φ(n)) / 2. Near zero the inverse error function is accurate.
    low = math.sqrt(2) * erf_inv(ndtr(jnp.where(is_low, n, -1.0)))
    high = -inverse_log_ndtr(log_ndtr(-jnp.where(is_low, 1.0, n)) - math.log(2))
    return scale * jnp.where(is_low, low, high)


@from_normal.register
def _(distribution: LeftTruncatedDistribution, n):
    return _truncated_normal(n, distribution.base_dist, low=distribution.low)


@from_normal.register
def _(distribution: RightTruncatedDistribution, n):
    return _truncated_normal(n, distribution.base_dist, high=distribution.high)


@from_normal.register
def _(distribution: TwoSidedTruncatedDistribution, n):
    return _truncated_normal(n, distribution.base_dist, distribution.low, distribution.high)


@from_normal.register
def _(distribution: dist.TransformedDistribution, n):
    x = from_normal(distribution.base_dist, n)
    for transform in distribution.transforms:
        x = transform(x)
    return x


@from_normal.register(dist.ExpandedDistribution)
@from_normal.register(dist.Independent)
def _(distribution, n):
    return from_normal(distribution.base_dist, n)


def _spread(n, *parameters) -> list[Array]:
    """Broadcast parameters to the shape of n; an expanded distribution has smaller ones."""
    return [jnp.broadcast_to(x, n.shape) for x in parameters]


def _exponential(n):
    return -log_ndtr(-n)


def _tangent(n, above, below):
    """tan(π/2 below), where below + above = 1, computed from the one that is small at n."""
    is_far = n > 0.5
    near = jnp.tan(0.5 * math.pi * jnp.where(is_far, 0.5, below))
    far = 1 / jnp.tan(0.5 * math.pi * jnp.where(is_far, above, 0.5))
    return jnp.where(is_far, far, near)


def _truncated_normal(n, base: dist.Distribution, low: Any = None, high: Any = None):
    """Map standard normals n to a normal distribution truncated to [low, high].

    Φ(x) divides the interval from Φ(a) to Φ(b) in the ratio Φ(n) : Φ(−n). So do the complements.
    """
    assert isinstance(base, dist.Normal)
    loc, scale = _spread(n, base.loc, base.scale)
    to_low, to_high = log_ndtr(-n), log_ndtr(n)
    if high is None:
        (a,) = _spread(n, (low - base.loc) / base.scale)
        below = jnp.logaddexp(log_ndtr(a) + to_low, to_high)
        above = log_ndtr(-a) + to_low
    elif low is None:
        (b,) = _spread(n, (high - base.loc) / base.scale)
        below = log_ndtr(b) + to_high
        above = jnp.logaddexp(log_ndtr(-b) + to_high, to_low)
    else:
        a, b = _spread(n, (low - base.loc) / base.scale, (high - base.loc) / base.scale)
        below = jnp.logaddexp(log_ndtr(a) + to_low, log_ndtr(b) + to_high)
        above = jnp.logaddexp(log_ndtr(-a) + to_low, log_ndtr(-b) + to_high)
    is_below = below < above
    x = inverse_log_ndtr(jnp.where(is_below, below, above))
    x = loc + scale * jnp.where(is_below, x, -x)
    # Rounding must not leave the support. stop_gradient keeps the derivative of the map.
    return x + jax.lax.stop_gradient(jnp.clip(x, low, high) - x)


@jax.custom_jvp
def inverse_log_ndtr(y: Any) -> Any:
    """The x with log Φ(x) = y, for all y ≤ log ½."""
    # Where exp(y) underflows, use Newton's method. It starts from the leading term of
    # log Φ(x) ≈ −x²/2 − log|x| − ½ log 2π.
    is_far = y < -500.0
    near = ndtri(jnp.exp(jnp.where(is_far, -1.0, y)))
    far = jnp.where(is_far, y, -500.0)

    def closer(_, x):
        reached = log_ndtr(x)
        return x - (reached - far) * jnp.exp(reached - _log_normal_density(x))

    return jnp.where(is_far, jax.lax.fori_loop(0, 4, closer, -jnp.sqrt(-2 * far)), near)


@inverse_log_ndtr.defjvp
def _(primals, tangents):
    (y,), (dy,) = primals, tangents
    x = inverse_log_ndtr(y)
    return x, dy * jnp.exp(y - _log_normal_density(x))


def _log_normal_density(x):
    return -0.5 * x**2 - 0.5 * math.log(2 * math.pi)
