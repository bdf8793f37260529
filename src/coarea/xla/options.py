"""Whether XLA gets hints, and the compiler options among them.

The hints are these compiler options, `materialize` and `fuse_cpu`. They rely on behaviour of XLA
that is not documented, so they are on only for the versions of JAX that the tests have run with. On
any other version every program is compiled by plain `jax.jit`, and a line in the log says so. The
environment variable `COAREA_XLA_HINTS` decides otherwise: 0 switches the hints off, 1 on. Draws
differ in their last bits only.
"""

import functools
import logging
import os

import jax

# The tests have run with these.
_TRIED_VERSIONS = ((0, 10), (0, 11))
_VARIABLE = "COAREA_XLA_HINTS"
_LEVEL = "xla_backend_optimization_level"

# XLA:CPU sums a long row in pieces, for accuracy, and each piece is a kernel of its own. Doubles
# have digits to spare: without these pieces a transition of Lotka–Volterra takes a quarter less
# time. Small products are compiled in place, because calling a library takes longer than they do.
_DISABLED_PASSES = ("tree_reduction_rewriter", "dot-library-rewriter")
# A loop inside a fused kernel cannot be shared among cores.
_DISABLED_IN_FUSED = (*_DISABLED_PASSES, "cpu-parallel-task-assigner")


def hints_enabled() -> bool:
    """Whether programs get hints, by the environment variable or else by JAX's version."""
    chosen = os.environ.get(_VARIABLE, "")
    return chosen != "0" if chosen else _is_tried()


@functools.cache
def _is_tried() -> bool:
    if jax.__version_info__[:2] in _TRIED_VERSIONS:
        return True
    logging.getLogger("coarea").warning(
        "coarea's hints to XLA were not tried with jax %s and are off: results are the same, but "
        "small models may run at a third of their speed. %s=1 switches them on.",
        jax.__version__,
        _VARIABLE,
    )
    return False


def for_transitions(fused: bool) -> dict[str, str]:
    """Options for programs that run for long."""
    if not hints_enabled():
        return {}
    return {"xla_disable_hlo_passes": ",".join(_DISABLED_IN_FUSED if fused else _DISABLED_PASSES)}


def for_fast_compile(level: int) -> dict[str, bool | int]:
    """Options that halve compile time. An optimisation level in the user's XLA_FLAGS is kept."""
    if not hints_enabled():
        return {}
    # Later versions have no other emitter to choose, and XLA aborts on options it does not know.
    options: dict[str, bool | int] = (
        {"xla_cpu_use_fusion_emitters": False} if jax.__version_info__ < (0, 11) else {}
    )
    if _LEVEL not in os.environ.get("XLA_FLAGS", ""):
        options[_LEVEL] = level
    return options
