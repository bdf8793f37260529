"""A NumPyro model as a generator: latent sites become inputs, and any site may be observed."""

import contextlib
import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from typing_extensions import override

from coarea.errors import DataError, ModelError
from coarea.generators.data import real_values
from coarea.generators.explicit import ExplicitNoise
from coarea.generators.generator import AbstractGenerator
from coarea.generators.inputs import Flat, Inputs, StandardNormal
from coarea.generators.numpyro_sites import Interpreter, SiteData, drawing
from coarea.tracing import Traced, trace
from coarea.xla import jit_fast_compile

# Number of prior draws at which observations are checked against the support of their site.
_DRAWS = 16
WHAT = "the NumPyro model"


class NumPyroGenerator(AbstractGenerator):
    """A NumPyro model with a choice of observed sites; made by `from_numpyro`.

    `data` holds the data of sample sites by name. `present` marks the values that are not missing,
    for sites with missing values. `run` computes the outputs and the log density from values and
    data. `prior` draws coordinates from a key.
    """

    inputs: Inputs
    parameters: tuple[str, ...] | None = eqx.field(static=True, default=None, init=False)
    run: Traced
    prior: Traced
    data: dict[str, np.ndarray]
    present: dict[str, np.ndarray]
    likelihoods: dict[str, np.ndarray]
    without_noise: ExplicitNoise | None = None

    @property
    @override
    def explicit(self):
        return self.without_noise

    @property
    @override
    def given(self):
        return self.likelihoods

    @override
    def frozen(self):
        return self

    @override
    def outputs(self, u):
        return dict(self._run(u)[0])

    @override
    def log_density(self, u):
        return self.inputs.log_density(u) + self._run(u)[1]

    @override
    def draw(self, key):
        return self.prior(key, self.data, self.present)

    def _run(self, u):
        return self.run(self.inputs.values(u), self.data, self.present)


def from_numpyro(
    model: Callable,
    observed: Mapping[str, Any],
    args: tuple,
    kwargs: Mapping[str, Any],
    noise_inputs: Iterable[str] | None,
) -> tuple[NumPyroGenerator, dict[str, Any]]:
    """The model as a generator, and the data of its exactly observed outputs."""
    if not (noise_inputs is None or isinstance(noise_inputs, Iterable)):
        raise ModelError(
            f"noise_inputs={noise_inputs!r}: give the names of observed sites, such as ['y']."
        )
    wanted = (
        None
        if noise_inputs is None
        else frozenset([noise_inputs] if isinstance(noise_inputs, str) else noise_inputs)
    )
    args, kwargs = _copied((args, dict(kwargs)))
    held = functools.partial(model, *args, **kwargs)
    data = {name: real_values(name, given) for name, given in observed.items()}
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
    for name in first.with_noise_input:
        exact[name] = np.ma.masked_array(seen[name].data, mask=~np.asarray(seen[name].counts))
    likelihoods = {
        name: np.asarray(found.data) for name, found in seen.items() if np.size(found.data)
    }
    if not exact and not likelihoods:
        raise DataError(
            "nothing is observed. Name the observed sites and their values, "
            "condition(model, {'y': …}), or give the model its data by obs=."
        )
    present = {name: x for name, x in present.items() if name in given}

    def generator(with_noise_input: Iterable[str], **fields) -> NumPyroGenerator:
        """The model with noise inputs for some of the sites that can have them."""
        has_none = set(first.with_noise_input) - set(with_noise_input)
        kept = Inputs({name: part for name, part in inputs.items() if name not in has_none})
        run, prior = _frozen(held, kept, given, present, frozenset(with_noise_input))
        return NumPyroGenerator(
            inputs=kept,
            run=run,
            prior=prior,
            data=given,
            present=present,
            likelihoods={n: x for n, x in likelihoods.items() if n not in with_noise_input},
            **fields,
        )

    # A missing value is latent only if its site has noise inputs.
    sites = tuple(name for name in first.with_noise_input if name not in present)
    explicit = None
    if sites and len(inputs) > len(sites):
        # A site whose map from normals works may have no density that does.
        with contextlib.suppress(ModelError):
            without = generator(set(first.with_noise_input) - set(sites))
            noise = _noise(held, without, sites, given, present)
            explicit = ExplicitNoise(without, sites, Inputs(inputs), noise)
    return generator(first.with_noise_input, without_noise=explicit), exact


def _copied(tree: Any) -> Any:
    """Copy all arrays, so that later changes have no effect.

    A fresh array also has no cached JAX version in another precision.
    """
    return jax.tree.map(lambda x: np.array(x) if isinstance(x, np.ndarray) else x, tree)


def _noise(held, without: NumPyroGenerator, sites, data, present) -> Traced:
    """The noise of some sites, computed from the inputs without it."""
    with_noise_input = frozenset((*sites, *without.inputs.names))

    def noise(values):
        def source(name, fn, is_normal):
            return values.get(name, jnp.zeros(fn.shape()))

        run = Interpreter(held, data, present, with_noise_input, source, solves=frozenset(sites))
        found = run.run().coordinates
        return {name: found[name] for name in sites}

    return trace(noise, without.inputs.example_values, what=WHAT)


def _frozen(held, inputs: Inputs, data, present, with_noise_input) -> tuple[Traced, Traced]:
    """The model at given values, and draws from its prior, as traced functions."""

    def interpreted(data, present, source):
        found = Interpreter(held, data, present, with_noise_input, source).run()
        if set(found.shapes) != set(inputs.names):
            raise ModelError(
                "the model's sites change from one call to the next: "
                f"{', '.join(sorted(set(found.shapes) ^ set(inputs.names)))}. Which sites there "
                "are must follow from its arguments alone."
            )
        return found

    def run(values, data, present):
        def source(name, fn, is_normal):
            return values.get(name, jnp.zeros(fn.shape()))

        found = interpreted(data, present, source)
        return dict(found.outputs), sum(found.log_terms, start=jnp.zeros((), float))

    def prior(key, data, present):
        drawn = interpreted(data, present, drawing(key)).coordinates
        return jnp.concatenate([drawn[name].ravel() for name in inputs.names])

    return (
        trace(run, inputs.example_values, data, present, what=WHAT),
        trace(prior, jax.random.key(0), data, present, what=WHAT),
    )


@jit_fast_compile
def _seen_at(traced: Traced, keys, values, present):
    return jax.vmap(lambda key: traced(key, values, present))(keys)


def _discovered(held, values, present, wanted) -> tuple["Interpreter", dict[str, SiteData]]:
    """Run the model at prior draws to find its sites, and check the data of observed sites."""
    first: Interpreter | None = None

    def run(key, values, present):
        nonlocal first
        first = Interpreter(held, values, present, wanted, drawing(key), checks=True).run()
        return first.seen, first.valid

    keys = jax.random.split(jax.random.key(0), _DRAWS)
    traced = trace(run, keys[0], values, present, what=WHAT)
    seen, valid = jax.tree.map(np.asarray, _seen_at(traced, keys, values, present))
    assert first is not None
    follows = traced.follow_from(0)
    for name, is_valid in valid.items():
        if not np.any(is_valid):
            raise ModelError(f"site {name!r}: {first.invalid[name]}")
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
        # If the support depends on latents, a few prior draws that exclude the data prove nothing.
        if not (np.all(np.any(found.can_occur, axis=0)) or follows[0][name].can_occur):
            raise DataError(
                f"observed {name!r} has values outside of the support of its distribution: they "
                "cannot occur. Correct the data or the distribution."
            )
    return first, {
        name: SiteData(found.data[0], found.counts[0], found.can_occur[0])
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
        if name not in first.with_noise_input:
            kind = "an observed sample site" if name in sites else "a site of the model"
            why = first.without_noise_input.get(name, f"it is not {kind}")
            raise ModelError(f"noise_inputs names {name!r}, but {why}.")
