import gc
import os
from importlib.metadata import version
from pathlib import Path

# Most of these tests' time is XLA's compiling; less of that halves it.
# JAX's later versions do not know the second flag, and XLA dies of what it does not know.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0"
    + " --xla_cpu_use_fusion_emitters=false" * version("jax").startswith("0.10."),
)

import jax
import pytest

jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture
def x64():
    """For tests that work below the top-level calls, which enter double precision themselves."""
    with jax.enable_x64(True):
        yield


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
