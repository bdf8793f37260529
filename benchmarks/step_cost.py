"""Cost of a constrained step, relative to one value and gradient of the log likelihood."""

import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import coarea as co
from benchmarks.harness import Report, bars
from benchmarks.lotka_volterra import log_density
from coarea.dynamics import AbstractIntegrator, Leapfrog, Rattle
from coarea.execution.blocks import for_each_chain
from coarea.jacobians.linalg import small
from coarea.manifolds import AbstractTarget
from coarea.manifolds.parametrisation import chart_of
from coarea.manifolds.rescaling import Rescaling
from coarea.precision import in_float64
from coarea.studies import lotka_volterra
from coarea.xla import fuse_cpu
from coarea.xla.options import for_transitions

ABOUT = """
The cost of one integration step, compared with that of one value and gradient of the log likelihood, which this model
happens to have. A manifold step uses the elementwise structure and consists of kick, projection, linearisation with the
gradient of the determinant, kick and reverse check (step size 1.5, a new momentum each time). A chart step
(`parametrisation="chart"`, step size 0.8) consists of a gradient and two kicks. Each is repeated a thousand times in a compiled
loop; the time is the minimum of 5 such loops.

Both kinds of step are compiled as in `co.sample`: the loop is a single fused CPU kernel, where XLA by default would launch
some hundred kernels. Several chains run sequentially on the manifold and vectorised in the chart. The gradient is compiled
once by plain `jax.jit`, as in NumPyro and BlackJAX, and once fused like the steps, which is faster.
"""
REPEATS = 1000


def sequential(function):
    """Map over chains sequentially."""
    return lambda *chains: jax.lax.map(lambda chain: function(*chain), chains)


def timed(function, *args, fuse=True) -> float:
    """Microseconds per repetition."""
    if fuse:
        function = jax.jit(
            lambda *args, mapped=function: fuse_cpu(mapped, args),
            compiler_options=for_transitions(fused=True),
        )
        assert "xla_cpu_small_call" in function.lower(*args).as_text()
    else:
        function = jax.jit(function)
    jax.block_until_ready(function(*args))
    times = []
    for _ in range(5):
        began = time.perf_counter()
        jax.block_until_ready(function(*args))
        times.append(time.perf_counter() - began)
    return 1e6 * min(times) / REPEATS


class Loops(NamedTuple):
    """Loops for one chain: steps with momentum refreshment, refreshment only, and gradients."""

    target: AbstractTarget
    y: np.ndarray
    size: float
    integrator: AbstractIntegrator = Rattle()

    def steps(self, u, keys):
        def step(carry, key):
            state, failures = carry
            start = self.integrator.refresh(key, state)
            end = self.integrator.step(self.target, start, jnp.asarray(self.size))
            return (end, failures + end.failed), ()

        start = self.integrator.init(self.target, u)
        end, failures = jax.lax.scan(step, (start, jnp.zeros((), int)), keys)[0]
        # Return every result of a step: XLA removes computations whose results are not used.
        return end.position, end.energy, failures

    def refreshes(self, u, keys):
        def refresh(state, key):
            return self.integrator.refresh(key, state), ()

        return jax.lax.scan(refresh, self.integrator.init(self.target, u), keys)[0].momentum

    def gradients(self, u, keys):
        density = log_density(self.y)

        def move(v, _):
            value, gradient = jax.value_and_grad(density)(v)
            return v + 1e-9 * gradient / (1 + jnp.abs(value)), ()

        return jax.lax.scan(move, u[:4], keys)[0]


@in_float64
def run() -> Report:
    y = lotka_volterra.dataset(seed=0)
    model = lotka_volterra.markov_generator()
    loops = Loops(co.condition(model, {"y": y}), y, 1.5)
    chart = chart_of(loops.target).target
    lines, numbers, times = [], {}, {}
    for chains in (1, 8):
        u = jnp.asarray(co.find_start(loops.target, jax.random.key(0), chains))
        keys = jax.random.split(jax.random.key(1), (chains, REPEATS))
        refresh = timed(sequential(loops.refreshes), u, keys)
        step = timed(sequential(loops.steps), u, keys) - refresh
        v = u[:, :4]
        curvature = jax.hessian(lambda v: -chart.log_density(v))(v[0])
        scales = small.root_of_inverse(curvature)
        in_chart = Loops(chart.rescale(Rescaling(scales)), y, 0.8, Leapfrog())
        v = jnp.linalg.solve(scales, v.T).T
        chart_refresh = timed(for_each_chain(in_chart.refreshes), v, keys)
        chart_step = timed(for_each_chain(in_chart.steps), v, keys) - chart_refresh
        plain = timed(for_each_chain(loops.gradients), u, keys, fuse=False)
        gradient = timed(for_each_chain(loops.gradients), u, keys)
        lines.append(
            [
                str(chains),
                f"{step:.1f}",
                f"{plain:.2f}",
                f"{step / plain:.1f}",
                f"{chart_step:.2f}",
                f"{chart_step / plain:.1f}",
                f"{gradient:.2f}",
                f"{step / gradient:.1f}",
                f"{chart_step / gradient:.1f}",
            ]
        )
        numbers[f"{chains} chains"] = {
            "step": step,
            "refresh": refresh,
            "chart step": chart_step,
            "chart refresh": chart_refresh,
            "gradient by plain jit": plain,
            "gradient": gradient,
        }
        times |= {
            f"coarea, manifold step, {chains}": step,
            f"coarea, chart step, {chains}": chart_step,
            f"value and gradient, plain jax.jit, {chains}": plain,
            f"value and gradient, fused, {chains}": gradient,
        }
    heading = [
        "chains",
        "manifold step, µs",
        "value and gradient, plain `jax.jit`, µs",
        "manifold step / plain gradient",
        "chart step, µs",
        "chart step / plain gradient",
        "value and gradient, fused, µs",
        "manifold step / fused gradient",
        "chart step / fused gradient",
    ]
    figure = bars(times, "µs (last number: number of chains)")
    return Report(
        "Cost of a step relative to a gradient", ABOUT, [(heading, lines)], numbers, figure
    )
