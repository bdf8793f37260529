"""`sample`: exact posterior draws from a target, with no tuning asked of the user."""

import functools
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import ArrayLike

from coarea.adaptation.plan import plan_for
from coarea.arguments import checked_count
from coarea.errors import DataError, SettingError
from coarea.execution.places import Devices, Place
from coarea.execution.run import joined
from coarea.execution.session import RunSettings, Session, session
from coarea.execution.transitions import ExactTransition, FinalState, begin, end, recorded
from coarea.initialisation.approach import improve
from coarea.initialisation.checks import check_given, check_starts, with_shared_starts
from coarea.initialisation.search import search
from coarea.kernels import NUTS
from coarea.kernels.kernel import AbstractKernel
from coarea.keys import checked_seed
from coarea.manifolds.target import AbstractTarget
from coarea.manifolds.validation import check_target
from coarea.precision import Precision, computing_in, require_no_trace
from coarea.results.datatree import check_names, final_state, finished, is_result
from coarea.tracing import retraced
from coarea.xla import calls_lapack, hints_enabled

if TYPE_CHECKING:
    from xarray import DataTree

# With more inputs arithmetic takes longer than launching kernels.
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
        recorded_shapes = _recorded_shapes(target, keep)
        size = sum(x.size for x in jax.tree.leaves(recorded_shapes))
        width = _vmap_width(target, chains)
    settings = RunSettings(draws, warmup, chains, seed, devices, precision, progress)
    with session(settings, width, size) as this, ThreadPoolExecutor(1) as beside:
        plan = plan_for(target, kernel, warmup, seed)
        program = ExactTransition(
            plan=plan,
            target=target,
            keep_inputs=keep == "inputs",
            longest_block=this.longest_block,
            fuse=hints_enabled() and this.on_cpu and _is_small(target),
        )
        # Importing takes a second, and is done beside what compiles. (Nothing is traced there.)
        names = beside.submit(check_names, recorded_shapes)
        starts = dict(zip(this.places, _starts(target, this, start, kernel), strict=True))
        names.result()

        def begin_at(place: Place):
            u, adapted = starts[place]
            return functools.partial(begin, plan, target, place.keys(seed).run, u, adapted)

        result, groups = this.run(program, begin_at)

    def ends() -> FinalState:
        with computing_in(precision):
            return joined([end(plan, group.chains) for group in groups], chains)

    reporter = target.reporter
    return finished(result, reporter.observed, this.facts(), 3, reporter.fixed, ends)


def _vmap_width(target: AbstractTarget, chains: int) -> int:
    """How many chains are vectorised on a CPU: one where a model calls LAPACK."""
    width = min(target.hints.vmap_width, -(-chains // 2))
    manifold = target.manifold
    u = jax.ShapeDtypeStruct((manifold.num_inputs,), jnp.zeros(()).dtype)
    return 1 if width > 1 and calls_lapack(lambda u: manifold.residual(u), u) else width


def _is_small(target: AbstractTarget) -> bool:
    """Whether kernel launches, rather than arithmetic, may dominate a transition."""
    hints, manifold = target.hints, target.manifold
    is_cheap = hints.linearisation_cost <= manifold.num_constraints or not hints.uses_lapack
    return is_cheap and not hints.latency_bound and manifold.num_inputs <= _MOST_INPUTS


def _starts(target, this: Session, given, kernel) -> list[FinalState]:
    """For each place, points on the manifold: searched for, the user's, or an earlier run's."""
    places, chains, seed = this.places, this.settings.chains, this.settings.seed
    manifold = target.manifold
    tolerance = kernel.tolerance_for(jnp.zeros(()).dtype)
    if is_result(given):
        given = final_state(given)
        check_given(target, given.position, chains)
        return [place.put(given) for place in places]
    if given is None:
        found = [search(manifold, place.keys(seed).start, tolerance) for place in places]
    else:
        u = jax.vmap(target.to_manifold)(jnp.asarray(check_given(target, given, chains)))
        found = [improve(manifold, place.put(u), tolerance) for place in places]
    starts = joined(found, chains)
    if given is None:
        starts = with_shared_starts(starts, tolerance, stacklevel=4)
    check_starts(manifold, starts, tolerance, given is not None)
    return [
        FinalState(jax.vmap(target.from_manifold)(jnp.asarray(place.put(starts.u))), None)
        for place in places
    ]


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


def _recorded_shapes(target, keep) -> dict[str, Mapping[str, Any]]:
    """The shapes of what is stored of each draw, refused if there is nothing."""
    u = jax.ShapeDtypeStruct((target.num_inputs,), jnp.zeros(()).dtype)
    latents, inputs = jax.eval_shape(lambda u: recorded(target, u, keep == "inputs"), u)
    if not latents and not target.reporter.fixed and inputs is None:
        raise DataError(
            "every output was observed, so there is nothing left to report. Let the generator "
            "return the quantities of interest as further outputs, or pass keep='inputs'."
        )
    return {"posterior": latents} | ({} if inputs is None else {"inputs": inputs})
