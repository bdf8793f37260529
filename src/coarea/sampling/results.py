"""The draws as ArviZ data: an `xarray.DataTree` with the groups and names ArviZ expects."""

import importlib
import warnings
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from coarea.diagnostics import diagnose
from coarea.errors import SamplingWarning
from coarea.sampling.chains import Block
from coarea.sampling.transitions import Ended
from coarea.sampling.warmup import Learnt

if TYPE_CHECKING:
    from xarray import DataTree


# The group that holds how the chains ended.
_ADAPTED = "adapted"
T = TypeVar("T")


def import_results() -> None:
    """Import what draws are told with, which takes a second: best while something compiles."""
    importlib.import_module("arviz_base")
    importlib.import_module("arviz_stats.base.array")


def gather(groups: Sequence[Block], chains: int) -> Block:
    """All groups' draws as one, axes (chain, draw, …), cut to the shortest chain."""
    shortest = min(block.stats.acceptance_rate.shape[1] for block in groups)
    cut = [jax.tree.map(lambda x: x[:chains, :shortest], block) for block in groups]
    # With thousands of chains copying is what takes time: those of one group are left as they are.
    return cut[0] if len(cut) == 1 else joined(cut, chains)


def joined(parts: Sequence[T], chains: int) -> T:
    """Groups' arrays with a row for each chain as one."""
    return jax.tree.map(lambda *x: np.concatenate(x)[:chains], *parts)


def is_result(start: Any) -> bool:
    """Whether this is what an earlier call returned."""
    return _ADAPTED in getattr(start, "children", {})


def ended(draws: "DataTree") -> Ended:
    """How the chains of an earlier call ended."""
    known = {str(name): x.values for name, x in draws[_ADAPTED].data_vars.items()}
    position = known.pop("position")
    return Ended(jnp.asarray(position), Learnt(**{"units": None, **known}))


def as_datatree(
    block: Block,
    observed: Mapping[str, np.ma.MaskedArray] | None,
    attributes: dict[str, Any],
    fixed: Mapping[str, jax.Array] | None = None,
) -> "DataTree":
    """Latents, sample statistics, data and, if kept, inputs, in ArviZ's groups.

    Latents that are `fixed` are repeated for each draw, in which they take no memory.
    """
    import arviz_base

    stats = {name: x for name, x in block.stats._asdict().items() if x is not None}
    repeated = {
        name: np.broadcast_to(np.asarray(x), (*stats["acceptance_rate"].shape, *x.shape))
        for name, x in (fixed or {}).items()
    }
    data: dict[str, dict[str, Any]] = {
        "posterior": {**block.latents, **repeated},
        "sample_stats": stats,
    }
    if observed is not None:
        data["observed_data"] = {name: x.filled(np.nan) for name, x in observed.items()}
    if block.inputs is not None:
        data["inputs"] = dict(block.inputs)
    about = {
        "inference_library": "coarea",
        "inference_library_version": version("coarea"),
        **attributes,
    }
    return arviz_base.from_dict(
        data, sample_dims=["chain", "draw"], attrs={"/": about, "posterior": about}
    )


def with_ends(result: "DataTree", ends: Ended) -> "DataTree":
    """The draws, and how their chains ended."""
    import xarray as xr

    assert ends.learnt is not None
    adapted = {"position": ends.position, **ends.learnt._asdict()}
    result[_ADAPTED] = xr.DataTree(
        xr.Dataset(
            {
                name: (("chain", "input", "direction")[: np.ndim(values)], np.asarray(values))
                for name, values in adapted.items()
                if values is not None
            }
        )
    )
    return result


def warn_of_problems(result: "DataTree", stacklevel: int) -> None:
    """One line of what is not well, for the caller so many frames up."""
    if problems := diagnose(result).problems:
        warnings.warn(
            f"{' '.join(problem.seen for problem in problems)} "
            "print(coarea.diagnose(draws)) says what to do.",
            SamplingWarning,
            stacklevel=stacklevel,
        )
