import gc
import os
from importlib.metadata import version
from pathlib import Path

# Most of the time of these tests is compilation, which takes half as long without optimisation.
# With COAREA_TEST_SHIPPED=1 programs are compiled as users compile them. Later versions of JAX do
# not know the second flag, and XLA aborts on flags that it does not know.
if os.environ.get("COAREA_TEST_SHIPPED", "0") == "0":
    os.environ.setdefault(
        "XLA_FLAGS",
        "--xla_backend_optimization_level=0"
        + " --xla_cpu_use_fusion_emitters=false" * version("jax").startswith("0.10."),
    )

import jax
import pytest

from coarea.xla import programs

jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture
def x64():
    """For tests that work below the top-level calls, which enter double precision themselves."""
    with jax.enable_x64(True):
        yield


@pytest.fixture
def compilations():
    """A list that grows with each program that XLA compiles.

    Programs that earlier tests compiled are dropped, so that the test does not find them.
    """
    programs._programs.clear()
    seen = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, *_, **__: seen.append(event) if "backend_compile" in event else None
    )
    return seen


@pytest.fixture(autouse=True)
def room_for_programs():
    """Every compiled program maps memory, and a process that compiles hundreds runs out of maps.

    XLA then dies without a word (Linux allows 65 530); so programs are dropped in time.
    """
    yield
    maps = Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > 20_000:
        jax.clear_caches()
        gc.collect()
