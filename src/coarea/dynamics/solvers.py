"""Projection solvers: find λ with c(ũ − D Jₒᵀλ) = 0, Jₒ being J at the point that was left.

D, the weights, are how far the flow carries each element for a unit of its momentum; all one unless
elements follow different flows. Each solver is a deterministic function of its arguments. None
raises: `converged` says whether the answer may be used.
"""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import ClassVar, NamedTuple, Self, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import optimistix as optx
from jax.custom_batching import custom_vmap
from jaxtyping import Array, Bool, Float, Int
from typing_extensions import override

from coarea.dynamics.tolerance import Bounds, Tolerance, largest
from coarea.jacobians.structure import AbstractLinearisation
from coarea.manifolds import AbstractTarget
from coarea.xla import jit_bounded

# What has grown beyond this multiple of the data's scale or of the position will not come back.
_HOPELESS = 1e10
# The pace of convergence is judged from this iteration on: before, the residual may well grow.
_FIRST_JUDGED = 2
# Of many chains that run in step, so many iterations of a plain solver are needed by most, and so
# many of one that learns by nearly all.
_MOST_TOGETHER = 4
_MOST_LEARNT_TOGETHER = 12


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

    learns: ClassVar[bool] = False  # whether it does better the further it goes, at no derivative

    @abstractmethod
    def solve(
        self,
        target: AbstractTarget,
        previous: AbstractLinearisation,
        u: Float[Array, " M"],
        tolerance: Tolerance,
        weights: Weights = 1.0,
        inactive: Bool[Array, ""] | bool = False,
    ) -> Projection:
        """Project u onto the manifold along the rows of `previous`'s Jacobian, weighted.

        One that is `inactive` has nothing to do, and others that it runs in step with do not wait.
        """

    def for_many(self) -> Self:
        """The same, giving up sooner: for chains that run in step, and another solver after it.

        Of many all wait for the last, whom the next had better take over.
        """
        return self


class QuasiNewton(AbstractSolver):
    """Symmetric quasi-Newton, the paper's: λ ← λ + (JₒJₒᵀ)⁻¹ c, with the factor at hand.

    Cheap and linearly convergent: each iteration costs one residual and no derivative. It gives up
    as soon as the pace at which the residual falls says that it will not arrive in time.
    """

    max_iterations: int = eqx.field(static=True, default=50)

    @override
    def solve(self, target, previous, u, tolerance, weights=1.0, inactive=False):
        def change(u, c, last):
            del u
            return self._corrected(weights * previous.pseudo_inverse(c), last), False

        def too_slow(last: _Iterate, error):
            pace = jnp.log(last.error / error)
            return jnp.log(error) > (self.max_iterations - last.iterations) * pace

        return _iterate(target, change, u, tolerance, self.max_iterations, inactive, too_slow)

    @override
    def for_many(self):
        return replace(self, max_iterations=min(self.max_iterations, _MOST_TOGETHER))

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
    converges faster than linearly, and where steps are so long that quasi-Newton does not.
    """

    learns: ClassVar[bool] = True
    max_iterations: int = eqx.field(static=True, default=25)

    @override
    def for_many(self):
        return replace(self, max_iterations=min(self.max_iterations, _MOST_LEARNT_TOGETHER))

    @override
    def solve(self, target, previous, u, tolerance, weights=1.0, inactive=False):
        tolerance = tolerance.sized(target, u)
        arrays, rest = eqx.partition((target, previous, tolerance, weights), eqx.is_array)

        def learning(arrays) -> _Learning:
            return _Learning(*eqx.combine(arrays, rest))

        @custom_vmap
        def solve(arrays, u, inactive):
            this = learning(arrays)
            return _ended(*self._followed(this.begin, this.learn, u, inactive))

        # By itself `vmap` would have all steps of all chains copied in every iteration.
        @solve.def_vmap
        def _(num_chains, is_batched, arrays, u, inactive):
            axes = jax.tree.map(lambda yes: 0 if yes else None, is_batched[0])
            u = u if is_batched[1] else jnp.broadcast_to(u, (num_chains, *u.shape))
            inactive = jnp.broadcast_to(inactive, num_chains)
            begin = jax.vmap(lambda arrays, u: learning(arrays).begin(u), in_axes=(axes, 0))
            learn = jax.vmap(
                lambda arrays, *args: learning(arrays).learn(*args),
                in_axes=(axes, None, 0, 1, 1),
            )
            ends = self._followed(partial(begin, arrays), partial(learn, arrays), u, inactive)
            found = jax.vmap(_ended)(*ends)
            return found, jax.tree.map(lambda _: True, found)

        return solve(arrays, u, jnp.asarray(inactive))

    def _followed(self, begin, learn, u, inactive) -> "tuple[_Iterate, _Iterate]":
        """The first iterate and the last, of one chain or of several together."""
        first: _Iterate = begin(u)
        first = first._replace(is_hopeless=first.is_hopeless | inactive)
        steps = jnp.zeros((self.max_iterations, *u.shape), u.dtype)
        squares = jnp.zeros(steps.shape[:-1], u.dtype)

        def unfinished(carry):
            n, now, _, _ = carry
            return jnp.any(now.goes_on) & (n < self.max_iterations)

        def body(carry):
            n, now, steps, squares = carry
            steps = steps.at[n].set(now.step)
            squares = squares.at[n].set(jnp.sum(now.step**2, axis=-1))
            later = learn(n, now, steps, squares)

            def where_it_goes_on(a, b):
                goes_on = now.goes_on
                return jnp.where(goes_on if a.ndim == goes_on.ndim else goes_on[..., None], a, b)

            return n + 1, jax.tree.map(where_it_goes_on, later, now), steps, squares

        begun = jnp.zeros((), int), first, steps, squares
        return first, jax.lax.while_loop(unfinished, body, begun)[1]


class _Learning(NamedTuple):
    """What Broyden's method does to one chain, by a tolerance with a size."""

    target: AbstractTarget
    previous: AbstractLinearisation
    tolerance: Tolerance
    weights: Weights

    def begin(self, u) -> "_Iterate":
        c, step = self._plain_step(u)
        return self._judged(u, c, step, jnp.zeros((), int))

    def learn(self, n, now: "_Iterate", steps, squares) -> "_Iterate":
        """Make the step that comes next, the n-th of all, and learn from it."""
        u = now.u - now.step
        c, z = self._plain_step(u)

        def learnt(j, z):
            return z + steps[j + 1] * ((steps[j] @ z) / squares[j])

        z = jax.lax.fori_loop(0, n, learnt, z)
        step = z / (1 - (now.step @ z) / squares[n])
        return self._judged(u, c, step, now.iterations + 1)

    def _plain_step(self, u):
        c = self.target.residual(u)
        return c, self.weights * self.previous.pseudo_inverse(c)

    def _judged(self, u, c, step, iterations):
        bounds = self.tolerance.at(self.target, u)
        return _judged(self.tolerance, bounds, u, c, step, iterations)


class Newton(AbstractSolver):
    """Newton: λ ← λ + (JJₒᵀ)⁻¹ c. Converges quadratically, relinearising in each iteration."""

    max_iterations: int = eqx.field(static=True, default=20)

    @override
    def solve(self, target, previous, u, tolerance, weights=1.0, inactive=False):
        def change(u, c, last):
            del last
            return weights * _newton_change(target, previous, u, c), False

        return _iterate(target, change, u, tolerance, self.max_iterations, inactive, is_dear=True)


class NewtonLineSearch(AbstractSolver):
    """Newton with steps halved until the residual falls: slower, and converges from further.

    Where not even one halved `max_halvings` times is better it gives up: most likely the residual
    is at its least, above zero. Of projections that end so, few would have got further with more.
    """

    max_iterations: int = eqx.field(static=True, default=20)
    max_halvings: int = eqx.field(static=True, default=5)

    @override
    def solve(self, target, previous, u, tolerance, weights=1.0, inactive=False):
        def change(u, c, last):
            del last
            full = weights * _newton_change(target, previous, u, c)
            size = largest(c)
            # Near convergence rounding decides whether the residual falls: the step stays as it is.
            is_far = size >= tolerance.residual * target.scale

            def goes_on(carry):
                _, is_worse, halvings = carry
                return is_worse & (halvings < self.max_halvings)

            def halve(carry):
                step, _, halvings = carry
                step = 0.5 * step
                is_worse = ~(largest(target.residual(u - step)) < size)
                return step, is_worse, halvings + 1

            begin = jnp.where(is_far, 2 * full, full), is_far, jnp.full((), -1)
            step, is_worse, _ = jax.lax.while_loop(goes_on, halve, begin)
            return step, is_worse

        return _iterate(target, change, u, tolerance, self.max_iterations, inactive, is_dear=True)


class Hybrid(AbstractSolver):
    """A trust-region method on λ (Powell's dog leg) polished by Newton: the robust last resort.

    It plays the part of MINPACK's hybrid solver in the paper.
    """

    max_iterations: int = eqx.field(static=True, default=100)

    @override
    def solve(self, target, previous, u, tolerance, weights=1.0, inactive=False):
        def residual(lam, _):
            return target.residual(u - weights * previous.apply_transpose(lam)) / target.scale

        found = optx.root_find(
            residual,
            optx.Dogleg(rtol=1e-4, atol=1e-4),
            jnp.zeros(target.num_constraints, u.dtype),
            max_steps=self.max_iterations,
            throw=False,
        )
        root_tolerance = u - weights * previous.apply_transpose(found.value)
        polished = Newton().solve(target, previous, root_tolerance, tolerance, weights, inactive)
        return polished._replace(iterations=polished.iterations + found.stats["num_steps"])


def _newton_change(target, previous, u, c):
    return previous.apply_transpose(linearise(target, u).solve_newton(previous, c))


# Called in several places: as a program of its own it is traced once.
@jit_bounded
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

    @property
    def goes_on(self) -> Bool[Array, ""]:
        """Whether it may still get there."""
        return ~(self.is_done | self.is_hopeless)


def _judged(tolerance: Tolerance, bounds: Bounds, u, c, step, iterations) -> _Iterate:
    error = bounds.error(c, step)
    # Written so that NaN is hopeless too.
    hopeless = ~(error < _HOPELESS / tolerance.residual)
    return _Iterate(u, step, error, iterations, bounds.is_met(error, u - step), hopeless)


def _iterate(
    target: AbstractTarget,
    change: Callable,
    u: Float[Array, " M"],
    tolerance: Tolerance,
    max_iterations: int,
    inactive: Bool[Array, ""] | bool,
    too_slow: Callable | None = None,
    is_dear: bool = False,
) -> Projection:
    """Subtract a change until it and c are small, or no longer can become so.

    `change(u, c, last)` also says whether to give up. A change that is small enough is still made,
    but what it leads to is not looked at again. The first change stands before the loop, unless it
    `is_dear` to compile: then its last is zero.
    """
    bounds = tolerance.at(target, u)

    def at(u, iterations, last=None) -> _Iterate:
        c = target.residual(u)
        step, gives_up = change(u, c, last)
        now = _judged(tolerance, bounds, u, c, step, iterations)
        return now._replace(is_hopeless=now.is_hopeless | gives_up)

    def unfinished(last: _Iterate):
        return last.goes_on & (last.iterations < max_iterations)

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
    start = start._replace(is_hopeless=start.is_hopeless | inactive)
    end = jax.lax.while_loop(unfinished, body, start)
    return _ended(start, end)


def _ended(start: _Iterate, end: _Iterate) -> Projection:
    """The last step is made if it is small; a way that led nowhere better is forgotten."""
    best = jnp.where(end.error < start.error, end.u, start.u)
    u = jnp.where(end.is_done, end.u - end.step, best)
    return Projection(u, end.is_done, end.iterations)
