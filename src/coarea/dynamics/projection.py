"""Projection onto the manifold by several solvers in turn.

The first starts from λ = 0, each later one from where the one before left off: all of it is a
deterministic function of (Jₒ, ũ), which the reverse check relies on.
"""

from collections.abc import Callable
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap
from jaxtyping import Array, Bool, Float

from coarea.dynamics.solvers import AbstractSolver, Projection, Tolerance, Weights, position_size
from coarea.manifolds import AbstractTarget
from coarea.manifolds.target import AbstractLinearisation

# Where the first solver has failed this part of all chains goes on together, or so many.
_SHARE = 16
_FEW = 8


# A step projects forward and back: as a program of its own this is traced once.
@eqx.filter_jit
def project_onto(
    solvers: tuple[AbstractSolver, ...],
    target: AbstractTarget,
    older: AbstractLinearisation,
    u: Float[Array, " M"],
    tolerance: Tolerance,
    weights: Weights = 1.0,
    idle: Bool[Array, ""] | bool = False,
    goal: Float[Array, " M"] | None = None,
) -> Projection:
    """Try the solvers in turn until one converges, each from where the one before left off.

    With a `goal`, a point of the manifold, it is enough to see that they lead there.
    One that is `idle`, having failed before, is not tried again, and has not converged.
    """
    tolerance = replace(tolerance, size=position_size(target, u), goal=goal)
    projection = solvers[0].solve(target, older, u, tolerance, weights)
    projection = projection._replace(converged=projection.converged | idle)
    for solver in solvers[1:]:

        def solve(problem, earlier, solver=solver) -> Projection:
            target, older, tolerance, weights = problem
            later = solver.solve(target, older, earlier.u, tolerance, weights)
            return later._replace(iterations=earlier.iterations + later.iterations)

        projection = _where_needed(solve, (target, older, tolerance, weights), projection)
    return projection._replace(converged=projection.converged & ~jnp.asarray(idle))


def _where_needed(solve: Callable, problem, earlier: Projection) -> Projection:
    """`solve(problem, earlier)` where the earlier solver did not converge.

    Under `vmap` only by the chains that need it, a few at a time: of thousands there are always
    some, and otherwise all would wait for what these do. None costs nothing.
    """
    arrays, rest = eqx.partition(problem, eqx.is_array)

    def solved(arrays, earlier) -> Projection:
        return solve(eqx.combine(arrays, rest), earlier)

    @custom_vmap
    def needed(arrays, earlier):
        def go(carry):
            return jnp.asarray(False), solved(arrays, carry[1])

        return jax.lax.while_loop(lambda carry: carry[0], go, (~earlier.converged, earlier))[1]

    @needed.def_vmap
    def _(num_chains, is_batched, arrays, earlier):
        axes = jax.tree.map(lambda yes: 0 if yes else None, is_batched[0])
        few = min(num_chains, max(_FEW, num_chains // _SHARE))
        earlier = jax.tree.map(
            lambda x, yes: x if yes else jnp.broadcast_to(x, (num_chains, *x.shape)),
            earlier,
            is_batched[1],
        )

        def some(carry):
            waits, found = carry
            # Numbers beyond the last fill up: the last chain's work is done again, and dropped.
            chosen = jnp.nonzero(waits, size=few, fill_value=num_chains)[0]

            def take(x):
                return x.at[chosen].get(mode="clip")

            theirs = jax.tree.map(lambda x, yes: take(x) if yes else x, arrays, is_batched[0])
            later = jax.vmap(solved, in_axes=(axes, 0))(theirs, jax.tree.map(take, found))
            found = jax.tree.map(
                lambda all, new: all.at[chosen].set(new, mode="drop"), found, later
            )
            return waits.at[chosen].set(False, mode="drop"), found

        _, found = jax.lax.while_loop(
            lambda carry: jnp.any(carry[0]), some, (~earlier.converged, earlier)
        )
        return found, jax.tree.map(lambda _: True, found)

    return needed(arrays, earlier)
