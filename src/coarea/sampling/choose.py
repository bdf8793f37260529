"""Choose the parametrisation in which chains move, and warm them up."""

from collections.abc import Callable

from coarea.adaptation.cost import TransitionCost
from coarea.adaptation.efficiency import scores
from coarea.adaptation.pooled import Tuned
from coarea.errors import ModelError
from coarea.execution.session import Session
from coarea.execution.transitions import FinalState
from coarea.kernels.kernel import AbstractKernel
from coarea.manifolds.parametrisation import (
    AbstractParametrisation,
    Ambient,
    ParametrisationName,
    chart_of,
    without_chart,
)
from coarea.manifolds.target import AbstractTarget
from coarea.sampling.methods import AbstractMethod, SeparateWarmup, SharedWarmup

# Chains move on the chart, and the manifold is not tried, if the chart reaches this fraction of the
# efficiency that the manifold would have if every single step were a whole draw.
_GOOD_ENOUGH = 0.4
# So many operations take as long as to compile and warm up another parametrisation. If the manifold
# could save no more of them it is not tried.
_WORTH_TRYING = 1e10


def warmed_up(
    session: Session,
    target: AbstractTarget,
    kernel: AbstractKernel,
    warmup: int | None,
    keep_inputs: bool,
    wanted: ParametrisationName,
    find_start: Callable[[AbstractParametrisation | None], FinalState],
) -> AbstractMethod:
    """Chains that are ready to draw, in the wanted parametrisation or in the better one.

    The manifold and the chart are compared by scoring the best trials of both warm-ups together, in
    effective draws per operation. Nothing is timed, so the same seed makes the same choice. A
    kernel that does not measure its efficiency, or that is given an integrator, moves on the
    manifold.
    """
    ambient = Ambient(without_chart(target))
    starts: list[FinalState] = []

    def prepared(parametrisation: AbstractParametrisation) -> AbstractMethod:
        shares = SharedWarmup if kernel.seeks_efficiency else SeparateWarmup
        method = shares(session, parametrisation, kernel, warmup, keep_inputs)
        with method.compiling():
            if not starts:
                draws_alone = method.starts_anywhere and parametrisation is not ambient
                starts.append(find_start(parametrisation if draws_alone else None))
        method.warm_up(starts[0])
        return method

    if wanted == "chart":
        return prepared(chart_of(target))
    if wanted == "manifold" or not kernel.seeks_efficiency or kernel.integrator is not None:
        return prepared(ambient)
    try:
        other = chart_of(target)
    except ModelError:
        return prepared(ambient)
    chart = prepared(other)
    assert isinstance(chart, SharedWarmup)
    least = TransitionCost.of(ambient.target, kernel).least(1)
    # A chart whose efficiency could not be measured in time says nothing.
    efficiency = chart.tuned.efficiency or 0.0
    cost = chart.cost_of_draws
    savings = cost - cost * efficiency * least
    if efficiency and (efficiency * least >= _GOOD_ENOUGH or savings < _WORTH_TRYING):
        return chart
    manifold = prepared(ambient)
    assert isinstance(manifold, SharedWarmup)
    return chart if _is_better(chart.tuned, manifold.tuned) else manifold


def _is_better(one: Tuned, other: Tuned) -> bool:
    """Whether one is more efficient, judged by the spread of both."""
    if not (one.trials and other.trials):
        return False
    of_one, of_other = scores([one.trials, other.trials])
    return of_one > of_other
