"""A user's function as a jaxpr, with its constants held as arrays.

A Python function may close over values that change later, share global state with other threads,
and use arrays that JAX cached in another precision. A jaxpr avoids these problems. Functions with
equal jaxprs share one object, whatever their constants are, so that code compiled for one is used
for all.
"""

import functools
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core
from jaxtyping import Array
from typing_extensions import override

from coarea.errors import CoareaError, ModelError
from coarea.precision import require_float64
from coarea.tracing.constants import Owned, without_constants
from coarea.tracing.dtype_cache import forget_all, forget_other_precision, met_other_precision
from coarea.tracing.equality import TRACING, SharedJaxpr, shared_jaxpr
from coarea.tracing.errors import explained


class _Source:
    """The origin of a traced function, which is ignored when traced functions are compared."""

    def __init__(self, function: Callable, example: tuple, what: str):
        self.function, self.example, self.what = function, example, what

    @override
    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Source)

    @override
    def __hash__(self) -> int:
        return 0


class Traced(eqx.Module):
    """A function as a jaxpr, with its constants; made by `trace`."""

    shared: SharedJaxpr = eqx.field(static=True)
    constants: tuple[Array, ...]
    source: _Source = eqx.field(static=True)

    def __call__(self, *args: Any) -> Any:
        """Call the function; arguments must have the shapes that it was traced for."""
        pairs = zip(args, self.shared.names, strict=True)
        args = tuple(x if names is None else {n: x[n] for n in names} for x, names in pairs)
        leaves, tree = jax.tree.flatten(_ordered(args))
        assert tree == self.shared.in_tree, (tree, self.shared.in_tree)
        avals = self.shared.closed.in_avals[len(self.constants) :]
        if any(aval.dtype == jnp.float64 for aval in avals):  # pyright: ignore
            require_float64(self.source.what)
        leaves = [
            x if getattr(x, "dtype", None) == a.dtype else jnp.asarray(x, a.dtype)  # pyright: ignore
            for x, a in zip(leaves, avals, strict=True)
        ]
        out = core.jaxpr_as_fun(self.shared.closed)(*self.constants, *leaves)
        # Outputs that do not depend on the arguments are not JAX arrays.
        out = [x if isinstance(x, jax.Array) else jnp.asarray(x) for x in out]
        return _plain(jax.tree.unflatten(self.shared.out_tree, out))

    def follow_from(self, argument: int) -> Any:
        """For each output array, whether it depends on the given argument."""
        jaxpr = self.shared.closed.jaxpr
        sizes = [jax.tree.structure(x).num_leaves for x in self.source.example]
        first = len(self.constants) + sum(sizes[:argument])
        reached = set(jaxpr.invars[first : first + sizes[argument]])
        for equation in jaxpr.eqns:
            if any(not isinstance(x, core.Literal) and x in reached for x in equation.invars):
                reached |= set(equation.outvars)
        found = [not isinstance(x, core.Literal) and x in reached for x in jaxpr.outvars]
        return _plain(jax.tree.unflatten(self.shared.out_tree, found))

    def retraced(self) -> "Traced":
        """Trace the function again in JAX's current precision.

        Raise if the values that it closes over have changed.
        """
        function, example, what = self.source.function, self.source.example, self.source.what
        with jax.enable_x64(True):
            now = trace(function, *example, what=what)
        same = now.shared is self.shared and all(
            np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
            for a, b in zip(map(np.asarray, now.constants), self.constants, strict=True)
        )
        if not same:
            raise ModelError(
                f"{what} computes something else now than when it was given: what it closes over "
                "has changed. Condition anew."
            )
        return trace(function, *jax.tree.map(_canonical, example), what=what)


def _canonical(x: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, jax.dtypes.canonicalize_dtype(x.dtype, True))


def retraced(tree: Any) -> Any:
    """A target or a model with all of its functions traced in JAX's current precision."""
    is_traced = functools.partial(_is, Traced)
    return jax.tree.map(lambda x: x.retraced() if is_traced(x) else x, tree, is_leaf=is_traced)


def _is(kind: type, x: Any) -> bool:
    return isinstance(x, kind)


def trace(function: Callable, *example: Any, what: str) -> Traced:
    """Trace a function from the shapes of its arguments; `what` names it in errors.

    Dictionaries keep their order, both as arguments and as return values.
    """
    if isinstance(function, Traced):
        return function
    source = _Source(function, example, what)
    ordered = _ordered(example)

    def flat(*args):
        return _ordered(function(*map(_plain, args)))

    with TRACING:
        forget_other_precision(function)
        try:
            closed, shape = _make_jaxpr(flat, ordered)
        except CoareaError:
            raise
        except Exception as error:
            if not met_other_precision(error):
                raise explained(error, what) from error
            forget_all()
            try:
                closed, shape = _make_jaxpr(flat, ordered)
            except Exception as again:
                raise explained(again, what) from again
        closed, constants = without_constants(Owned()(closed))
    in_tree, out_tree = jax.tree.structure(ordered), jax.tree.structure(shape)
    # Copy the constants: the user's arrays may change, and JAX caches them in this precision.
    names = tuple(tuple(x) if isinstance(x, Mapping) else None for x in example)
    shared = shared_jaxpr(closed, names, in_tree, out_tree)
    return Traced(shared, tuple(map(_copied, constants)), source)


def _make_jaxpr(flat: Callable, example: tuple) -> tuple[core.ClosedJaxpr, Any]:
    return jax.make_jaxpr(flat, return_shape=True)(*example)


def _copied(x: Any) -> Array:
    return x if isinstance(x, jax.Array) else jnp.asarray(np.array(x))


def _ordered(x: Any) -> Any:
    """Convert dictionaries to ordered ones, whose keys JAX does not sort."""
    if isinstance(x, tuple):
        return tuple(map(_ordered, x))
    return OrderedDict(x) if isinstance(x, Mapping) else x


def _plain(x: Any) -> Any:
    return dict(x) if isinstance(x, OrderedDict) else x
