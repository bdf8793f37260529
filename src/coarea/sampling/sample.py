"""`sample`: exact posterior draws from a target, with no tuning asked of the user."""

import math
import time
import warnings
from typing import TYPE_CHECKING, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike

from coarea.diagnostics import diagnose
from coarea.errors import DataError, ModelError, SamplingWarning, SettingError
from coarea.kernels import NUTS
from coarea.kernels.kernel import AbstractKernel
from coarea.manifolds import AbstractTarget
from coarea.precision import Precision, computing_in
from coarea.sampling.chains import Plan, begin
from coarea.sampling.progress import Display
from coarea.sampling.results import as_datatree, gather
from coarea.sampling.run import Group, run_groups
from coarea.sampling.start import chain_keys, check_given, check_starts, improve, search
from coarea.sampling.warmup import StepSizeWarmup

if TYPE_CHECKING:
    from xarray import DataTree

# Chains in a vectorised group. A chain's draws depend on it, so it does not follow the machine.
# One, for dense linear algebra: on the CPU, XLA's batched products and factors take longer than
# the same ones in turn, and jaxlib's batched LU can deadlock when two threads call it at once.
GROUP = 1


def sample(
    target: AbstractTarget,
    *,
    draws: int = 1000,
    warmup: int = 500,
    chains: int = 4,
    seed: int = 0,
    kernel: AbstractKernel = NUTS(),
    start: ArrayLike | None = None,
    keep: Literal["inputs"] | None = None,
    precision: Precision = "float64",
    progress: bool = True,
) -> "DataTree":
    """Draw from a posterior or another density on a manifold.

    Returns an `xarray.DataTree` in ArviZ's layout: `posterior` holds every latent output by its
    name, `sample_stats` how each transition went, `observed_data` the data; `keep="inputs"` adds
    the random inputs themselves. The same seed gives the same draws. Ctrl-C returns the draws made
    so far.

    >>> import coarea as co, jax.numpy as jnp
    >>> model = co.Generator(lambda u: {"z": u["z"], "y": u["z"] ** 3 + u["n"]}, {"z": (), "n": ()})
    >>> posterior = co.condition(model, {"y": 1.5})
    >>> draws = co.sample(posterior, draws=100, warmup=100, chains=2)
    >>> draws.posterior["z"].shape
    (2, 100)
    """
    _check(target, draws, warmup, chains, kernel, keep)
    # Chains of a group that is not full are run and left out: the program stays the same.
    padded = math.ceil(chains / GROUP) * GROUP
    began = time.perf_counter()
    with (
        computing_in(precision),
        Display(progress, (warmup + draws) * padded) as display,
    ):
        keys = jax.vmap(lambda i: chain_keys(jax.random.key(seed), i))(jnp.arange(padded))
        if start is None:
            groups = [search(target, keys.start[i : i + GROUP]) for i in range(0, padded, GROUP)]
        else:
            given = check_given(target, start, chains)
            given = np.resize(given, (padded, target.num_inputs))
            groups = [
                improve(target, jnp.asarray(given[i : i + GROUP])) for i in range(0, padded, GROUP)
            ]
        starts = jax.tree.map(lambda *x: jnp.concatenate(x), *groups)
        check_starts(target, jax.tree.map(lambda x: x[:chains], starts))
        display.compiling()
        plan = Plan(
            eqx.tree_at(lambda k: k.step_size, kernel, None, is_leaf=lambda x: x is None),
            StepSizeWarmup(
                kernel.target_acceptance, kernel.longest_step(target), jnp.asarray(warmup)
            ),
            None if kernel.step_size is None else jnp.asarray(kernel.step_size, float),
            keep == "inputs",
        )
        groups = [
            Group(
                begin(plan, target, keys.run[i : i + GROUP], starts.u[i : i + GROUP]), warmup, draws
            )
            for i in range(0, padded, GROUP)
        ]
        complete = run_groups(groups, plan, target, precision, display.update)
    if not all(group.blocks for group in groups):
        raise KeyboardInterrupt("interrupted during warm-up: no draw had been made yet.")
    block = gather([group.blocks for group in groups], chains)
    if not complete:
        warnings.warn(
            f"interrupted: {block.stats.lp.shape[1]} of {draws} draws of each chain are returned.",
            SamplingWarning,
            stacklevel=2,
        )
    result = as_datatree(
        target,
        block,
        {"seed": seed, "tuning_steps": warmup, "sampling_time": time.perf_counter() - began},
    )
    if problems := diagnose(result).problems:
        warnings.warn(
            f"{' '.join(problem.seen for problem in problems)} "
            "print(coarea.diagnose(draws)) says what to do.",
            SamplingWarning,
            stacklevel=2,
        )
    return result


def _check(target, draws, warmup, chains, kernel, keep) -> None:
    if not isinstance(target, AbstractTarget):
        raise ModelError(
            f"sample takes what coarea.condition(model, observed) returns, or a coarea.Manifold; "
            f"got {type(target).__name__}."
        )
    if not isinstance(kernel, AbstractKernel):
        raise SettingError(f"kernel={kernel!r}: give a kernel such as coarea.CHMC(num_steps=5).")
    for name, value, least in (("draws", draws, 1), ("warmup", warmup, 0), ("chains", chains, 1)):
        if not isinstance(value, int | np.integer) or value < least:
            raise SettingError(f"{name}={value!r}: it must be a whole number, {least} or more.")
    if kernel.step_size is None and warmup < 20:
        raise SettingError(
            f"warmup={warmup} is too short to find a step size (20 is the least, 500 the default): "
            "give more, or a kernel with a step_size."
        )
    if keep not in (None, "inputs"):
        raise SettingError(f"keep={keep!r}: choose 'inputs' or None.")
    latents = jax.eval_shape(
        lambda u: target.latents(u), jax.ShapeDtypeStruct((target.num_inputs,), float)
    )
    if not latents and keep is None:
        raise DataError(
            "every output was observed, so there is nothing left to report. Let the generator "
            "return the quantities of interest as further outputs, or pass keep='inputs'."
        )
