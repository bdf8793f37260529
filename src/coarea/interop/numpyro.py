"""Constrained NUTS as a kernel for `numpyro.infer.MCMC`."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jaxtyping import Array
from numpyro.infer.mcmc import MCMCKernel
from numpyro.util import is_prng_key

from coarea.errors import SettingError
from coarea.execution.transitions import ChainState, TransitionStats, begin, transition
from coarea.generators import AbstractGenerator
from coarea.initialisation.approach import improve
from coarea.initialisation.checks import check_starts
from coarea.initialisation.search import search
from coarea.jacobians.choose import Structure
from coarea.kernels import NUTS
from coarea.kernels.kernel import AbstractKernel
from coarea.keys import typed_keys
from coarea.manifolds import AbstractTarget, Posterior, condition
from coarea.manifolds.target import to_model_space
from coarea.precision import require_float64
from coarea.sampling.sample import plan_for


class ConstrainedState(NamedTuple):
    """What `extra_fields` may name: the draw, how it came about, and the chain itself."""

    i: Array
    z: dict[str, Array]  # coordinates by site
    potential_energy: Array
    energy: Array
    num_steps: Array
    accept_prob: Array
    mean_accept_prob: Array
    diverging: Array
    convergence_error: Array
    non_reversible_step: Array
    constraint_error: Array
    step_size: Array
    chain: ChainState
    rng_key: Array


class ConstrainedNUTS(MCMCKernel):
    """Draws from a NumPyro model given exact values of any of its sites, under NumPyro's driver.

    `observed`, `lift` and `structure` are those of `coarea.condition`; the model's arguments are
    those of `MCMC.run`. Another of coarea's kernels may be given as `kernel`. Exactness needs
    double precision, which here the caller switches on.

    >>> import coarea as co, jax, numpyro, numpyro.distributions as dist
    >>> def model():
    ...     x = numpyro.sample("x", dist.Exponential(1.0).expand([3]).to_event(1))
    ...     numpyro.deterministic("total", x.sum())
    >>> with jax.enable_x64(True):
    ...     kernel = co.interop.numpyro.ConstrainedNUTS(model, observed={"total": 6.0})
    ...     mcmc = numpyro.infer.MCMC(kernel, num_warmup=200, num_samples=100, progress_bar=False)
    ...     mcmc.run(jax.random.key(0))
    ...     bool(abs(mcmc.get_samples()["x"].sum(1) - 6.0).max() < 1e-7)
    True
    """

    sample_field = "z"  # pyright: ignore
    default_fields = ("z", "diverging")  # pyright: ignore

    def __init__(
        self,
        model: Callable,
        observed: Mapping[str, Any] | None = None,
        *,
        lift: Iterable[str] | None = None,
        structure: Structure = "auto",
        kernel: AbstractKernel = NUTS(),
    ):
        if isinstance(model, AbstractGenerator):
            raise SettingError(
                "ConstrainedNUTS takes a NumPyro model; a coarea generator is sampled with "
                "coarea.sample(coarea.condition(model, observed))."
            )
        if not isinstance(kernel, AbstractKernel):
            raise SettingError(f"kernel={kernel!r}: give a kernel such as coarea.NUTS().")
        self._model, self._observed, self._lift = model, observed, lift
        self._structure: Structure = structure
        self._kernel = kernel
        self._target: AbstractTarget | None = None
        self._plan: Any = None
        self._known: tuple | None = None

    @property
    def model(self) -> Callable:
        """The NumPyro model."""
        return self._model

    def init(self, rng_key, num_warmup, init_params=None, model_args=(), model_kwargs=None):
        """A start on the manifold for each key."""
        require_float64("ConstrainedNUTS")
        if self._kernel.adapts and num_warmup < 20:
            raise SettingError(
                f"num_warmup={num_warmup} is too short to find {self._kernel.adapts}: give 20 or "
                "more, or kernel=coarea.NUTS(step_size=…)."
            )
        self._prepare(num_warmup, model_args, model_kwargs or {})
        target, plan = self._target, self._plan
        assert target is not None
        tolerance = self._kernel.integrator.tolerance_for(jnp.zeros(()).dtype)
        rng_key = typed_keys(rng_key)
        is_single = is_prng_key(rng_key)
        keys = rng_key[None] if is_single else rng_key
        if init_params is None:
            starts = search(target.ambient, keys, tolerance)
        else:
            z = jax.tree.map(lambda x: x[None], init_params) if is_single else init_params
            starts = improve(target.ambient, jax.vmap(self._flat)(z), tolerance)
        if not isinstance(starts.u, Tracer):
            check_starts(target.ambient, starts, tolerance)
        chains = begin(plan, target, keys, jax.vmap(target.restrict)(starts.u), None)
        states = jax.vmap(self._first)(chains)
        return jax.tree.map(lambda x: x[0], states) if is_single else states

    def _prepare(self, num_warmup, args, kwargs) -> None:
        """The target for these arguments; the last one's, if they are the same objects."""
        known = (num_warmup, *args, *kwargs.keys(), *kwargs.values())
        last = self._known or ()
        if len(known) == len(last) and all(a is b for a, b in zip(known, last, strict=True)):
            return
        # Under pmap this is traced, but model and data are known.
        with jax.ensure_compile_time_eval():
            self._target = condition(
                self._model,
                self._observed,
                args=args,
                kwargs=kwargs,
                lift=self._lift,
                structure=self._structure,
            )
            self._plan = plan_for(self._target, self._kernel, num_warmup)
        self._known = known

    def sample(self, state: ConstrainedState, model_args, model_kwargs) -> ConstrainedState:
        """One transition of each chain."""
        if any(isinstance(x, Tracer) for x in jax.tree.leaves((model_args, model_kwargs))):
            raise SettingError(
                "ConstrainedNUTS reads the data when it is initialised: leave out "
                "MCMC(jit_model_args=True)."
            )
        if state.i.ndim == 0:
            return self._next(state, state.i)
        return jax.vmap(self._next, in_axes=(0, None))(state, state.i[0])

    def postprocess_fn(self, model_args, model_kwargs):  # pyright: ignore
        """From coordinates to the values of all sites that were not observed."""
        target = self._target
        assert target is not None
        return lambda z: target.latents(target.restrict(self._flat(z)))

    def get_diagnostics_str(self, state: ConstrainedState) -> str:  # pyright: ignore
        """For the progress bar."""
        return (
            f"{state.num_steps} steps of size {state.step_size:.2e}. "
            f"acc. prob={state.mean_accept_prob:.2f}"
        )

    def _flat(self, z: dict[str, Array]) -> Array:
        assert self._target is not None
        whole = self._target.ambient
        assert isinstance(whole, Posterior)
        names = whole.generator.inputs.names
        return jnp.concatenate([jnp.asarray(z[name], float).ravel() for name in names])

    def _first(self, chain: ChainState) -> ConstrainedState:
        zero, no = jnp.zeros(()), jnp.asarray(False)
        stats = TransitionStats(
            acceptance_rate=zero,
            diverging=no,
            energy=chain.state.energy,
            lp=chain.state.logdensity,
            n_steps=jnp.asarray(0),
            tree_depth=jnp.asarray(0),
            step_size=zero,
            convergence_error=no,
            non_reversible_step=no,
            constraint_error=zero,
        )
        u = to_model_space(chain.state.position, chain.adaptation.units)
        return self._state(jnp.asarray(0), chain, u, stats, zero, chain.key)

    def _next(self, state: ConstrainedState, number) -> ConstrainedState:
        assert self._target is not None
        chain = state.chain._replace(
            key=typed_keys(state.rng_key)
        )  # the driver may have put in another
        chain, u, stats = transition(self._plan, self._target, chain, number)
        # The mean of this phase, as NumPyro's own kernels have it.
        length = self._plan.warmup.length
        age = jnp.where(number < length, number, number - length) + 1
        mean = state.mean_accept_prob
        mean = mean + (stats.acceptance_rate - mean) / age
        return self._state(number + 1, chain, u, stats, mean, state.rng_key)

    def _state(self, i, chain, u, stats: TransitionStats, mean, rng_key) -> ConstrainedState:
        assert self._target is not None
        return ConstrainedState(
            i=i,
            z=self._target.inputs(u),
            potential_energy=-stats.lp,
            energy=stats.energy,
            num_steps=stats.n_steps,
            accept_prob=stats.acceptance_rate,
            mean_accept_prob=mean,
            diverging=stats.diverging,
            convergence_error=stats.convergence_error,
            non_reversible_step=stats.non_reversible_step,
            constraint_error=stats.constraint_error,
            step_size=stats.step_size,
            chain=chain,
            rng_key=rng_key,
        )
