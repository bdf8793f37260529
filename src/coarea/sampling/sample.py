"""`sample`: exact posterior draws from a target, with no tuning asked of the user."""

import math
import time
import warnings
from typing import TYPE_CHECKING, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from coarea.diagnostics import diagnose
from coarea.errors import DataError, SamplingWarning, SettingError
from coarea.kernels import NUTS
from coarea.kernels.kernel import AbstractKernel
from coarea.manifolds import AbstractTarget
from coarea.precision import Precision, computing_in
from coarea.sampling.chains import Plan, begin, longest_block
from coarea.sampling.progress import Display
from coarea.sampling.results import as_datatree, gather
from coarea.sampling.run import Group, run_groups
from coarea.sampling.settings import check_count, check_target, one_blas_thread
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

    >>> import coarea as co
    >>> model = co.Generator(lambda u: {"z": u["z"], "y": u["z"] ** 3 + u["n"]}, {"z": (), "n": ()})
    >>> posterior = co.condition(model, {"y": 1.5})
    >>> draws = co.sample(posterior, draws=500, warmup=200, chains=2)
    >>> draws.posterior["z"].shape
    (2, 500)
    """
    _check(target, draws, warmup, chains, seed, kernel, keep)
    # Chains of a group that is not full are run and left out: the program stays the same.
    padded = math.ceil(chains / GROUP) * GROUP
    began = time.perf_counter()
    with (
        computing_in(precision),
        one_blas_thread(),
        Display(progress, (warmup + draws) * padded) as display,
    ):
        members = [slice(first, first + GROUP) for first in range(0, padded, GROUP)]
        keys = jax.vmap(lambda i: chain_keys(jax.random.key(seed), i))(jnp.arange(padded))
        u = _starts(target, keys.start, start, chains, members, kernel)
        display.compiling()
        plan = _plan(target, kernel, warmup, keep == "inputs")
        longest = longest_block(plan, target)
        groups = [
            Group(begin(plan, target, keys.run[i], u[i]), warmup, draws, longest) for i in members
        ]
        complete = run_groups(groups, plan, target, precision, display.update)
    drawn = [group.blocks for group in groups if group.blocks]
    if not drawn:
        raise KeyboardInterrupt("interrupted during warm-up: no draw had been made yet.")
    block = gather(drawn, chains)
    if not complete:
        warnings.warn(
            f"interrupted: {block.stats.lp.shape[1]} of {draws} draws from "
            f"{block.stats.lp.shape[0]} of {chains} chains are returned.",
            SamplingWarning,
            stacklevel=2,
        )
    about = {"seed": seed, "tuning_steps": warmup, "sampling_time": time.perf_counter() - began}
    result = as_datatree(target, block, about)
    if problems := diagnose(result).problems:
        warnings.warn(
            f"{' '.join(problem.seen for problem in problems)} "
            "print(coarea.diagnose(draws)) says what to do.",
            SamplingWarning,
            stacklevel=2,
        )
    return result


def _starts(target, keys, given, chains, members, kernel) -> Float[Array, "chains M"]:
    """A point on the manifold for each chain, searched for or moved there from the user's."""
    tolerance = kernel.integrator.tolerance_for(jnp.zeros(()).dtype)
    if given is None:
        found = [search(target, keys[i], tolerance) for i in members]
    else:
        u = check_given(target, given, chains)
        u = jnp.asarray(np.resize(u, (len(keys), target.num_inputs)))
        found = [improve(target, u[i], tolerance) for i in members]
    starts = jax.tree.map(lambda *x: jnp.concatenate(x), *found)
    check_starts(target, jax.tree.map(lambda x: x[:chains], starts), tolerance)
    return starts.u


def _plan(target, kernel, warmup, keep_inputs) -> Plan:
    # What may change from call to call is an array, so that it needs no new compilation.
    return Plan(
        eqx.tree_at(lambda k: k.step_size, kernel, None, is_leaf=lambda x: x is None),
        StepSizeWarmup(
            kernel.target_acceptance,
            kernel.longest_step(target),
            jnp.asarray(warmup),
            target.extent,
        ),
        None if kernel.step_size is None else jnp.asarray(kernel.step_size, float),
        keep_inputs,
    )


def _check(target, draws, warmup, chains, seed, kernel, keep) -> None:
    check_target(target, "sample")
    if not isinstance(kernel, AbstractKernel):
        raise SettingError(f"kernel={kernel!r}: give a kernel such as coarea.NUTS().")
    for name, value, least in (
        ("draws", draws, 1),
        ("warmup", warmup, 0),
        ("chains", chains, 1),
        ("seed", seed, 0),
    ):
        check_count(name, value, least)
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
