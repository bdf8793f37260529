"""Different code for a CPU and for other devices, chosen when a program is compiled."""

from collections.abc import Callable
from typing import Any, TypeVar

import jax

T = TypeVar("T")


def on_cpu(function: Callable[..., T], *args: Any, otherwise: Callable[..., T]) -> T:
    """`function(*args)` on a CPU, `otherwise(*args)` on any other device."""
    return jax.lax.platform_dependent(*args, cpu=function, default=otherwise)
