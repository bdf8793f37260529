"""One chain on the Lotka–Volterra posterior, dense Jacobian: coarea beside mici.

Both get the same data, start point, flow, step size and numbers of steps (the paper's, and a longer
step that suits both better), in float64 and one process. mici is given jitted JAX functions.
Compilation is not counted. mici is run as it comes and with LAPACK held to one thread, which coarea
does for itself: on few cores SciPy's own threads slow both down several times. Ratios are to the
better of mici's two solvers.
"""

import logging
import time
from functools import partial

import jax
import mici
import numpy as np
from arviz_stats.sampling_diagnostics import ess
from rich.console import Console
from rich.table import Table
from threadpoolctl import threadpool_limits

import coarea as co
from coarea.dynamics import Newton, QuasiNewton, Rattle, Rotation, Straight
from coarea.experiments import lotka_volterra

# step size, fewest and most integration steps, geodesic steps
SETTINGS = {"paper": (0.25, (4, 8), 3), "long": (1.0, (1, 3), 1)}


def run_coarea(posterior, start, step_size, num_steps, geodesic_steps, flow, solver, draws):
    kernel = co.CHMC(
        num_steps=num_steps,
        geodesic_steps=geodesic_steps,
        step_size=step_size,
        integrator=Rattle(flow=flow, solvers=(solver,)),
    )
    options = {"warmup": 0, "chains": 1, "kernel": kernel, "start": start, "progress": False}
    co.sample(posterior, draws=2, **options)  # compiles
    began = time.perf_counter()
    result = co.sample(posterior, draws=draws, **options)
    seconds = time.perf_counter() - began
    stats = result.sample_stats
    return {
        "log_z": np.log(result.posterior["z"].values),
        "steps": int(stats["n_steps"].sum()),
        "acceptance": float(stats["acceptance_rate"].mean()),
        "seconds": seconds,
    }


def run_mici(posterior, start, step_size, num_steps, geodesic_steps, solver, threads, draws):
    jacobian = jax.jacfwd(posterior.residual)
    jitted_jacobian = jax.jit(lambda u: (jacobian(u), posterior.residual(u)))
    product = jax.jit(lambda u, m: jax.vjp(jacobian, u)[1](m)[0])
    constraint = jax.jit(lambda u: posterior.residual(u))

    def jacob_constr(u):
        J, c = jitted_jacobian(u)
        return np.asarray(J), np.asarray(c)

    system = mici.systems.DenseConstrainedEuclideanMetricSystem(
        neg_log_dens=lambda u: 0.5 * u @ u,
        grad_neg_log_dens=lambda u: (u, 0.5 * u @ u),
        constr=lambda u: np.asarray(constraint(u)),
        jacob_constr=jacob_constr,
        mhp_constr=lambda u: (lambda m: np.asarray(product(u, m)), *jacob_constr(u)),
        dens_wrt_hausdorff=False,
    )
    integrator = mici.integrators.ConstrainedLeapfrogIntegrator(
        system, step_size, n_inner_step=geodesic_steps, projection_solver=solver
    )
    sampler = mici.samplers.RandomMetropolisHMC(
        system, integrator, np.random.default_rng(0), n_step_range=num_steps
    )
    sample = partial(
        sampler.sample_chains,
        n_warm_up_iter=0,
        init_states=[start],
        trace_funcs=[lambda state: {"log_z": state.pos[:4] - 2.0}],
        display_progress=False,
    )
    with threadpool_limits(threads, user_api="blas"):
        sample(n_main_iter=2)  # compiles
        began = time.perf_counter()
        result = sample(n_main_iter=draws)
    return {
        "log_z": np.stack(result.traces["log_z"]),
        "steps": int(np.sum(result.statistics["n_step"])),
        "acceptance": float(np.mean(result.statistics["accept_stat"])),
        "seconds": time.perf_counter() - began,
    }


def main(draws: int = 1000):
    logging.disable(logging.WARNING)
    y = lotka_volterra.dataset(seed=0)
    posterior = co.condition(lotka_volterra.generator(), {"y": y}, structure="dense")
    start = co.find_start(posterior, jax.random.key(0), 1)
    quasi_newton = mici.solvers.solve_projection_onto_manifold_quasi_newton
    newton = mici.solvers.solve_projection_onto_manifold_newton
    table = Table("settings", "program", "flow", "solver", "accept", "ms/step", "min ESS/s",
                  "× mici", "× mici, 1 thread")  # fmt: skip
    solvers = {"quasi-Newton": (quasi_newton, QuasiNewton()), "Newton": (newton, Newton())}
    with jax.enable_x64(True):
        for name, settings in SETTINGS.items():
            rows = {}
            for program, threads, num in (
                ("mici", None, draws // 10),
                ("mici, 1 thread", 1, draws // 5),
            ):
                for solver, (theirs, _) in solvers.items():
                    rows[program, "straight", solver] = run_mici(
                        posterior, start[0], *settings, theirs, threads, num
                    )
            for flow in (Straight(), Rotation()):
                for solver, (_, ours) in solvers.items():
                    rows["coarea", type(flow).__name__.lower(), solver] = run_coarea(
                        posterior, start, *settings, flow, ours, draws
                    )
            best = [
                max(_rate(row) for key, row in rows.items() if key[0] == program)
                for program in ("mici", "mici, 1 thread")
            ]
            for key, row in rows.items():
                table.add_row(
                    name,
                    *key,
                    f"{row['acceptance']:.3f}",
                    f"{1e3 * row['seconds'] / row['steps']:.2f}",
                    f"{_rate(row):.1f}",
                    *(f"{_rate(row) / peer:.1f}" for peer in best),
                )
    Console(width=120).print(table)


def _rate(row) -> float:
    return min(float(ess(row["log_z"][..., i])) for i in range(4)) / row["seconds"]


if __name__ == "__main__":
    main()
