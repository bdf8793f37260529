"""NumPyro distributions as inputs: a map from standard normals, or an unconstrained density."""

import math
from functools import singledispatch
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.scipy.special import log_ndtr, ndtr

from coarea.errors import ModelError
from coarea.generators.inputs import AbstractInput, standard_normal_log_density


class MappedNormal(AbstractInput):
    """A distribution reached from standard normals by a known map, so that ρ stays normal."""

    distribution: dist.Distribution

    @property
    def is_standard_normal(self):  # noqa: D102
        return True

    @property
    def size(self):  # noqa: D102
        return math.prod(self.distribution.shape())

    def value(self, u):  # noqa: D102
        return from_normal(self.distribution, u.reshape(self.distribution.shape()))

    def log_density(self, u):  # noqa: D102
        return standard_normal_log_density(u)

    def draw(self, key):  # noqa: D102
        return jax.random.normal(key, (self.size,))


class Unconstrained(AbstractInput):
    """Any continuous distribution, by NumPyro's bijection from the reals onto its support."""

    distribution: dist.Distribution

    @property
    def is_standard_normal(self):  # noqa: D102
        return False

    @property
    def size(self):  # noqa: D102
        return math.prod(self._shape)

    @property
    def _shape(self):
        return self._bijection.inverse_shape(self.distribution.shape())

    @property
    def _bijection(self):
        return dist.biject_to(self.distribution.support)

    def value(self, u):  # noqa: D102
        return self._bijection(u.reshape(self._shape))

    def log_density(self, u):  # noqa: D102
        x = u.reshape(self._shape)
        value = self._bijection(x)
        volume = self._bijection.log_abs_det_jacobian(x, value)
        return jnp.sum(self.distribution.log_prob(value)) + jnp.sum(volume)

    def draw(self, key):  # noqa: D102
        return self._bijection.inv(self.distribution.sample(key)).ravel()


@singledispatch
def from_normal(distribution: dist.Distribution, n: Any) -> Any:
    """Map standard normals `n`, of the distribution's own shape, to a draw from it."""
    raise TypeError(type(distribution))


@from_normal.register
def _(distribution: dist.Normal, n):
    return distribution.loc + distribution.scale * n


@from_normal.register
def _(distribution: dist.MultivariateNormal, n):
    return distribution.loc + jnp.squeeze(distribution.scale_tril @ n[..., None], -1)


@from_normal.register
def _(distribution: dist.Uniform, n):
    low, high = jnp.asarray(distribution.low), jnp.asarray(distribution.high)
    return low + (high - low) * ndtr(n)


@from_normal.register
def _(distribution: dist.Exponential, n):
    # The tail form: -log(1 - Φ(n)) stays accurate where Φ(n) rounds to one.
    return -log_ndtr(-n) / distribution.rate


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


def has_normal_map(distribution: dist.Distribution) -> bool:
    """Whether `from_normal` reaches the distribution, coordinate for coordinate."""
    if from_normal.dispatch(type(distribution)) is from_normal.dispatch(object):
        return False
    if isinstance(distribution, dist.TransformedDistribution):
        same_shape = distribution.shape() == distribution.base_dist.shape()
        return same_shape and has_normal_map(distribution.base_dist)
    if isinstance(distribution, dist.ExpandedDistribution | dist.Independent):
        return has_normal_map(distribution.base_dist)
    return True


def input_from(name: str, given: Any) -> AbstractInput:
    """The input called `name`, from a NumPyro distribution."""
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
