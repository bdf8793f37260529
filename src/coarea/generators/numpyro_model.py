"""A NumPyro model as a generator: its latent sites become inputs, any site may be observed."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from coarea.errors import DataError, ModelError
from coarea.generators.generator import AbstractGenerator
from coarea.generators.inputs import Flat, Inputs, StandardNormal
from coarea.generators.numpyro_sites import Found, Interpreter, drawing

# How many prior draws say whether an observation can lie in a support that depends on latents.
_DRAWS = 16


class Held:
    """A model with its arguments: what it closes over belongs to the program that is compiled."""

    def __init__(self, model: Callable, args: tuple, kwargs: Mapping[str, Any]):
        self.model, self.args, self.kwargs = model, args, dict(kwargs)

    def __call__(self):  # noqa: D102
        return self.model(*self.args, **self.kwargs)


class Program(AbstractGenerator):
    """A NumPyro model, its observed sites chosen. Made by `from_numpyro`.

    `data` are those given for sample sites, by name; where something is missing, `present` says so.
    """

    held: Held = eqx.field(static=True)
    inputs: Inputs
    parameters: tuple[str, ...] | None = eqx.field(static=True, default=None, init=False)
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
        drawn = self._run(drawing(key)).coordinates
        return jnp.concatenate([drawn[name].ravel() for name in self.inputs.names])

    def _source(self, u):
        values = self.inputs.values(u)
        return lambda name, fn, is_normal: values[name]

    def _run(self, source) -> "Interpreter":
        return Interpreter(self.held, self.data, self.present, self.lifted, source).run()


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
        name: StandardNormal(shape) if is_normal else Flat(shape)
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


def _discovered(held, values, present, wanted) -> tuple["Interpreter", dict[str, Found]]:
    """The model run at prior draws: its sites, and what its observed ones see."""
    first: Interpreter | None = None

    def run(key):
        nonlocal first
        interpreter = Interpreter(held, values, present, wanted, drawing(key)).run()
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


def _check_names(first: "Interpreter", observed: Mapping[str, Any], wanted) -> None:
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
