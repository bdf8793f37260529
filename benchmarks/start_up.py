"""Start-up time: the import, and the first draw."""

import os
import subprocess
import sys
import tempfile
import time

from benchmarks.harness import Report, bars

ABOUT = """
Times in seconds of fresh processes, median of three: import of JAX, import of coarea (which imports JAX), and `co.condition`
and `co.sample` on Lotka–Volterra (1 chain, 20 warm-up transitions, 1 draw). The last is repeated with JAX's persistent
compilation cache filled (`JAX_COMPILATION_CACHE_DIR`; see the README).
"""
_FIRST_DRAW = """
import time, coarea as co
from coarea.studies import lotka_volterra as lv
y = lv.dataset(0)
began = time.perf_counter()
posterior = co.condition(lv.{model}(), {{"y": y}})
co.sample(posterior, draws=1, warmup=20, chains=1, progress=False)
print(time.perf_counter() - began)
"""


def seconds(code: str, **environment: str) -> float:
    """Median over three processes of the time printed last, or else of their duration."""
    inherited = {k: v for k, v in os.environ.items() if k != "JAX_COMPILATION_CACHE_DIR"}
    found = []
    for _ in range(3):
        began = time.perf_counter()
        process = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={**inherited, **environment},
        )
        taken = time.perf_counter() - began
        found.append(float(process.stdout.split()[-1]) if process.stdout.strip() else taken)
    return sorted(found)[1]


def run() -> Report:
    empty, jax = seconds("pass"), seconds("import jax, jax.numpy")
    whole = seconds("import coarea")
    lines = [
        ["import jax", f"{jax - empty:.2f}"],
        ["import coarea, in addition", f"{whole - jax:.2f}"],
    ]
    numbers = {"import jax": jax - empty, "import coarea": whole - jax}
    for name, model in (("co.Markov", "markov_generator"), ("co.Generator", "generator")):
        code = _FIRST_DRAW.format(model=model)
        with tempfile.TemporaryDirectory() as cache:
            cold = seconds(code)
            cached = {
                "JAX_COMPILATION_CACHE_DIR": cache,
                "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            }
            seconds(code, **cached)
            warm = seconds(code, **cached)
        lines += [
            [f"first draw, {name}", f"{cold:.1f}"],
            [f"first draw, {name}, with a cache", f"{warm:.1f}"],
        ]
        numbers |= {f"first draw, {name}": cold, f"first draw, {name}, cached": warm}
    figure = bars({name: float(s) for name, s in lines}, "s")
    return Report("Start-up", ABOUT, [(["", "s"], lines)], numbers, figure)
