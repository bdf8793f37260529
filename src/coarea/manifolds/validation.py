"""Checks before sampling that only trace functions, without computing any numbers."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.extend import core

from coarea.errors import CoareaError, ModelError, PrecisionError
from coarea.generators import AbstractGenerator
from coarea.manifolds.target import AbstractConstrainedTarget, AbstractTarget, evaluate
from coarea.xla import inner_jaxprs


def check_derivatives(target: AbstractConstrainedTarget, source: str) -> None:
    """Refuse a target whose function can be evaluated but not differentiated."""
    try:
        eqx.filter_eval_shape(evaluate, target, jax.ShapeDtypeStruct((target.num_inputs,), float))
    except CoareaError:
        raise
    except Exception as error:  # derivative rules may raise any error
        raise ModelError(
            f"the {source} cannot be differentiated twice, forwards and in reverse: {error}\n"
            "Loops must have a fixed length (`jax.lax.scan`, `jax.lax.fori_loop` with constant "
            "bounds) and every operation between inputs and observed outputs needs a JAX "
            "derivative, not one of jax.custom_vjp. A diffrax solver needs "
            "`adjoint=diffrax.DirectAdjoint()`; a scan of fixed steps always works."
        ) from error


def check_density(generator: AbstractGenerator) -> None:
    """Refuse a model whose log density cannot be differentiated."""
    try:
        jax.eval_shape(jax.grad(lambda u: generator.log_density(u)), generator.inputs.example)
    except CoareaError:
        raise
    except Exception as error:  # derivative rules may raise any error
        raise ModelError(f"the model's log density cannot be differentiated: {error}") from error


def check_digits(function: Callable, u, source: str) -> None:
    """Refuse a computation that casts a double to a less precise type before its result."""
    jaxpr = jax.make_jaxpr(lambda u: function(u))(u).jaxpr
    if casts := list(_casts(jaxpr)):
        raise PrecisionError(
            f"the {source} casts a float64 value to {casts[0]}: exact conditioning needs every "
            "digit. Remove the cast (an `astype`, a `dtype=` argument, a neural network layer with "
            "a fixed dtype), so that the computation follows the dtype of its inputs."
        )


def _casts(jaxpr: core.Jaxpr):
    """The dtypes to which doubles are cast, in the equations that the outputs depend on."""
    needed = {v for v in jaxpr.outvars if not isinstance(v, core.Literal)}
    for equation in reversed(jaxpr.eqns):
        if needed.isdisjoint(equation.outvars):
            continue
        needed |= {v for v in equation.invars if not isinstance(v, core.Literal)}
        if equation.primitive.name == "convert_element_type":
            old: jnp.dtype = equation.invars[0].aval.dtype  # pyright: ignore
            new: jnp.dtype = equation.params["new_dtype"]
            if old == jnp.float64 and new in (jnp.float32, jnp.float16, jnp.bfloat16):
                yield new
        for inner in inner_jaxprs(equation):
            yield from _casts(inner)


def check_target(target: Any, caller: str) -> None:
    """Refuse anything but a target density."""
    if not isinstance(target, AbstractTarget):
        raise ModelError(
            f"{caller} takes what coarea.condition(model, observed) returns, or a coarea.Manifold; "
            f"got {type(target).__name__}."
        )
