"""Projection solvers: find λ with c(ũ − D Jₒᵀλ) = 0, Jₒ being J at the point that was left.

D, the weights, are how far the flow carries each element for a unit of its momentum; all one unless
elements follow different flows. Each solver is a deterministic function of its arguments. None
raises: `converged` says whether the answer may be used.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import optimistix as optx
from jaxtyping import Array, Bool, Float, Int

from coarea.dynamics.tolerance import Tolerance, largest
from coarea.manifolds import AbstractTarget
from coarea.manifolds.target import AbstractLinearisation

# What has grown beyond this multiple of the data's scale or of the position will not come back.
_HOPELESS = 1e10
# The pace of convergence is judged from this iteration on: before, the residual may well grow.
_FIRST_JUDGED = 2


Weights: TypeAlias = Float[Array, " M"] | float


class Projection(NamedTuple):
    """Where a solver ended, and after how many iterations.

    One that did not converge ends where another had better begin.
    """

    u: Float[Array, " M"]
    converged: Bool[Array, ""]
    iterations: Int[Array, ""]


class AbstractSolver(eqx.Module):
    """One way to solve for λ."""

    @abstractmethod
    def solve(
        self,
        target: AbstractTarget,
        older: AbstractLinearisation,
        u: Float[Array, " M"],
        tolerance: Tolerance,
        weights: Weights = 1.0,
    ) -> Projection:
        """Project u onto the manifold along the rows of `older`'s Jacobian, weighted."""


class QuasiNewton(AbstractSolver):
    """Symmetric quasi-Newton, the paper's: λ ← λ + (JₒJₒᵀ)⁻¹ c, with the factor at hand.

    Cheap and linearly convergent: each iteration costs one residual and no derivative. It gives up
    as soon as the pace at which the residual falls says that it will not arrive in time.
    """

    max_iterations: int = eqx.field(static=True, default=50)

    def solve(self, target, older, u, tolerance, weights=1.0):  # noqa: D102
        def change(u, c, last):
            del u
            return self._corrected(weights * older.pseudo_inverse(c), last)

        def too_slow(last: _Iterate, error):
            pace = jnp.log(last.error / error)
            return jnp.log(error) > (self.max_iterations - last.iterations) * pace

        return _iterate(target, change, u, tolerance, self.max_iterations, too_slow)

    def _corrected(self, change, last):
        """The change to make after the last one (None: there was none)."""
        del last
        return change


class Secant(QuasiNewton):
    """Quasi-Newton whose every change is corrected by what became of the one before.

    It is Broyden's method with a memory of one step: two inner products more than `QuasiNewton` an
    iteration, of which it needs fewer, and on the same data far less often very many.
    """

    def _corrected(self, change, last):
        return change if last is None else change / (1 - (last @ change) / (last @ last))


class Broyden(AbstractSolver):
    """Quasi-Newton that learns from its own steps how J differs from Jₒ (Broyden 1965).

    Each iteration costs one residual and no derivative, as `QuasiNewton`'s, and a product with each
    earlier step, of which alone the learnt inverse consists (Kelley 1995, section 7.3). It
    converges faster than linearly, and where steps are so long that quasi-Newton does not. All
    steps are kept while it runs, so that under `vmap` it is dearer than the plain one.
    """

    max_iterations: int = eqx.field(static=True, default=25)

    def solve(self, target, older, u, tolerance, weights=1.0):  # noqa: D102
        bounds = tolerance.at(target, u)

        def plain_step(u):
            c = target.residual(u)
            return c, -weights * older.pseudo_inverse(c)

        def unfinished(last: _Learnt):
            goes_on = ~last.is_done & (last.iterations < self.max_iterations)
            return goes_on & (last.error < _HOPELESS / tolerance.residual)

        def body(last: _Learnt):
            n = last.iterations
            moved = last.u + last.steps[n]
            c, z = plain_step(moved)

            def learn(j, z):
                s = last.steps[j]
                return z + last.steps[j + 1] * ((s @ z) / last.squares[j])

            z = jax.lax.fori_loop(0, n, learn, z)
            step = z / (1 - (last.steps[n] @ z) / last.squares[n])
            error = bounds.error(c, step)
            return _Learnt(
                moved,
                last.steps.at[n + 1].set(step),
                last.squares.at[n + 1].set(step @ step),
                error,
                n + 1,
                bounds.is_met(error, moved + step),
            )

        c, step = plain_step(u)
        steps = jnp.zeros((self.max_iterations + 1, u.size), u.dtype).at[0].set(step)
        squares = jnp.zeros(self.max_iterations + 1, u.dtype).at[0].set(step @ step)
        error = bounds.error(c, step)
        done = bounds.is_met(error, u + step)
        start = _Learnt(u, steps, squares, error, jnp.zeros((), int), done)
        end = jax.lax.while_loop(unfinished, body, start)
        return _ended(start, end, end.u + end.steps[end.iterations])


class _Learnt(NamedTuple):
    """A point, the step that comes next after all those made, and how much too large it is."""

    u: Float[Array, " M"]
    steps: Float[Array, "most M"]
    squares: Float[Array, " most"]
    error: Float[Array, ""]
    iterations: Int[Array, ""]
    is_done: Bool[Array, ""]


class Newton(AbstractSolver):
    """Newton: λ ← λ + (JJₒᵀ)⁻¹ c. Converges quadratically, relinearising in each iteration."""

    max_iterations: int = eqx.field(static=True, default=20)

    def solve(self, target, older, u, tolerance, weights=1.0):  # noqa: D102
        def change(u, c, last):
            del last
            return weights * _newton_change(target, older, u, c)

        return _iterate(target, change, u, tolerance, self.max_iterations, is_dear=True)


class NewtonLineSearch(AbstractSolver):
    """Newton with steps halved until the residual falls: slower, and converges from further."""

    max_iterations: int = eqx.field(static=True, default=20)
    max_halvings: int = eqx.field(static=True, default=10)

    def solve(self, target, older, u, tolerance, weights=1.0):  # noqa: D102
        def change(u, c, last):
            del last
            full = weights * _newton_change(target, older, u, c)
            size = largest(c)

            def too_long(carry):
                step, halvings = carry
                worse = ~(largest(target.residual(u - step)) < size)
                return worse & (halvings < self.max_halvings)

            def halve(carry):
                step, halvings = carry
                return 0.5 * step, halvings + 1

            # At convergence rounding decides whether the residual falls: take the step as it is.
            halvings = jnp.where(size < tolerance.residual * target.scale, self.max_halvings, 0)
            return jax.lax.while_loop(too_long, halve, (full, halvings))[0]

        return _iterate(target, change, u, tolerance, self.max_iterations, is_dear=True)


class Hybrid(AbstractSolver):
    """A trust-region method on λ (Powell's dog leg) polished by Newton: the robust last resort.

    It plays the part of MINPACK's hybrid solver in the paper.
    """

    max_iterations: int = eqx.field(static=True, default=100)

    def solve(self, target, older, u, tolerance, weights=1.0):  # noqa: D102
        def residual(lam, _):
            return target.residual(u - weights * older.apply_transpose(lam)) / target.scale

        found = optx.root_find(
            residual,
            optx.Dogleg(rtol=1e-4, atol=1e-4),
            jnp.zeros(target.num_constraints, u.dtype),
            max_steps=self.max_iterations,
            throw=False,
        )
        near = u - weights * older.apply_transpose(found.value)
        polished = Newton().solve(target, older, near, tolerance, weights)
        return polished._replace(iterations=polished.iterations + found.stats["num_steps"])


def _newton_change(target, older, u, c):
    return older.apply_transpose(linearise(target, u).solve_newton(older, c))


# Called in several places: as a program of its own it is traced once.
@eqx.filter_jit
def linearise(target: AbstractTarget, u: Float[Array, " M"]) -> AbstractLinearisation:
    """The target linearised at u."""
    return target.linearise(u)


class _Iterate(NamedTuple):
    """A point, the change that would come next, and how much too large it and the residual are."""

    u: Float[Array, " M"]
    step: Float[Array, " M"]
    error: Float[Array, ""]
    iterations: Int[Array, ""]
    is_done: Bool[Array, ""]
    is_hopeless: Bool[Array, ""]


def _iterate(
    target: AbstractTarget,
    change: Callable,
    u: Float[Array, " M"],
    tolerance: Tolerance,
    max_iterations: int,
    too_slow: Callable | None = None,
    is_dear: bool = False,
) -> Projection:
    """Subtract `change(u, c, last)` until it and c are small, or no longer can become so.

    A change that is small enough is still made, but what it leads to is not looked at again.
    The first change stands before the loop, unless it `is_dear` to compile: then its last is zero.
    """
    bounds = tolerance.at(target, u)

    def at(u, iterations, last=None) -> _Iterate:
        c = target.residual(u)
        step = change(u, c, last)
        error = bounds.error(c, step)
        done = bounds.is_met(error, u - step)
        # Written so that NaN is hopeless too.
        hopeless = ~(error < _HOPELESS / tolerance.residual)
        return _Iterate(u, step, error, iterations, done, hopeless)

    def unfinished(last: _Iterate):
        return ~(last.is_done | last.is_hopeless) & (last.iterations < max_iterations)

    def body(last: _Iterate):
        now = at(last.u - last.step, last.iterations + 1, last.step)
        if too_slow is None:
            return now
        gives_up = (last.iterations >= _FIRST_JUDGED) & too_slow(last, now.error)
        return now._replace(is_hopeless=now.is_hopeless | gives_up)

    if is_dear:
        none, no = jnp.zeros_like(u), jnp.asarray(False)
        error = bounds.error(target.residual(u), none)
        start = _Iterate(u, none, error, jnp.full((), -1), no, no)
    else:
        start = at(u, jnp.zeros((), int))
    end = jax.lax.while_loop(unfinished, body, start)
    return _ended(start, end, end.u - end.step)


def _ended(start: "_Iterate | _Learnt", end: "_Iterate | _Learnt", converged_to) -> Projection:
    """The last step is made if it is small; a way that led nowhere better is forgotten."""
    best = jnp.where(end.error < start.error, end.u, start.u)
    return Projection(jnp.where(end.is_done, converged_to, best), end.is_done, end.iterations)
