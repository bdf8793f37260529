"""NumPyro distributions as inputs: a map from standard normals, or an unconstrained density."""

import contextlib
import math
import sys
from functools import singledispatch
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
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
from typing_extensions import override

from coarea.errors import ModelError
from coarea.generators.inputs import AbstractInput, standard_normal_log_density


def _bind_submodules() -> None:
    """Make every loaded module of NumPyro an attribute of its package, as an import should.

    If arviz-base was imported first, NumPyro is loaded lazily and some attributes are missing;
    `numpyro.factor` then fails.
    """
    for name, module in list(sys.modules.items()):
        package, _, last = name.rpartition(".")
        if package.startswith("numpyro") and not hasattr(sys.modules[package], last):
            setattr(sys.modules[package], last, module)


_bind_submodules()

_TRUNCATED = (
    LeftTruncatedDistribution,
    RightTruncatedDistribution,
    TwoSidedTruncatedDistribution,
)


class MappedNormal(AbstractInput):
    """A distribution computed from standard normals by a known map, so that ρ stays normal."""

    distribution: dist.Distribution

    @property
    @override
    def is_standard_normal(self):
        return True

    @property
    @override
    def size(self):
        return math.prod(self.distribution.shape())

    @override
    def value(self, u):
        return from_normal(self.distribution, u.reshape(self.distribution.shape()))

    @override
    def log_density(self, u):
        return standard_normal_log_density(u)

    @override
    def draw(self, key):
        return jax.random.normal(key, (self.size,))


class Unconstrained(AbstractInput):
    """Any continuous distribution, through NumPyro's bijection from the reals to its support."""

    distribution: dist.Distribution

    @property
    @override
    def is_standard_normal(self):
        return False

    @property
    @override
    def size(self):
        return math.prod(self._shape)

    @property
    def _shape(self):
        return self._bijection.inverse_shape(self.distribution.shape())

    @property
    def _bijection(self):
        return dist.biject_to(self.distribution.support)

    @override
    def value(self, u):
        return self._bijection(u.reshape(self._shape))

    @override
    def log_density(self, u):
        x = u.reshape(self._shape)
        value = self._bijection(x)
        volume = self._bijection.log_abs_det_jacobian(x, value)
        return jnp.sum(self.distribution.log_prob(value)) + jnp.sum(volume)

    @property
    @override
    def is_proper(self):
        try:
            jax.eval_shape(self.distribution.sample, jax.random.key(0))
        except NotImplementedError:
            return False
        return True

    @override
    def draw(self, key):
        if not self.is_proper:
            return jax.random.normal(key, (self.size,))
        return self._bijection.inv(self.distribution.sample(key)).ravel()


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


def is_valid(distribution: dist.Distribution) -> Array:
    """Whether all parameters are in their allowed range."""
    checks = [jnp.asarray(True)]
    for name, constraint in distribution.arg_constraints.items():
        with contextlib.suppress(ValueError, NotImplementedError):  # depends on other parameters
            value = getattr(distribution, name, None)
            checks.append(jnp.asarray(True if value is None else constraint(value)))
    low, high = (getattr(distribution, name, None) for name in ("low", "high"))
    if low is not None and high is not None:
        checks.append(jnp.asarray(low) < jnp.asarray(high))
    if isinstance(base := getattr(distribution, "base_dist", None), dist.Distribution):
        checks.append(is_valid(base))
    return jnp.all(jnp.stack([jnp.all(check) for check in checks]))


def out_of_range(distribution: dist.Distribution) -> str:
    """The error message for a distribution with invalid parameters."""
    return (
        f"the parameters of {kind_of(distribution)} are out of range, so that it has no density: a "
        "scale must be positive, a lower end below the upper one, a concentration positive, a "
        "probability between 0 and 1."
    )


def innermost(distribution: dist.Distribution) -> Any:
    """The distribution without the wrappers that `expand` and `to_event` add."""
    while isinstance(distribution, dist.ExpandedDistribution | dist.Independent):
        distribution = distribution.base_dist
    return distribution


def kind_of(distribution: dist.Distribution) -> str:
    """The name of the distribution's family."""
    return type(innermost(distribution)).__name__


def input_from(name: str, given: Any) -> AbstractInput:
    """The input called `name`, made from a NumPyro distribution."""
    if not isinstance(given, dist.Distribution):
        raise ModelError(
            f"input {name!r}: expected a shape (such as 4 or (50, 2), for standard normals) or a "
            f"NumPyro distribution, got {type(given).__name__}."
        )
    if given.is_discrete:
        raise ModelError(
            f"input {name!r} is discrete ({type(given).__name__}), and there is no gradient with "
            "respect to a discrete number. Marginalise it inside the generator, or replace it by "
            "a continuous relaxation."
        )
    if not np.all(is_valid(given)):
        raise ModelError(f"input {name!r}: {out_of_range(given)}")
    if isinstance(given, dist.Delta):
        raise ModelError(f"input {name!r} is not random (Delta): write it into the generator.")
    if has_normal_map(given):
        return MappedNormal(given)
    try:
        unconstrained = Unconstrained(given)
        eqx.filter_eval_shape(unconstrained.value, jnp.zeros(unconstrained.size))
    except NotImplementedError as error:
        raise ModelError(
            f"input {name!r}: {type(given).__name__} has a support that NumPyro cannot map from "
            f"the reals ({given.support}). Write it as a function of another input."
        ) from error
    return unconstrained
