"""Gauss–Newton with a backtracking line search, for equations that are far from solved."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

# The full step and its halves that are tried.
_LENGTHS = 8


class Attempt(NamedTuple):
    """A point, the largest residual there, and the size of the full step that was tried last."""

    u: Float[Array, " M"]
    error: Float[Array, ""]
    step: Float[Array, ""]
    iterations: Int[Array, ""]
    stuck: Bool[Array, ""]


def gauss_newton(
    u: Float[Array, " M"],
    residual: Callable[[Float[Array, " M"]], Float[Array, " N"]],
    full_step: Callable[[Float[Array, " M"]], Float[Array, " M"]],
    is_met: Callable[[Float[Array, " M"], Float[Array, ""], Float[Array, ""]], Bool[Array, ""]],
    most: int | Int[Array, ""],
) -> Attempt:
    """Subtract the best part of `full_step(u)`, at most `most` times.

    It ends when `is_met(u, error, step)`, or when no part of a step makes the error smaller.
    """

    def error(u):
        c = residual(u)
        return jnp.max(jnp.where(jnp.isnan(c), jnp.inf, jnp.abs(c)))

    def unfinished(at: Attempt):
        return ~is_met(at.u, at.error, at.step) & (at.iterations < most) & ~at.stuck

    def searched(at: Attempt):
        """The best of the full step and its repeated halves."""
        full = full_step(at.u)
        lengths = 0.5 ** jnp.arange(_LENGTHS, dtype=full.dtype)
        errors = jax.vmap(lambda length: error(at.u - length * full))(lengths)
        best = jnp.argmin(errors)
        # Near the solution rounding errors decide whether the error decreases, so step in any case.
        near = is_met(at.u, at.error, jnp.zeros(()))
        better = (errors[best] < at.error) | (near & jnp.isfinite(errors[best]))
        step = jnp.max(jnp.abs(full))
        moves = better & ~is_met(at.u, at.error, step)
        return Attempt(
            jnp.where(moves, at.u - lengths[best] * full, at.u),
            jnp.where(moves, errors[best], at.error),
            step,
            at.iterations + 1,
            ~better,
        )

    far = jnp.asarray(jnp.inf, u.dtype)
    begin = Attempt(u, error(u), far, jnp.asarray(0), jnp.asarray(False))
    return jax.lax.while_loop(unfinished, searched, begin)
