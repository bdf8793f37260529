"""`sample`: exact posterior draws from a target, with no tuning asked of the user."""

import functools
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import ArrayLike

from coarea.adaptation.mass import units_for
from coarea.adaptation.warmup import Warmup
from coarea.arguments import checked_count
from coarea.errors import DataError, SettingError
from coarea.execution.blocks import longest_block
from coarea.execution.memory import check_memory
from coarea.execution.places import Devices, places_for
from coarea.execution.progress import Display
from coarea.execution.run import Group, draw, joined
from coarea.execution.transitions import ExactTransition, FinalState, Plan, begin, end, kept_of
from coarea.initialisation.approach import improve
from coarea.initialisation.checks import check_given, check_starts, with_shared_starts
from coarea.initialisation.search import search
from coarea.kernels import NUTS
from coarea.kernels.kernel import AbstractKernel
from coarea.keys import checked_seed
from coarea.manifolds import AbstractTarget
from coarea.manifolds.validation import check_target
from coarea.precision import Precision, computing_in, require_no_trace
from coarea.results.datatree import check_names, ended, finished, is_result
from coarea.tracing import retraced
from coarea.xla import calls_lapack, one_blas_thread

if TYPE_CHECKING:
    from xarray import DataTree

# Of more inputs the arrays are so long that calling what computes them costs nothing beside it.
_MOST_INPUTS = 2048


def sample(
    target: AbstractTarget,
    *,
    draws: int = 1000,
    warmup: int = 500,
    chains: int = 4,
    seed: int = 0,
    kernel: AbstractKernel = NUTS(),
    start: "ArrayLike | DataTree | None" = None,
    keep: Literal["inputs"] | None = None,
    devices: Devices = None,
    precision: Precision = "float64",
    progress: bool = True,
) -> "DataTree":
    """Draw from a posterior or another density on a manifold.

    Returns an `xarray.DataTree` in ArviZ's layout: `posterior` holds every latent output by its
    name, `sample_stats` how each transition went, `observed_data` the data; `keep="inputs"` adds
    the random inputs themselves; `adapted` what warm-up found. The same seed gives the same draws.
    Ctrl-C returns the draws made so far.

    `start` takes a point for each chain (`find_start`), or the draws of an earlier call, to go on
    from where its chains ended with what they had learnt, `warmup=0` and another seed. `devices` is
    `"cpu"`, `"gpu"` or a list of `jax.devices()`: on a CPU chains run in a thread per core, on an
    accelerator all at once.

    >>> import coarea as co
    >>> model = co.Generator(lambda u: {"z": u["z"], "y": u["z"] ** 3 + u["n"]}, {"z": (), "n": ()})
    >>> posterior = co.condition(model, {"y": 1.5})
    >>> draws = co.sample(posterior, draws=500, warmup=200, chains=2)
    >>> draws.posterior["z"].shape
    (2, 500)
    """
    require_no_trace("sample")
    draws, chains = checked_count("draws", draws), checked_count("chains", chains)
    warmup, seed = checked_count("warmup", warmup, 0), checked_seed(seed)
    _check(target, warmup, kernel, start, keep)
    with computing_in(precision):
        if precision == "float32":
            target = retraced(target)
        kept = _kept(target, keep)
        size = sum(x.size for x in jax.tree.leaves(kept))
        check_memory(size, chains, draws)
        together = _together(target, chains)
    places = places_for(chains, together, devices)
    began = time.perf_counter()
    with (
        computing_in(precision),
        one_blas_thread(),
        ThreadPoolExecutor(1) as beside,
        Display(progress, (warmup + draws) * sum(len(place.chains) for place in places)) as display,
    ):
        program = ExactTransition(
            plan=plan_for(target, kernel, warmup, seed),
            target=target,
            keep_inputs=keep == "inputs",
            longest_block=longest_block(size, len(places[0].chains)),
            fuse=_is_small(target) and not places[0].is_accelerator,
        )
        # Importing takes a second, and is done beside what compiles. (Nothing is traced there.)
        names = beside.submit(check_names, kept)
        starts = _starts(target, places, seed, start, chains, kernel)
        names.result()
        display.compiling()
        groups = _groups(program, places, seed, starts, warmup, draws)
        drawn, groups = draw(program, groups, chains, draws, precision, display.update)

    def ends() -> FinalState:
        with computing_in(precision):
            return joined([end(program.plan, group.chains) for group in groups], chains)

    about = {"seed": seed, "tuning_steps": warmup, "sampling_time": time.perf_counter() - began}
    return finished(drawn, target.observed, about, 3, target.fixed, ends)


def _together(target: AbstractTarget, chains: int) -> int:
    """How many of them are to be vectorised on a CPU: none where a model calls LAPACK."""
    together = target.vmap_width(chains)
    u = jax.ShapeDtypeStruct((target.num_inputs,), jnp.zeros(()).dtype)
    return 1 if together > 1 and calls_lapack(lambda u: target.residual(u), u) else together


def _is_small(target: AbstractTarget) -> bool:
    """Whether what takes time may be less the computations than that there are so many."""
    is_plain = (target.is_cheap or target.is_light) and not target.is_sequential
    return is_plain and target.ambient.num_inputs <= _MOST_INPUTS


def _starts(target, places, seed, given, chains, kernel) -> list[FinalState]:
    """For each place, points on the manifold: searched for, the user's, or an earlier run's."""
    tolerance = kernel.integrator.tolerance_for(jnp.zeros(()).dtype)
    if is_result(given):
        given = ended(given)
        check_given(target, given.position, chains)
        return [place.put(given) for place in places]
    if given is None:
        found = [search(target.ambient, place.keys(seed).start, tolerance) for place in places]
    else:
        u = jax.vmap(target.embed)(jnp.asarray(check_given(target, given, chains)))
        found = [improve(target.ambient, place.put(u), tolerance) for place in places]
    starts = joined(found, chains)
    if given is None:
        starts = with_shared_starts(starts, tolerance, stacklevel=4)
    check_starts(target.ambient, starts, tolerance, given is not None)
    return [
        FinalState(jax.vmap(target.restrict)(jnp.asarray(place.put(starts.u))), None)
        for place in places
    ]


def _groups(program: ExactTransition, places, seed, starts, warmup, draws) -> list[Group]:
    groups = []
    for place, (u, learnt) in zip(places, starts, strict=True):
        start = functools.partial(
            begin, program.plan, program.target, place.keys(seed).run, u, learnt
        )
        groups.append(Group(place, start, warmup, draws))
    return groups


def plan_for(target: AbstractTarget, kernel: AbstractKernel, warmup: int, seed: int = 0) -> Plan:
    """The kernel and its tuning, as they enter the program that is compiled."""
    units = units_for(target, kernel.mass)
    if units is not None:
        target = target.in_units(jnp.ones(target.num_inputs))
    # What may change from call to call is an array, so that it needs no new compilation.
    return Plan(
        eqx.tree_at(lambda k: k.step_size, kernel, None, is_leaf=lambda x: x is None),
        Warmup(
            kernel.target_acceptance,
            kernel.longest_step(target),
            jnp.asarray(warmup),
            target.extent,
            jnp.asarray(seed * 0x85EBCA6B % 2**32, jnp.uint32),
            units,
        ),
        None if kernel.step_size is None else jnp.asarray(kernel.step_size, float),
    )


def _check(target, warmup, kernel, start, keep) -> None:
    check_target(target, "sample")
    if not isinstance(kernel, AbstractKernel):
        raise SettingError(f"kernel={kernel!r}: give a kernel such as coarea.NUTS().")
    if kernel.adapts and warmup < 20 and not is_result(start):
        raise SettingError(
            f"warmup={warmup} is too short to find {kernel.adapts} (20 is the least, 500 the "
            f"default): give more, or a kernel with its {kernel.adapts}, or start=draws of an "
            "earlier run."
        )
    if keep not in (None, "inputs"):
        raise SettingError(f"keep={keep!r}: choose 'inputs' or None.")


def _kept(target, keep) -> dict[str, Mapping[str, Any]]:
    """The shapes of what is kept of each draw. If nothing is, there is nothing to sample for."""
    u = jax.ShapeDtypeStruct((target.num_inputs,), jnp.zeros(()).dtype)
    latents, inputs = jax.eval_shape(lambda u: kept_of(target, u, keep == "inputs"), u)
    if not latents and not target.fixed and inputs is None:
        raise DataError(
            "every output was observed, so there is nothing left to report. Let the generator "
            "return the quantities of interest as further outputs, or pass keep='inputs'."
        )
    return {"posterior": latents} | ({} if inputs is None else {"inputs": inputs})
