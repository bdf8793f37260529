"""A NumPyro model as a generator: its latent sites become inputs, any site may be observed.

A latent site is computed from standard normals where there is a map to its distribution; else it
enters by NumPyro's bijection from the reals, with its density. An observed sample site is lifted
where it has such a map: its noise becomes an input and its value an output, equal to the data. Else
it stays a likelihood.
"""

import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array, Key
from numpyro.distributions.distribution import Unit
from numpyro.primitives import Messenger

from coarea.errors import DataError, ModelError
from coarea.generators.distributions import from_normal, has_normal_map
from coarea.generators.generator import AbstractGenerator
from coarea.generators.inputs import Coordinates, Inputs, StandardNormal

# How many prior draws say whether an observation can lie in a support that depends on latents.
_DRAWS = 16
_REFUSED = {
    "param": "numpyro.param is for optimisation, and has no prior: make it a sample site or a "
    "constant",
    "mutable": "numpyro.mutable keeps a state from one call to the next, which a density cannot",
    "control_flow": "numpyro.contrib.control_flow is not supported: write the loop in Python, or "
    "give a simulator that steps through time as a coarea.Markov",
    "prng_key": "numpyro.prng_key draws numbers that are no site: draw them with numpyro.sample",
}


class Held:
    """A model with its arguments: what it closes over belongs to the program that is compiled."""

    def __init__(self, model: Callable, args: tuple, kwargs: Mapping[str, Any]):
        self.model, self.args, self.kwargs = model, args, dict(kwargs)

    def __call__(self):  # noqa: D102
        return self.model(*self.args, **self.kwargs)


class Found(NamedTuple):
    """What a site's data are: their values, which of them count, and which can occur at all."""

    data: Array
    counts: Array
    can_occur: Array


class Program(AbstractGenerator):
    """A NumPyro model, its observed sites chosen. Made by `from_numpyro`.

    `data` are those given for sample sites, by name; where something is missing, `present` says so.
    """

    held: Held = eqx.field(static=True)
    inputs: Inputs
    data: dict[str, np.ndarray]
    present: dict[str, np.ndarray]
    lifted: frozenset[str] = eqx.field(static=True)
    likelihoods: dict[str, np.ndarray]

    @property
    def given(self):  # noqa: D102
        return self.likelihoods

    def outputs(self, u):  # noqa: D102
        return self._run(self._source(u)).outputs

    def log_density(self, u):  # noqa: D102
        terms = self._run(self._source(u)).log_terms
        return self.inputs.log_density(u) + sum(terms, start=jnp.zeros((), u.dtype))

    def draw(self, key):  # noqa: D102
        drawn = self._run(_drawing(key)).coordinates
        return jnp.concatenate([drawn[name].ravel() for name in self.inputs.names])

    def _source(self, u):
        values = self.inputs.values(u)
        return lambda name, fn, is_normal: values[name]

    def _run(self, source) -> "_Interpreter":
        return _Interpreter(self.held, self.data, self.present, self.lifted, source).run()


def from_numpyro(
    model: Callable,
    observed: Mapping[str, Any],
    args: tuple,
    kwargs: Mapping[str, Any],
    lift: Iterable[str] | None,
) -> tuple[Program, dict[str, Any]]:
    """A model as a generator, and the data of those of its outputs that are constrained to them."""
    held = Held(model, args, kwargs)
    wanted = None if lift is None else frozenset([lift] if isinstance(lift, str) else lift)
    data = {name: np.ma.asarray(given) for name, given in observed.items()}
    values = {name: np.ma.getdata(x) for name, x in data.items()}
    present = {name: ~np.ma.getmaskarray(x) for name, x in data.items() if np.ma.is_masked(x)}
    first, seen = _discovered(held, values, present, wanted)
    _check_names(first, observed, wanted)
    given = {name: values[name] for name in first.sample_sites if name in values}
    inputs: dict[str, Any] = {
        name: StandardNormal(shape) if is_normal else Coordinates(shape)
        for name, (shape, is_normal) in first.shapes.items()
    }
    if not inputs:
        raise ModelError("the model has no continuous latent site: there is nothing to infer.")
    exact = {name: data[name] for name in observed if name not in first.sample_sites}
    for name in first.lifted:
        exact[name] = np.ma.masked_array(seen[name].data, mask=~np.asarray(seen[name].counts))
    if not exact:
        raise DataError(
            "nothing is observed exactly: every observed site stays a likelihood "
            f"({', '.join(seen) or 'there is none'}). Observe a deterministic site, or sample such "
            "a model with numpyro.infer.NUTS."
        )
    likelihoods = {
        name: np.asarray(found.data)
        for name, found in seen.items()
        if name not in first.lifted and np.size(found.data)
    }
    return Program(
        held=held,
        inputs=Inputs(inputs),
        data=given,
        present={name: x for name, x in present.items() if name in given},
        lifted=frozenset(first.lifted),
        likelihoods=likelihoods,
    ), exact


def _discovered(held, values, present, wanted) -> tuple["_Interpreter", dict[str, Found]]:
    """The model run at prior draws: its sites, and what its observed ones see."""
    first: _Interpreter | None = None

    def run(key):
        nonlocal first
        interpreter = _Interpreter(held, values, present, wanted, _drawing(key)).run()
        first = interpreter if first is None else first
        return interpreter.seen

    keys = jax.random.split(jax.random.key(0), _DRAWS)
    seen = jax.tree.map(np.asarray, jax.jit(jax.vmap(run))(keys))
    assert first is not None
    for name, found in seen.items():
        if any(not np.array_equal(x, x[:1].repeat(_DRAWS, 0), equal_nan=True) for x in found[:2]):
            raise ModelError(
                f"site {name!r}: its obs= value is computed from latent sites. Name the quantity "
                "with numpyro.deterministic and observe that."
            )
        if not np.all(np.isfinite(found.data[0]) | ~found.counts[0]):
            raise DataError(
                f"observed {name!r} has values that are not finite. If they are missing, mask "
                "them: numpy.ma.masked_invalid(data)."
            )
        if not np.all(np.any(found.can_occur, axis=0)):
            raise DataError(
                f"observed {name!r} has values outside of the support of its distribution: they "
                "cannot occur. Correct the data or the distribution."
            )
    return first, {
        name: Found(found.data[0], found.counts[0], found.can_occur[0])
        for name, found in seen.items()
    }


def _check_names(first: "_Interpreter", observed: Mapping[str, Any], wanted) -> None:
    sites = [*first.sample_sites, *first.deterministics]
    for name in observed:
        if name not in sites:
            raise DataError(
                f"{name!r} is not a site of the model, whose sites are {', '.join(sites)}. A "
                "quantity that is computed becomes a site by numpyro.deterministic(name, value)."
            )
    for name in wanted or ():
        if name not in first.lifted:
            kind = "an observed sample site" if name in sites else "a site of the model"
            why = first.not_lifted.get(name, f"it is not {kind}")
            raise ModelError(f"lift names {name!r}, but {why}.")


class _Interpreter(Messenger):
    """One run of a model, every sample site given its value.

    `source(name, fn, is_normal)` gives the coordinates of a site.
    """

    def __init__(self, held: Held, data, present, lifted, source: Callable):
        super().__init__(held)
        self._data, self._present, self._wanted, self._source = data, present, lifted, source
        self.outputs: dict[str, Array] = {}
        self.log_terms: list[Array] = []
        self.coordinates: dict[str, Array] = {}
        self.shapes: dict[str, tuple[tuple[int, ...], bool]] = {}
        self.seen: dict[str, Found] = {}
        self.sample_sites: list[str] = []
        self.deterministics: list[str] = []
        self.lifted: list[str] = []
        self.not_lifted: dict[str, str] = {}

    def run(self) -> "_Interpreter":
        self()
        return self

    def process_message(self, msg: Any) -> None:
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
        if name in self._data:
            msg["value"], msg["is_observed"] = self._data[name], True
        if isinstance(unit := _innermost(fn), Unit):  # numpyro.factor
            factor = jnp.broadcast_to(jnp.asarray(unit.log_factor), fn.batch_shape)
            self.log_terms.append(_weighted(msg, mask, factor))
        elif msg["is_observed"]:
            self._observed(msg, fn, mask)
        elif msg["value"] is not None:  # by handlers.substitute
            self.log_terms.append(_weighted(msg, mask, fn.log_prob(msg["value"])))
            self.outputs[name] = jnp.asarray(msg["value"])
        else:
            self._latent(msg, fn, mask)
        # NumPyro would draw a value that is None.
        assert msg["value"] is not None

    def _latent(self, msg, fn, mask) -> None:
        name = msg["name"]
        if fn.is_discrete:
            raise ModelError(
                f"site {name!r} is a discrete latent ({_kind(fn)}), and there is no gradient with "
                "respect to a discrete number. Sum it out (numpyro.distributions.Mixture…), or "
                "observe it."
            )
        if mask is not True:
            raise ModelError(
                f"site {name!r} is latent and masked, which leaves it without a prior. Missing "
                "data need no mask: observe a masked array (numpy.ma)."
            )
        if isinstance(delta := _innermost(fn), dist.Delta):
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
        if name not in self._data and data.ndim > len(fn.shape()):  # obs= may have more of them
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
        self.seen[name] = Found(data, counts, can_occur | ~counts | jnp.isnan(data))
        if self._is_lifted(msg, fn):
            self.lifted.append(name)
            self.outputs[name] = from_normal(fn, self._take(name, fn, shape, is_normal=True))
            # What follows sees the data themselves, so that sites do not couple through it.
            msg["value"] = jnp.where(present, data, self.outputs[name])
            return
        if name in self._present and fn.event_dim:
            raise DataError(
                f"observed {name!r} has missing values, but its distribution ({_kind(fn)}) is of "
                "vectors, known or missing as a whole. Use numpyro.handlers.mask."
            )
        # Where nothing counts, anything that can occur; what follows must not use what is missing.
        known = jnp.where(counts, data, fn.support.feasible_like(data))
        log_prob = fn.log_prob(known)
        if name in self._present:
            mask = mask & present
            data = jnp.where(present, data, jnp.nan)
        msg["value"] = data
        self.log_terms.append(_weighted(msg, mask, log_prob))

    def _is_lifted(self, msg, fn) -> bool:
        name = msg["name"]
        if not has_normal_map(fn):
            self.not_lifted[name] = f"{_kind(fn)} has no map from normals: it stays a likelihood"
        elif msg["scale"] is not None:
            self.not_lifted[name] = "its likelihood is scaled, which no draw of noise can be"
        elif self._wanted is None or name in self._wanted:
            return True
        return False

    def _take(self, name, fn, shape, *, is_normal) -> Array:
        self.shapes[name] = (tuple(shape), is_normal)
        self.coordinates[name] = self._source(name, fn, is_normal)
        return self.coordinates[name].reshape(shape)


def _drawing(key: Key[Array, ""]):
    """Coordinates drawn from the prior."""

    def draw(name, fn, is_normal):
        own = jax.random.fold_in(key, zlib.crc32(name.encode()))
        if is_normal:
            return jax.random.normal(own, fn.shape(), float)
        bijection = dist.biject_to(fn.support)
        try:
            return jnp.asarray(bijection.inv(fn.sample(own)), float)
        except NotImplementedError:  # an improper prior, say
            return jax.random.uniform(own, bijection.inverse_shape(fn.shape()), float, -2.0, 2.0)

    return draw


def _bijection(name, fn):
    try:
        return dist.biject_to(fn.support)
    except NotImplementedError as error:
        raise ModelError(
            f"site {name!r}: {_kind(fn)} has a support that NumPyro cannot map from the reals "
            f"({fn.support}). Write it as a function of other sites."
        ) from error


def _with_events(mask, fn):
    """A mask over a batch as one over its elements."""
    mask = jnp.asarray(mask)
    return mask if fn.event_dim == 0 else mask.reshape(*mask.shape, *(1,) * fn.event_dim)


def _weighted(msg, mask, log_prob):
    """What a site adds to the log density."""
    log_prob = jnp.where(mask, log_prob, 0.0)
    return jnp.sum(log_prob if msg["scale"] is None else msg["scale"] * log_prob)


def _innermost(fn) -> Any:
    """A distribution without what repeats it or joins its dimensions."""
    while isinstance(fn, dist.ExpandedDistribution | dist.Independent):
        fn = fn.base_dist
    return fn


def _without_mask(name, fn) -> tuple[Any, Any]:
    """A distribution, and the mask over its batch that was put on it (True if there is none)."""
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


def _kind(fn) -> str:
    return type(_innermost(fn)).__name__
