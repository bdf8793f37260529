"""NumPyro distributions as inputs: a map from standard normals, or an unconstrained density."""

import contextlib
import math
import sys
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array
from typing_extensions import override

from coarea.errors import ModelError
from coarea.generators.inputs import AbstractInput, standard_normal_log_density
from coarea.generators.normal_maps import from_normal, has_normal_map


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
