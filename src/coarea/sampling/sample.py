"""`sample`: exact posterior draws from a target, with no tuning asked of the user."""

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike

from coarea.adaptation.plan import DEFAULT_WARMUP
from coarea.arguments import checked_count
from coarea.dynamics.projection import Tolerance
from coarea.errors import SettingError
from coarea.execution.places import Devices
from coarea.execution.recording import Keep, check_keep, recorded_shapes
from coarea.execution.run import joined
from coarea.execution.session import RunSettings, Session, session
from coarea.execution.transitions import FinalState
from coarea.initialisation.approach import improve
from coarea.initialisation.checks import check_given, check_starts, with_shared_starts
from coarea.initialisation.search import is_usable, search
from coarea.kernels import CHMC
from coarea.kernels.kernel import AbstractKernel
from coarea.keys import checked_seed
from coarea.manifolds.parametrisation import (
    AbstractParametrisation,
    ParametrisationName,
    check_name,
    without_chart,
)
from coarea.manifolds.target import AbstractTarget
from coarea.manifolds.validation import check_target
from coarea.precision import Precision, computing_in, require_no_trace
from coarea.results.datatree import (
    check_names,
    final_state,
    finished,
    is_result,
    used_parametrisation,
)
from coarea.sampling.choose import warmed_up
from coarea.sampling.methods import to_whole, vmap_width
from coarea.tracing import retraced

if TYPE_CHECKING:
    from xarray import DataTree


def sample(
    target: AbstractTarget,
    *,
    draws: int = 1000,
    warmup: int | None = None,
    chains: int = 4,
    seed: int = 0,
    kernel: AbstractKernel | None = None,
    parametrisation: ParametrisationName = "auto",
    start: "ArrayLike | DataTree | None" = None,
    keep: Keep = None,
    devices: Devices = None,
    precision: Precision = "float64",
    progress: bool = True,
) -> "DataTree":
    """Draw from a posterior or another density on a manifold.

    Returns an `xarray.DataTree` in ArviZ's layout: `posterior` holds every latent output by its
    name, `sample_stats` how each transition went, `observed_data` the data; `keep="inputs"` adds
    the random inputs themselves; `adapted` what warm-up found. The same seed gives the same draws.
    Ctrl-C returns the draws made so far.

    Without a `kernel` all chains share a warm-up, which finds the scales of the inputs and the step
    size and number of steps with most effective draws per operation. It ends when it is done, after
    at most `warmup` transitions (left out: 500, or more if they cost next to nothing).
    `parametrisation` says what moves: all inputs along the manifold (`"manifold"`), or only those
    from which the noise of the observed values follows (`"chart"`). `"auto"` compares both during
    warm-up, if the model has a chart. `draws.attrs` says what was chosen. The posterior does not
    depend on it.

    `start` takes a point for each chain (`find_start`), or the draws of an earlier call, to go on
    from where its chains ended with what they had adapted, `warmup=0` and another seed. `devices`
    is `"cpu"`, `"gpu"` or a list of `jax.devices()`: on a CPU chains run in a thread per core, on
    an accelerator all at once.

    >>> import coarea as co
    >>> model = co.Generator(lambda u: {"z": u["z"], "y": u["z"] ** 3 + u["n"]}, {"z": (), "n": ()})
    >>> posterior = co.condition(model, {"y": 1.5})
    >>> draws = co.sample(posterior, draws=500, warmup=200, chains=2)
    >>> draws.posterior["z"].shape
    (2, 500)
    """
    require_no_trace("sample")
    draws, chains = checked_count("draws", draws), checked_count("chains", chains)
    warmup = None if warmup is None else checked_count("warmup", warmup, 0)
    seed = checked_seed(seed)
    kernel = CHMC() if kernel is None else kernel
    _check(target, warmup, kernel, start, keep)
    check_name(parametrisation)
    length = DEFAULT_WARMUP if warmup is None else warmup
    settings = RunSettings(draws, length, chains, seed, devices, precision, progress)
    with computing_in(precision):
        if precision == "float32":
            target = retraced(target)
        reporter = target.reporter
        stored = recorded_shapes(reporter, target.num_inputs, keep, reporter.fixed)
        size = sum(x.size for x in jax.tree.leaves(stored))
        width = vmap_width(target, chains)
    with session(settings, width, size) as this, ThreadPoolExecutor(1) as beside:
        # Importing takes a second, and is done beside what compiles.
        names = beside.submit(check_names, stored)

        def find_start(among: AbstractParametrisation | None) -> FinalState:
            found = _drawn(among, this) if start is None and among is not None else None
            found = found or _start(target, this, start, kernel)
            names.result()
            return found

        if is_result(start) and parametrisation == "auto":
            parametrisation = used_parametrisation(start)  # pyright: ignore[reportArgumentType]
        method = warmed_up(
            this, target, kernel, warmup, keep == "inputs", parametrisation, find_start
        )
        result, groups = method.draw()

    def ends() -> FinalState:
        with computing_in(precision):
            return method.ends(groups)

    facts = {**this.facts(), **method.facts()}
    if structure := getattr(target, "structure", ""):
        facts["structure"] = structure
    return finished(result, reporter.observed, facts, 3, reporter.fixed, ends)


def _drawn(among: AbstractParametrisation, this: Session) -> FinalState | None:
    """A point for each chain from a search on a chart alone; None if it is not found.

    If the chart has no constraints it is a prior draw. A search on the whole manifold finds better
    points, but takes seconds to compile.
    """
    tolerance = Tolerance.default(jnp.zeros(()).dtype)
    keys = [place.keys(this.settings.seed).start for place in this.places]
    starts = joined([search(among.target, key, tolerance) for key in keys], this.settings.chains)
    if not np.all(is_usable(starts, tolerance)):
        return None
    return FinalState(to_whole(among, jnp.asarray(starts.u)), None)


def _start(target: AbstractTarget, this: Session, given: Any, kernel: AbstractKernel) -> FinalState:
    """A point for each chain: searched for, the user's, or an earlier run's."""
    chains, seed = this.settings.chains, this.settings.seed
    target = without_chart(target)
    tolerance = kernel.tolerance_for(jnp.zeros(()).dtype)
    if is_result(given):
        given = final_state(given)
        check_given(target, given.position, chains)
        return given
    if given is None:
        found = [search(target, place.keys(seed).start, tolerance) for place in this.places]
    else:
        u = check_given(target, given, chains)
        found = [improve(target, jnp.asarray(place.put(u)), tolerance) for place in this.places]
    starts = joined(found, chains)
    if given is None:
        starts = with_shared_starts(starts, tolerance, stacklevel=4)
    check_starts(target, starts, tolerance, given is not None)
    return FinalState(starts.u, None)


def _check(target, warmup, kernel, start, keep) -> None:
    check_target(target, "sample")
    if not isinstance(kernel, AbstractKernel):
        raise SettingError(f"kernel={kernel!r}: give a kernel such as coarea.NUTS().")
    if kernel.adapts and warmup is not None and warmup < 20 and not is_result(start):
        raise SettingError(
            f"warmup={warmup} is too short to find {kernel.adapts} (20 is the least, 500 the "
            f"default): give more, or a kernel with its {kernel.adapts}, or start=draws of an "
            "earlier run."
        )
    check_keep(keep)
