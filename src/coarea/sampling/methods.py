"""How chains run on a target: each with a warm-up of its own, or all with one that they share."""

import functools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from typing_extensions import override

from coarea.adaptation.plan import plan_for, pooled_warmup_for
from coarea.adaptation.pooled import Tuned
from coarea.adaptation.schedule import Setting, spread_about
from coarea.adaptation.warmup import AdaptedParameters
from coarea.execution.blocks import AbstractTransition
from coarea.execution.places import Place
from coarea.execution.run import Group, RunResult, compiled_for, joined
from coarea.execution.scheduled import ScheduledTransition, begin_scheduled, positions_of
from coarea.execution.session import Session
from coarea.execution.transitions import ExactTransition, FinalState, begin, end
from coarea.kernels.kernel import AbstractKernel
from coarea.manifolds.parametrisation import AbstractParametrisation
from coarea.manifolds.rescaling import Rescaling
from coarea.manifolds.target import (
    AbstractConstrainedTarget,
    AbstractTarget,
    AbstractUnconstrainedTarget,
    evaluate,
)
from coarea.precision import computing_in
from coarea.xla import calls_lapack, hints_enabled, jit_fast_compile

# With more inputs arithmetic takes longer than launching kernels.
_MOST_INPUTS = 2048

T = TypeVar("T", bound=AbstractTransition)


class AbstractMethod(ABC, Generic[T]):
    """The chains of one call of `sample`, in one parametrisation.

    Starts and ends are points of the posterior, an array (chain, input).
    """

    _transition: T

    def __init__(
        self,
        session: Session,
        parametrisation: AbstractParametrisation,
        kernel: AbstractKernel,
        warmup: int | None,
        keep_inputs: bool,
    ):
        target = parametrisation.target
        self.parametrisation, self._target, self._kernel = parametrisation, target, kernel
        self._session = session.with_width(vmap_width(target, session.settings.chains))
        self._keep_inputs, self._length = keep_inputs, warmup
        self._groups: list[Group] = []
        self._fuse = hints_enabled() and session.on_cpu and _is_small(target)

    @contextmanager
    def compiling(self) -> Iterator[None]:
        """A context in which the transitions are compiled on another core of a CPU."""
        if not self._session.on_cpu:
            yield
            return
        pool = ThreadPoolExecutor(1)
        compiling = pool.submit(self._compile)
        try:
            yield
            compiling.result()
        finally:
            pool.shutdown(wait=False)  # whoever interrupts does not wait for the compiler

    def _compile(self) -> None:
        place, precision = self._session.places[0], self._session.settings.precision
        with computing_in(precision), place.active():
            size = self._target.num_inputs
            u = jax.ShapeDtypeStruct((len(place.chains), size), jnp.zeros(()).dtype)
            begin: Any = self._begin(place.keys(self._session.settings.seed).run, u, None)
            chains = begin.func.compile(*begin.args)
            self._transition = compiled_for(self._transition, chains)

    @property
    def starts_anywhere(self) -> bool:
        """Whether any prior draw of positions is a good start."""
        return False

    @abstractmethod
    def warm_up(self, start: FinalState) -> None:
        """Prepare for the draws, from start points and what an earlier run has adapted."""

    def draw(self) -> tuple[RunResult, list[Group]]:
        """All draws, and the groups of chains that made them."""
        return self._session.draw(self._transition, self._groups)

    @abstractmethod
    def ends(self, groups: Sequence[Group]) -> FinalState:
        """Where the chains ended, with what was adapted."""

    def facts(self) -> dict[str, Any]:
        """What the result says about this run, in addition to what all runs say."""
        kernel = type(self._kernel).__name__
        return {"parametrisation": self.parametrisation.words, "kernel": kernel}

    @abstractmethod
    def _begin(self, keys: Any, u: Any, adapted: Any) -> functools.partial:
        """The call that makes chains at positions, with what an earlier run has adapted."""

    def _groups_at(self, start: FinalState, warmup: int) -> list[Group]:
        """The groups of chains at start points; `warmup` counts in transitions."""
        u = _from_whole(self.parametrisation, jnp.asarray(start.position))
        starts = start._replace(position=u)

        def begin_at(place: Place) -> functools.partial:
            mine = place.put(starts)
            keys = place.keys(self._session.settings.seed).run
            return self._begin(keys, mine.position, mine.adapted)

        return self._session.groups(begin_at, warmup)

    def _whole(self, positions: Any) -> np.ndarray:
        u = joined(positions, self._session.settings.chains)
        return np.asarray(to_whole(self.parametrisation, jnp.asarray(u)))


@jit_fast_compile
def _from_whole(parametrisation: AbstractParametrisation, u):
    return jax.vmap(parametrisation.from_whole)(u)


@jit_fast_compile
def to_whole(parametrisation: AbstractParametrisation, u):
    """The points of the posterior that positions stand for."""
    return jax.vmap(parametrisation.to_whole)(u)


class SeparateWarmup(AbstractMethod[ExactTransition]):
    """Each chain adapts to the acceptance rate that the kernel aims at."""

    def __init__(self, *args: Any):
        super().__init__(*args)
        settings = self._session.settings
        self._plan = plan_for(self._target, self._kernel, settings.warmup, settings.seed)
        self._transition = ExactTransition(
            plan=self._plan,
            target=self._target,
            reporter=self.parametrisation.reporter,
            keep_inputs=self._keep_inputs,
            longest_block=self._session.longest_block,
            fuse=self._fuse,
        )

    @override
    def _begin(self, keys, u, adapted):
        return functools.partial(begin, self._plan, self._target, keys, u, adapted)

    @override
    def warm_up(self, start):
        """Chains warm up in their first transitions."""
        self._groups = self._groups_at(start, self._session.settings.warmup)

    @override
    def ends(self, groups):
        found = [end(self._plan, group.chains) for group in groups]
        u = self._whole([x.position for x in found])
        adapted = [x.adapted for x in found]
        return FinalState(jnp.asarray(u), joined(adapted, self._session.settings.chains))


class SharedWarmup(AbstractMethod[ScheduledTransition]):
    """All chains share one adaptation, which finds the setting that explores best."""

    def __init__(self, *args: Any):
        super().__init__(*args)
        settings = self._session.settings
        self._warmup = pooled_warmup_for(
            self._target, self._kernel, self._length, settings.chains, settings.seed
        )
        self._transition = ScheduledTransition(
            kernel=self._kernel.without_settings(),
            target=self._target,
            reporter=self.parametrisation.reporter,
            schedule=self._warmup.first(),
            keep_inputs=self._keep_inputs,
            records_positions=self._warmup.reads_positions,
            longest_block=self._session.longest_block,
            fuse=self._fuse,
        )
        self._found: Tuned | None = None

    @property
    def tuned(self) -> Tuned:
        """What warm-up has found."""
        assert self._found is not None
        return self._found

    @property
    @override
    def starts_anywhere(self):
        return self._warmup.starts_anywhere

    @property
    def cost_of_draws(self) -> float:
        """About how many operations the draws will take."""
        settings = self._session.settings
        return settings.chains * settings.draws * self._warmup.cost_of(self.tuned.setting)

    @override
    def _begin(self, keys, u, adapted):
        kernel, rescaling = self._transition.kernel, self._transition.schedule.rescaling
        return functools.partial(begin_scheduled, kernel, self._target, keys, u, rescaling)

    @override
    def warm_up(self, start):
        transition = self._transition
        self._groups = self._groups_at(start, 0)
        rounds = self._warmup.rounds(_known(start.adapted, transition.schedule.rescaling))
        self._transition, self._found = self._session.warm_up(transition, self._groups, rounds)

    @override
    def ends(self, groups):
        size, fewest, most = self.tuned.setting
        rescaling = self.tuned.schedule.rescaling
        u = self._whole([positions_of(group.chains, rescaling) for group in groups])

        def each(value) -> Any:
            return np.broadcast_to(np.asarray(value), (len(u), *np.shape(value)))

        scale = None if rescaling.matrix is None else each(rescaling.matrix)
        adapted = AdaptedParameters(each(size), None, scale, each(fewest), each(most))
        return FinalState(jnp.asarray(u), adapted)

    @override
    def facts(self):
        if self._found is None:
            return super().facts()
        kernel = f"constrained HMC, {self.tuned.setting.in_words()}"
        return {**super().facts(), "tuning_steps": self.tuned.transitions, "kernel": kernel}


def _known(adapted: Any, like: Rescaling) -> tuple[Setting, Rescaling] | None:
    """What an earlier run found, as one setting for all chains; None if this is the first."""
    if adapted is None:
        return None
    size = float(np.median(adapted.step_size))
    if adapted.fewest_steps is None or adapted.most_steps is None:
        turns = float(np.median(adapted.u_turn_time))
        return spread_about(size, max(1.0, 0.5 * turns / size)), _like(like, adapted.scale)
    setting = Setting(size, int(adapted.fewest_steps[0]), int(adapted.most_steps[0]))
    return setting, _like(like, adapted.scale)


def _like(like: Rescaling, scale: Any) -> Rescaling:
    """The scales of an earlier run's first chain, in the form that this run uses."""
    if like.matrix is None or scale is None or np.shape(scale)[1] != len(like.matrix):
        return like
    matrix = np.asarray(scale)[0]
    if like.matrix.ndim == 1 and matrix.ndim == 2:
        matrix = np.linalg.norm(matrix, axis=1)
    if like.matrix.ndim == 2 and matrix.ndim == 1:
        matrix = np.diag(matrix)
    return Rescaling(jnp.asarray(matrix), keeps_normals=like.keeps_normals)


def vmap_width(target: AbstractTarget, chains: int) -> int:
    """How many chains are vectorised on a CPU: one where a model calls LAPACK."""
    width = min(target.hints.vmap_width, -(-chains // 2))
    return 1 if width > 1 and _needs_lapack(target) else width


# Known once it is traced: once for all targets with the same equations.
@jit_fast_compile
def _needs_lapack(target: AbstractTarget) -> bool:
    u = jax.ShapeDtypeStruct((target.num_inputs,), jnp.zeros(()).dtype)
    if isinstance(target, AbstractUnconstrainedTarget):
        return calls_lapack(lambda u: target.log_density(u), u)
    assert isinstance(target, AbstractConstrainedTarget)
    return calls_lapack(lambda u: evaluate(target, u).log_density, u)


def _is_small(target: AbstractTarget) -> bool:
    """Whether kernel launches, rather than arithmetic, may dominate a transition."""
    hints = target.hints
    is_cheap = not hints.uses_lapack or hints.linearisation_cost <= target.num_inputs / 2
    return is_cheap and not hints.latency_bound and target.num_inputs <= _MOST_INPUTS
