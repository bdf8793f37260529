"""Constrained NUTS as a kernel for `numpyro.infer.MCMC`."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jaxtyping import Array
from numpyro.infer.mcmc import MCMCKernel
from numpyro.util import is_prng_key
from typing_extensions import override

from coarea.errors import SettingError
from coarea.execution.transitions import ChainState, TransitionStats
from coarea.generators import AbstractGenerator
from coarea.jacobians.choose import StructureName
from coarea.kernels import NUTS
from coarea.kernels.kernel import AbstractKernel
from coarea.keys import typed_keys
from coarea.manifolds import Density, Posterior, condition
from coarea.precision import require_float64
from coarea.sampling.stepper import Stepper, stepper_for


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

    `observed`, `noise_inputs` and `structure` are those of `coarea.condition`. The arguments of the
    model are those of `MCMC.run`. Another of coarea's kernels may be given as `kernel`. Exactness
    needs double precision, which the caller switches on.

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
        noise_inputs: Iterable[str] | None = None,
        structure: StructureName = "auto",
        kernel: AbstractKernel = NUTS(),
    ):
        if isinstance(model, AbstractGenerator):
            raise SettingError(
                "ConstrainedNUTS takes a NumPyro model; a coarea generator is sampled with "
                "coarea.sample(coarea.condition(model, observed))."
            )
        if not isinstance(kernel, AbstractKernel):
            raise SettingError(f"kernel={kernel!r}: give a kernel such as coarea.NUTS().")
        self._model, self._observed, self._noise_inputs = model, observed, noise_inputs
        self._structure: StructureName = structure
        self._kernel = kernel
        self._stepper: Stepper | None = None
        self._known: tuple | None = None

    @property
    def model(self) -> Callable:
        """The NumPyro model."""
        return self._model

    @override
    def init(self, rng_key, num_warmup, init_params=None, model_args=(), model_kwargs=None):
        """A start on the manifold for each key."""
        require_float64("ConstrainedNUTS")
        if self._kernel.adapts and num_warmup < 20:
            raise SettingError(
                f"num_warmup={num_warmup} is too short to find {self._kernel.adapts}: give 20 or "
                "more, or kernel=coarea.NUTS(step_size=…)."
            )
        stepper = self._prepare(num_warmup, model_args, model_kwargs or {})
        rng_key = typed_keys(rng_key)
        is_single = is_prng_key(rng_key)
        keys, z = rng_key, init_params
        if is_single:
            keys, z = keys[None], jax.tree.map(lambda x: x[None], z)
        chains = stepper.start(keys, None if z is None else jax.vmap(self._flat)(z))
        states = jax.vmap(self._first)(chains)
        return jax.tree.map(lambda x: x[0], states) if is_single else states

    def _prepare(self, num_warmup, args, kwargs) -> Stepper:
        """The stepper for these arguments: the last one, if they are the same objects."""
        known = (num_warmup, *args, *kwargs.keys(), *kwargs.values())
        last = self._known or ()
        if len(known) == len(last) and all(a is b for a, b in zip(known, last, strict=True)):
            return self._made
        # Under pmap this is traced, but model and data are known.
        with jax.ensure_compile_time_eval():
            target = condition(
                self._model,
                self._observed,
                args=args,
                kwargs=kwargs,
                noise_inputs=self._noise_inputs,
                structure=self._structure,
            )
            self._stepper = stepper_for(target, self._kernel, num_warmup)
        self._known = known
        return self._stepper

    @property
    def _made(self) -> Stepper:
        assert self._stepper is not None
        return self._stepper

    @override
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
        target = self._made.target
        return lambda z: target.reporter.latents(self._flat(z))

    def get_diagnostics_str(self, state: ConstrainedState) -> str:  # pyright: ignore
        """For the progress bar."""
        return (
            f"{state.num_steps} steps of size {state.step_size:.2e}. "
            f"acc. prob={state.mean_accept_prob:.2f}"
        )

    def _flat(self, z: dict[str, Array]) -> Array:
        target = self._made.target
        assert isinstance(target, Posterior | Density)
        names = target.generator.inputs.names
        return jnp.concatenate([jnp.asarray(z[name], float).ravel() for name in names])

    def _first(self, chain: ChainState) -> ConstrainedState:
        stepper = self._made
        stats = stepper.first_stats(chain)
        return self._state(
            jnp.asarray(0), chain, stepper.position(chain), stats, jnp.zeros(()), chain.key
        )

    def _next(self, state: ConstrainedState, number) -> ConstrainedState:
        # The driver may have put in another key.
        chain = state.chain._replace(key=typed_keys(state.rng_key))
        chain, u, stats = self._made.step(chain, number)
        # The mean of this phase, as NumPyro's own kernels have it.
        mean = state.mean_accept_prob
        mean = mean + (stats.acceptance_rate - mean) / self._made.phase_age(number)
        return self._state(number + 1, chain, u, stats, mean, state.rng_key)

    def _state(self, i, chain, u, stats: TransitionStats, mean, rng_key) -> ConstrainedState:
        return ConstrainedState(
            i=i,
            z=self._made.target.reporter.inputs(u),
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
