"""The draws as ArviZ data: an `xarray.DataTree` with the groups and names ArviZ expects."""

import importlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from coarea.adaptation.warmup import AdaptedParameters
from coarea.errors import ModelError, ResultError, SamplingWarning
from coarea.execution.blocks import Block
from coarea.execution.run import RunResult
from coarea.execution.transitions import FinalState
from coarea.results import diagnose
from coarea.results.diagnose import Finding

if TYPE_CHECKING:
    from xarray import DataTree


# The dimensions of all draws.
_AXES = ("chain", "draw")
# The attribute that holds the name in the model, if a variable had to be renamed.
_OWN_NAME = "name_in_model"
# The group that holds the final positions and adapted parameters of the chains.
_ADAPTED = "adapted"


def is_result(start: Any) -> bool:
    """Whether this is a result of an earlier call."""
    return _ADAPTED in getattr(start, "children", {})


def final_state(draws: "DataTree") -> FinalState:
    """The final positions and adapted parameters of the chains of an earlier call."""
    known = {str(name): x.values for name, x in draws[_ADAPTED].data_vars.items()}
    position = known.pop("position")
    return FinalState(
        jnp.asarray(position), AdaptedParameters(**{"scale": None, "u_turn_time": None, **known})
    )


def used_parametrisation(draws: "DataTree") -> Any:
    """The name of the parametrisation of an earlier call."""
    return str(draws.attrs.get("parametrisation", "auto")).split(":")[0]


def as_datatree(
    block: Block,
    observed: Mapping[str, np.ma.MaskedArray] | None,
    attributes: dict[str, Any],
    fixed: Mapping[str, jax.Array] | None = None,
) -> "DataTree":
    """Latents, sample statistics, data and, if they were kept, inputs, in ArviZ's groups.

    Latents in `fixed` have the same value in all draws; they are broadcast without using memory.
    """
    about = {
        "inference_library": "coarea",
        "inference_library_version": version("coarea"),
        **attributes,
    }
    groups = as_groups(block, observed, fixed)
    return tree_of(groups, {"/": about, "posterior": about})


def tree_of(
    groups: Mapping[str, Mapping[str, Any]], attributes: Mapping[str, dict[str, Any]] | None = None
) -> "DataTree":
    """Arrays by group and name as ArviZ data; renamed variables keep their own name beside."""
    import arviz_base

    result = arviz_base.from_dict(
        {group: _renamed(data) for group, data in groups.items()},
        sample_dims=["chain", "draw"],
        attrs=None if attributes is None else dict(attributes),
    )
    for group, data in groups.items():
        for name in data:
            if stored_name(name) != name:
                result[group][stored_name(name)].attrs[_OWN_NAME] = name
    return result


def as_groups(
    block: Block,
    observed: Mapping[str, np.ma.MaskedArray] | None,
    fixed: Mapping[str, jax.Array] | None = None,
) -> dict[str, dict[str, Any]]:
    """The content of a result as NumPy arrays, by group and name."""
    stats = {name: x for name, x in block.stats._asdict().items() if x is not None}
    shape = next(iter(stats.values())).shape[:2]
    repeated = {
        name: np.broadcast_to(np.asarray(x), (*shape, *x.shape))
        for name, x in (fixed or {}).items()
    }
    groups: dict[str, dict[str, Any]] = {
        "posterior": {**block.latents, **repeated},
        "sample_stats": stats,
    }
    if observed is not None:
        groups["observed_data"] = {name: x.filled(np.nan) for name, x in observed.items()}
    if block.inputs is not None:
        groups["inputs"] = dict(block.inputs)
    return groups


def stored_name(name: str) -> str:
    """The name with slashes replaced, because a slash separates groups in a DataTree."""
    return name.replace("/", ".")


def own_name(variable: Any) -> str:
    """The name of a variable in the model."""
    return str(variable.attrs.get(_OWN_NAME, variable.name))


def _renamed(data: Mapping[str, Any]) -> dict[str, Any]:
    return {stored_name(name): x for name, x in data.items()}


def check_names(groups: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse names under which draws cannot be stored, before sampling starts.

    `groups` holds arrays or their shapes, by group and name.
    """
    import arviz_base

    importlib.import_module("arviz_stats.base.array")  # fail now if `diagnose` cannot import it
    for group, data in groups.items():
        for name in data:
            if stored_name(name) in _AXES:
                raise ModelError(
                    f"an output or input is named {name!r}, which is what ArviZ calls an axis of "
                    "the draws: give it another name."
                )
        if len(_renamed(data)) < len(data):
            raise ModelError(
                f"two of the names {', '.join(map(repr, data))} are the same when '/' is replaced "
                "by '.', as it is in the draws: give them different names."
            )
        if group == "observed_data":
            continue
        one = {
            name: np.broadcast_to(np.zeros((), x.dtype), (1, 1, *x.shape))
            for name, x in _renamed(data).items()
        }
        try:
            arviz_base.from_dict({group: one}, sample_dims=["chain", "draw"])
        except Exception as error:  # ArviZ and xarray may raise any type
            raise ModelError(
                f"the draws of {', '.join(map(repr, data))} could not be stored under these names "
                f"({error}): give the outputs other names."
            ) from error


@contextmanager
def saving(draws: Any) -> Iterator[None]:
    """A context that attaches the draws to any error raised in it, as `error.draws`."""
    try:
        yield
    except (KeyboardInterrupt, SamplingWarning) as stop:
        stop.draws = draws  # pyright: ignore[reportAttributeAccessIssue]
        raise
    except Exception as error:
        raise ResultError(
            f"the draws were made, but then there was an error: {type(error).__name__}: {error}. "
            "The draws are in the attribute `draws` of this error.",
            draws,
        ) from error


def with_ends(result: "DataTree", ends: FinalState) -> "DataTree":
    """Add the final positions and adapted parameters of the chains to the result."""
    import xarray as xr

    assert ends.adapted is not None
    adapted = {"position": ends.position, **ends.adapted._asdict()}
    result[_ADAPTED] = xr.DataTree(
        xr.Dataset(
            {
                name: (_adapted_dims(name, np.ndim(values)), np.asarray(values))
                for name, values in adapted.items()
                if values is not None
            }
        )
    )
    return result


def _adapted_dims(name: str, ndim: int) -> tuple[str, ...]:
    # On a chart there are fewer coordinates than inputs.
    return ("chain", "input" if name == "position" else "coordinate", "direction")[:ndim]


def finished(
    run: RunResult,
    observed: Mapping[str, np.ma.MaskedArray] | None,
    attributes: dict[str, Any],
    stacklevel: int,
    fixed: Mapping[str, jax.Array] | None = None,
    ends: Callable[[], FinalState] | None = None,
) -> "DataTree":
    """The result of a run, with warnings about its problems.

    Warnings point at the caller `stacklevel` frames up. The draws are attached to the error that
    stopped the run, and to any error raised here.
    """
    with saving(as_groups(run.block, observed, fixed)):
        result = as_datatree(run.block, observed, attributes, fixed)
    with saving(result):
        if ends is not None:
            result = with_ends(result, ends())
    with saving(result):
        if isinstance(run.stopped, Exception):
            raise run.stopped
        if run.stopped is not None:
            _warn(f"interrupted: {run.seen} are returned.", stacklevel)
        if problems := diagnose(result).problems:
            warn_of(problems, stacklevel)
    return result


def warn_of(problems: Iterable[Finding], stacklevel: int) -> None:
    """Warn of problems in one line; the warning points at the caller `stacklevel` frames up."""
    seen = " ".join(problem.seen for problem in problems)
    _warn(f"{seen} print(coarea.diagnose(draws)) says what to do.", stacklevel + 1)


def _warn(message: str, stacklevel: int) -> None:
    warnings.warn(message, SamplingWarning, stacklevel=stacklevel + 1)
