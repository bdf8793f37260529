"""Interpret the sites of a NumPyro model in one run of it.

A latent site is computed from standard normals if there is a map to its distribution. Otherwise it
enters through NumPyro's bijection from the reals, with its density. An observed sample site with
such a map gets a noise input: its value becomes an output that must equal the data. An observed
site without a map stays a likelihood.
"""

import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array, Key
from numpyro.distributions.distribution import Unit
from numpyro.primitives import Messenger
from typing_extensions import override

from coarea.errors import DataError, ModelError
from coarea.generators.distributions import innermost, is_valid, kind_of, out_of_range
from coarea.generators.inputs import Flat
from coarea.generators.normal_maps import from_normal, has_normal_map
from coarea.generators.normal_scores import to_normal

_REFUSED = {
    "param": "numpyro.param is for optimisation, and has no prior: make it a sample site or a "
    "constant",
    "mutable": "numpyro.mutable keeps a state from one call to the next, which a density cannot",
    "control_flow": "numpyro.contrib.control_flow is not supported: write the loop in Python, or "
    "give a simulator that steps through time as a coarea.Markov",
    "prng_key": "numpyro.prng_key draws numbers that are no site: draw them with numpyro.sample",
}


class SiteData(NamedTuple):
    """The data of a site: values, which of them count, and which are in the support."""

    data: Array
    counts: Array
    can_occur: Array


class Interpreter(Messenger):
    """One run of a model that sets the value of every sample site.

    `source(name, fn, is_normal)` returns the coordinates of a site; those of the sites that are in
    `solves` follow from their data. With `checks` the parameters of distributions are validated
    too.
    """

    def __init__(
        self,
        model: Callable,
        data,
        present,
        with_noise_input,
        source: Callable,
        checks: bool = False,
        solves: frozenset[str] = frozenset(),
    ):
        super().__init__(model)
        self._solves = solves
        self._checks = checks
        self._data, self._present, self._wanted, self._source = (
            data,
            present,
            with_noise_input,
            source,
        )
        self.outputs: dict[str, Array] = {}
        self.log_terms: list[Array] = []
        self.coordinates: dict[str, Array] = {}
        self.shapes: dict[str, tuple[tuple[int, ...], bool]] = {}
        self.seen: dict[str, SiteData] = {}
        self.valid: dict[str, Array] = {}  # messages are in `invalid`
        self.invalid: dict[str, str] = {}
        self.sample_sites: list[str] = []
        self.deterministics: list[str] = []
        self.with_noise_input: list[str] = []
        self.without_noise_input: dict[str, str] = {}

    def run(self) -> "Interpreter":
        """Run the model, which fills the attributes above."""
        self()
        return self

    @override
    def process_message(self, msg: Any) -> None:
        """Handle one site; NumPyro calls this."""
        kind, name = msg["type"], msg.get("name")
        if kind in _REFUSED:
            raise ModelError(f"site {name!r}: {_REFUSED[kind]}.")
        if kind == "plate" and msg["args"][1] not in (None, msg["args"][0]):
            raise ModelError(
                f"plate {name!r} has a subsample_size: a posterior given part of the data is "
                "another one. Leave subsample_size out."
            )
        if kind == "deterministic":
            self._new(name)
            self.deterministics.append(name)
            self.outputs[name] = jnp.asarray(msg["value"])
        if kind == "sample":
            self._new(name)
            self.sample_sites.append(name)
            self._sample(msg)

    def _new(self, name):
        if name in self.sample_sites or name in self.deterministics:
            raise ModelError(f"the model has two sites named {name!r}: give each its own name.")

    def _sample(self, msg) -> None:
        name, fn = msg["name"], msg["fn"]
        if shape := msg["kwargs"].get("sample_shape"):
            fn = fn.expand(shape + fn.batch_shape)
        fn, mask = _without_mask(name, fn)
        if self._checks:
            self.valid[name], self.invalid[name] = is_valid(fn), out_of_range(fn)
        if name in self._data:
            msg["value"], msg["is_observed"] = self._data[name], True
        if isinstance(unit := innermost(fn), Unit):  # numpyro.factor
            factor = jnp.broadcast_to(jnp.asarray(unit.log_factor), fn.batch_shape)
            self.log_terms.append(_weighted(msg, mask, factor))
        elif msg["is_observed"]:
            self._observed(msg, fn, mask)
        elif msg["value"] is not None:  # set by handlers.substitute
            self.log_terms.append(_weighted(msg, mask, fn.log_prob(msg["value"])))
            self.outputs[name] = jnp.asarray(msg["value"])
        else:
            self._latent(msg, fn, mask)
        # NumPyro would draw a value for a site that has none.
        assert msg["value"] is not None

    def _latent(self, msg, fn, mask) -> None:
        name = msg["name"]
        if fn.is_discrete:
            raise ModelError(
                f"site {name!r} is a discrete latent ({kind_of(fn)}), and there is no gradient "
                "with respect to a discrete number. Sum it out (numpyro.distributions.Mixture…), "
                "or observe it."
            )
        if mask is not True:
            raise ModelError(
                f"site {name!r} is latent and masked, which leaves it without a prior. Missing "
                "data need no mask: observe a masked array (numpy.ma)."
            )
        if isinstance(delta := innermost(fn), dist.Delta):
            msg["value"] = jnp.broadcast_to(jnp.asarray(delta.v), fn.shape())
            self.log_terms.append(_weighted(msg, True, fn.log_prob(msg["value"])))
        elif has_normal_map(fn) and msg["scale"] is None:
            msg["value"] = from_normal(fn, self._take(name, fn, fn.shape(), is_normal=True))
        else:
            bijection = _bijection(name, fn)
            x = self._take(name, fn, bijection.inverse_shape(fn.shape()), is_normal=False)
            value = msg["value"] = bijection(x)
            self.log_terms.append(_weighted(msg, True, fn.log_prob(value)))
            self.log_terms.append(jnp.sum(bijection.log_abs_det_jacobian(x, value)))
        self.outputs[name] = msg["value"]

    def _observed(self, msg, fn, mask) -> None:
        name = msg["name"]
        data = jnp.asarray(msg["value"])
        if name not in self._data and data.ndim > len(fn.shape()):  # obs= may add batch axes
            fn = fn.expand(data.shape[: data.ndim - fn.event_dim])
        shape = fn.shape()
        if fn.is_discrete is False and jnp.issubdtype(data.dtype, jnp.integer):
            data = data.astype(float)
        try:
            data = jnp.broadcast_to(data, shape)
        except ValueError:
            raise DataError(
                f"observed {name!r} has shape {data.shape}, but the site's distribution has shape "
                f"{shape}."
            ) from None
        present = jnp.broadcast_to(self._present.get(name, np.True_), shape)
        counts = jnp.broadcast_to(_with_events(mask, fn), shape) & present
        can_occur = jnp.broadcast_to(_with_events(fn.support(data), fn), shape)
        self.seen[name] = SiteData(data, counts, can_occur | ~counts | jnp.isnan(data))
        if self._gets_noise_input(msg, fn):
            self.with_noise_input.append(name)
            if name in self._solves:
                self.coordinates[name] = to_normal(fn, data)
                self.outputs[name] = msg["value"] = data
                return
            self.outputs[name] = from_normal(fn, self._take(name, fn, shape, is_normal=True))
            # Later sites get the data rather than the computed value, so that their constraints do
            # not depend on the noise of this site.
            msg["value"] = jnp.where(present, data, self.outputs[name])
            return
        if name in self._present and fn.event_dim:
            raise DataError(
                f"observed {name!r} has missing values, but its distribution ({kind_of(fn)}) is of "
                "vectors, known or missing as a whole. Use numpyro.handlers.mask."
            )
        # Values that do not count are replaced by feasible ones, for a finite log_prob. Missing
        # values become NaN below, so that later sites cannot use them unnoticed.
        known = jnp.where(counts, data, fn.support.feasible_like(data))
        log_prob = fn.log_prob(known)
        if name in self._present:
            mask = mask & present
            data = jnp.where(present, data, jnp.nan)
        msg["value"] = data
        self.log_terms.append(_weighted(msg, mask, log_prob))

    def _gets_noise_input(self, msg, fn) -> bool:
        name = msg["name"]
        if not has_normal_map(fn):
            self.without_noise_input[name] = (
                f"{kind_of(fn)} has no map from normals: it stays a likelihood"
            )
        elif msg["scale"] is not None:
            self.without_noise_input[name] = (
                "its likelihood is scaled, which no draw of noise can be"
            )
        elif self._wanted is None or name in self._wanted:
            return True
        return False

    def _take(self, name, fn, shape, *, is_normal) -> Array:
        self.shapes[name] = (tuple(shape), is_normal)
        self.coordinates[name] = self._source(name, fn, is_normal)
        return self.coordinates[name].reshape(shape)


def drawing(key: Key[Array, ""]):
    """A source of coordinates drawn from the prior."""

    def draw(name, fn, is_normal):
        own = jax.random.fold_in(key, zlib.crc32(name.encode()))
        if is_normal:
            return jax.random.normal(own, fn.shape(), float)
        bijection = dist.biject_to(fn.support)
        try:
            return jnp.asarray(bijection.inv(fn.sample(own)), float)
        except NotImplementedError:  # for example an improper prior
            shape = bijection.inverse_shape(fn.shape())
            return Flat(shape).draw(own).reshape(shape)

    return draw


def _bijection(name, fn):
    try:
        return dist.biject_to(fn.support)
    except NotImplementedError as error:
        raise ModelError(
            f"site {name!r}: {kind_of(fn)} has a support that NumPyro cannot map from the reals "
            f"({fn.support}). Write it as a function of other sites."
        ) from error


def _with_events(mask, fn):
    """Add the event axes of the distribution to a mask over its batch."""
    mask = jnp.asarray(mask)
    return mask if fn.event_dim == 0 else mask.reshape(*mask.shape, *(1,) * fn.event_dim)


def _weighted(msg, mask, log_prob):
    """The contribution of a site to the log density."""
    log_prob = jnp.where(mask, log_prob, 0.0)
    return jnp.sum(log_prob if msg["scale"] is None else msg["scale"] * log_prob)


def _without_mask(name, fn) -> tuple[Any, Any]:
    """The unmasked distribution, and the mask over its batch (True if there is none)."""
    if isinstance(fn, dist.MaskedDistribution):
        inner, mask = _without_mask(name, fn.base_dist)
        return inner, mask & fn._mask
    if isinstance(fn, dist.ExpandedDistribution):
        inner, mask = _without_mask(name, fn.base_dist)
        if mask is True:
            return fn, True
        return inner.expand(fn.batch_shape), jnp.broadcast_to(mask, fn.batch_shape)
    if isinstance(fn, dist.Independent) and _without_mask(name, fn.base_dist)[1] is not True:
        raise ModelError(
            f"site {name!r} masks single elements of its vectors: call to_event before mask, or "
            "leave it out."
        )
    return fn, True
