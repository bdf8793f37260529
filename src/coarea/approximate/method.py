"""Run chains of an approximate method, with the same driver and result format as `sample`."""

import functools
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypedDict

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Int, Key
from typing_extensions import override

from coarea.arguments import checked_count
from coarea.errors import SettingError
from coarea.execution.blocks import AbstractTransition, Block, for_each_chain
from coarea.execution.places import Devices, Place
from coarea.execution.recording import Keep, check_keep, recorded_shapes
from coarea.execution.session import RunSettings, session
from coarea.keys import checked_seed
from coarea.results.datatree import check_names, finished
from coarea.xla import calls_lapack, jit_bounded

if TYPE_CHECKING:
    from xarray import DataTree

# Number of chains in one vectorised group on a CPU core.
_VMAP_WIDTH = 8


class MethodStats(NamedTuple):
    """Statistics of one transition; None where a method has no such statistic."""

    acceptance_rate: Float[Array, ""]
    diverging: Bool[Array, ""]
    lp: Float[Array, ""]
    n_steps: Int[Array, ""]
    energy: Float[Array, ""] | None = None
    step_size: Float[Array, ""] | None = None
    distance: Float[Array, ""] | None = None


class MethodDraw(NamedTuple):
    """A chain's next draw: its position, the quantities to report, and its statistics."""

    u: Float[Array, " M"]
    latents: dict[str, Array]
    stats: MethodStats


class Density(Protocol):
    """A target density: the log density of a position, and its meaning to the user."""

    @property
    def num_inputs(self) -> int:
        """The length of a position."""
        ...

    @property
    def observed(self) -> Mapping[str, np.ma.MaskedArray]:
        """The data by name."""
        ...

    def log_density(self, u: Array) -> Array:
        """The log density of a position."""
        ...

    def latents(self, u: Array) -> dict[str, Array]:
        """The quantities to report, by name."""
        ...

    def inputs(self, u: Array) -> dict[str, Array]:
        """The position itself, by name."""
        ...


class AbstractMethod(eqx.Module):
    """A Markov kernel with BlackJAX's contract, which may adapt in its first transitions."""

    target: eqx.AbstractVar[Any]  # a Density

    @abstractmethod
    def init(self, key: Key[Array, ""], u: Float[Array, " M"]) -> Any:
        """The state of a chain at u."""

    @abstractmethod
    def step(
        self, key: Key[Array, ""], state: Any, number: Int[Array, ""]
    ) -> tuple[Any, MethodDraw]:
        """The next state and its draw; transitions are numbered from 0."""


class Run(TypedDict, total=False):
    """The options of every method with chains; they have the same meaning in `coarea.sample`."""

    draws: int
    warmup: int
    chains: int
    seed: int
    start: ArrayLike | None
    keep: Keep
    devices: Devices
    progress: bool


@dataclass(frozen=True)
class Options:
    """The options of a run, with defaults for those not given."""

    draws: int = 1000
    warmup: int = 500
    chains: int = 4
    seed: int = 0
    start: ArrayLike | None = None
    keep: Keep = None
    devices: Devices = None
    progress: bool = True

    def __post_init__(self):
        for name, least in (("draws", 1), ("warmup", 0), ("chains", 1)):
            object.__setattr__(self, name, checked_count(name, getattr(self, name), least))
        object.__setattr__(self, "seed", checked_seed(self.seed))
        check_keep(self.keep)

    def given_starts(self, size: int) -> np.ndarray | None:
        """The user's start points, one for each chain, or None if none were given."""
        if self.start is None:
            return None
        try:
            u = np.asarray(self.start, dtype=float)
        except (TypeError, ValueError) as error:
            raise SettingError(f"start must be an array, a row for each chain: {error}.") from error
        if u.shape != (self.chains, size) or not np.all(np.isfinite(u)):
            raise SettingError(
                f"start has shape {u.shape}; {self.chains} chains need a row each of {size} finite "
                "numbers."
            )
        return u


def options_from(run: Mapping[str, Any]) -> Options:
    """Check the given options and add the defaults of all others."""
    known = [field.name for field in fields(Options)]
    for name in run:
        if name not in known:
            raise SettingError(f"there is no option {name!r}; there are {', '.join(known)}.")
    return Options(**run)


class MethodChain(NamedTuple):
    """What a chain passes from one block of draws to the next."""

    key: Key[Array, ""]
    state: Any


class ApproximateTransition(AbstractTransition):
    """Draws by an approximate method."""

    method: AbstractMethod
    keep_inputs: bool = eqx.field(static=True)
    longest_block: int = eqx.field(static=True)
    fuse: bool = eqx.field(static=True, default=False)

    @override
    def draw(self, chain: MethodChain, number):
        key = jax.random.fold_in(chain.key, number)
        state, drawn = self.method.step(key, chain.state, number)
        inputs = self.method.target.inputs(drawn.u) if self.keep_inputs else None
        return MethodChain(chain.key, state), Block(drawn.latents, inputs, drawn.stats)


def stored_shapes(target: Any, keep: Keep) -> dict[str, dict[str, Any]]:
    """The shapes of what is stored of each draw, by group; refused if it cannot be stored."""
    shapes = recorded_shapes(target, target.num_inputs, keep)
    check_names(shapes)
    return shapes


def run_chains(
    method: AbstractMethod,
    starts: Float[np.ndarray, "chains M"],
    options: Options,
    name: str,
    warmup: int,
    **about: Any,
) -> "DataTree":
    """Run chains of the method called `name` from `starts`; return ArviZ data."""
    target: Density = method.target
    u = jax.ShapeDtypeStruct((target.num_inputs,), float)
    # Batched LAPACK factorisations are slow on a CPU, and unsafe in two threads.
    width = 1 if calls_lapack(target.log_density, u) else min(options.chains, _VMAP_WIDTH)
    size = sum(x.size for x in jax.tree.leaves(stored_shapes(target, options.keep)))
    settings = RunSettings(
        options.draws,
        warmup,
        options.chains,
        options.seed,
        options.devices,
        progress=options.progress,
    )
    with session(settings, width, size) as this:
        program = ApproximateTransition(
            method=method,
            keep_inputs=options.keep == "inputs",
            longest_block=this.longest_block,
        )

        def begin_at(place: Place):
            return functools.partial(_begin, method, place.keys(options.seed), place.put(starts))

        result, _ = this.run(program, begin_at)
    facts = {"method": name, **this.facts(), "tuning_steps": options.warmup, **about}
    return finished(result, target.observed, facts, stacklevel=5)


@jit_bounded
def _begin(method: AbstractMethod, keys, u) -> MethodChain:
    return for_each_chain(lambda start, run, u: MethodChain(run, method.init(start, u)))(
        keys.start, keys.run, u
    )
