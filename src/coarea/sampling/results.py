"""The draws as ArviZ data: an `xarray.DataTree` with the groups and names ArviZ expects."""

from collections.abc import Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from coarea.manifolds import AbstractTarget, Posterior
from coarea.sampling.chains import Block

if TYPE_CHECKING:
    from xarray import DataTree


def gather(groups: Sequence[Sequence[Block]], chains: int) -> Block:
    """All blocks of all groups as one, axes (chain, draw, …), cut to the shortest chain."""
    whole = [jax.tree.map(lambda *x: np.concatenate(x, axis=1), *blocks) for blocks in groups]
    shortest = min(group.stats.lp.shape[1] for group in whole)
    return jax.tree.map(
        lambda *x: np.concatenate([part[:, :shortest] for part in x])[:chains], *whole
    )


def as_datatree(target: AbstractTarget, block: Block, attributes: dict[str, Any]) -> "DataTree":
    """Latents, sample statistics, data and, if kept, inputs."""
    import arviz_base

    data: dict[str, dict[str, Any]] = {
        "posterior": dict(block.latents),
        "sample_stats": block.stats._asdict(),
    }
    if isinstance(target, Posterior):
        data["observed_data"] = {k: v.filled(np.nan) for k, v in target.observed.items()}
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
