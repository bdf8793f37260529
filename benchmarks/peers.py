"""The peers, each called as by its users: `draw(seed)` returns draws (chain, draw, element)."""

import contextlib
import logging
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import blackjax
import jax
import numpy as np
from threadpoolctl import threadpool_limits

import coarea as co
from coarea.execution.run import num_cores


def ours(target, name, transform=np.asarray, **options):
    """`co.sample` with its defaults, except for `options`."""

    def draw(seed):
        result = co.sample(target, seed=seed, progress=False, **options)
        x = transform(result.posterior[name].values)
        return x.reshape(*x.shape[:2], -1)

    return draw


def numpyro_nuts(model, name, *args, draws, warmup, chains):
    """NumPyro's NUTS; several chains are vectorised."""
    import numpyro

    sampler = numpyro.infer.MCMC(
        numpyro.infer.NUTS(model),
        num_warmup=warmup,
        num_samples=draws,
        num_chains=chains,
        chain_method="vectorized" if chains > 1 else "sequential",
        progress_bar=False,
    )

    def draw(seed):
        with jax.enable_x64(True):
            sampler.run(jax.random.key(seed), *args)
            return np.asarray(sampler.get_samples(group_by_chain=True)[name])

    return draw


def blackjax_nuts(log_density, size, draws, warmup, chains, diagonal=True):
    """BlackJAX's NUTS from prior draws, with window adaptation; chains are spread over the cores."""

    def one(key):
        start_key, warmup_key, run_key = jax.random.split(key, 3)
        adapt = blackjax.window_adaptation(
            blackjax.nuts, log_density, is_mass_matrix_diagonal=diagonal
        )
        start = jax.random.normal(start_key, (size,))
        (state, parameters), _ = adapt.run(warmup_key, start, num_steps=warmup)
        kernel = blackjax.nuts(log_density, **parameters)

        def step(state, key):
            state, _ = kernel.step(key, state)
            return state, state.position

        return jax.lax.scan(step, state, jax.random.split(run_key, draws))[1]

    compiled = jax.jit(lambda keys: jax.lax.map(one, keys))
    threads = min(chains, num_cores())

    def part(keys):
        with jax.enable_x64(True):
            return np.asarray(compiled(keys))

    def draw(seed):
        with jax.enable_x64(True), ThreadPoolExecutor(threads) as pool:
            keys = jax.random.split(jax.random.key(seed), chains)
            return np.concatenate(list(pool.map(part, np.split(keys, threads))))

    return draw


def nutpie_nuts(model, name, draws, warmup, chains):
    """nutpie on a PyMC model, compiled by Numba, on all cores."""
    import nutpie

    compiled = []

    def draw(seed):
        if not compiled:
            compiled.append(nutpie.compile_pymc_model(model))
        result = nutpie.sample(
            compiled[0], draws=draws, tune=warmup, chains=chains, seed=seed, progress_bar=False
        )
        return result.posterior[name].values

    return draw


def mici_chmc(target, start, draws, size, step_size=None, num_steps=None, warmup=0):
    """mici's constrained HMC with jitted functions and the determinant, which it omits by default.

    One chain from a given start. It uses the given step size and numbers of steps, or mici's own
    warm-up and dynamic trajectories. SciPy's LAPACK is limited to one thread, which is several
    times faster on few cores. Draws are the first `size` inputs. `draw.steps` is the number of
    steps of the last run.
    """
    import mici

    jacobian = jax.jacfwd(target.residual)
    jitted_jacobian = jax.jit(lambda u: (jacobian(u), target.residual(u)))
    product = jax.jit(lambda u, m: jax.vjp(jacobian, u)[1](m)[0])
    constraint = jax.jit(lambda u: target.residual(u))

    def jacob_constr(u):
        J, c = jitted_jacobian(u)
        return np.asarray(J), np.asarray(c)

    def draw(seed):
        with _quiet(), jax.enable_x64(True), threadpool_limits(1, user_api="blas"):
            system = mici.systems.DenseConstrainedEuclideanMetricSystem(
                neg_log_dens=lambda u: 0.5 * u @ u,
                grad_neg_log_dens=lambda u: (u, 0.5 * u @ u),
                constr=lambda u: np.asarray(constraint(u)),
                jacob_constr=jacob_constr,
                mhp_constr=lambda u: (lambda m: np.asarray(product(u, m)), *jacob_constr(u)),
                dens_wrt_hausdorff=False,
            )
            integrator = mici.integrators.ConstrainedLeapfrogIntegrator(
                system,
                step_size,
                projection_solver=mici.solvers.solve_projection_onto_manifold_quasi_newton,
            )
            rng = np.random.default_rng(seed)
            if num_steps is None:
                sampler = mici.samplers.DynamicMultinomialHMC(system, integrator, rng)
            else:
                sampler = mici.samplers.RandomMetropolisHMC(
                    system, integrator, rng, n_step_range=num_steps
                )
            adapters = [mici.adapters.DualAveragingStepSizeAdapter()] if warmup else None
            sample = partial(
                sampler.sample_chains,
                n_warm_up_iter=warmup,
                adapters=adapters,
                init_states=[np.asarray(start)],
                trace_funcs=[lambda state: {"u": state.pos[:size]}],
                display_progress=False,
            )
            result = sample(n_main_iter=draws)
            draw.steps = int(np.sum(result.statistics["n_step"]))
            return np.stack(result.traces["u"])

    return draw


@contextlib.contextmanager
def _quiet():
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
