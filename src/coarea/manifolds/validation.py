"""Checks made before any sampling, by tracing alone: no number is computed."""

import jax
import jax.numpy as jnp
from jax.extend import core

from coarea.errors import DataError, ModelError, PrecisionError
from coarea.manifolds.target import AbstractTarget


def check_constraint(target: AbstractTarget, source: str) -> None:
    """Refuse a target that cannot be moved on: too many constraints, no derivatives, float32."""
    N, M = target.num_constraints, target.num_inputs
    if N >= M:
        raise DataError(
            f"{N} values are constrained but there are only {M} random inputs, so the inputs that "
            "reproduce the data are isolated points or none. Observe fewer values, or give the "
            "generator the noise it lacks (an input of the shape of the observed output)."
        )
    u = jax.ShapeDtypeStruct((M,), jnp.float64)
    check_digits(jax.make_jaxpr(lambda u: target.residual(u))(u), source)
    try:
        jax.eval_shape(lambda u: target.evaluate(u), u)
    except Exception as error:
        raise ModelError(
            f"the {source} cannot be differentiated twice: {error}\n"
            "Loops must have a fixed length (`jax.lax.scan`, `jax.lax.fori_loop` with constant "
            "bounds) and every operation between inputs and observed outputs needs a JAX "
            "derivative."
        ) from error


def check_digits(jaxpr: core.ClosedJaxpr | core.Jaxpr, source: str) -> None:
    """Refuse a computation that rounds a double to fewer digits on its way."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "convert_element_type":
            old: jnp.dtype = equation.invars[0].aval.dtype  # pyright: ignore
            new: jnp.dtype = equation.params["new_dtype"]
            if old == jnp.float64 and new in (jnp.float32, jnp.float16, jnp.bfloat16):
                raise PrecisionError(
                    f"the {source} casts a float64 value to {new}: exact conditioning needs "
                    "every digit. Remove the cast (an `astype`, a `dtype=` argument, a neural "
                    "network layer with a fixed dtype), so that the computation follows the dtype "
                    "of its inputs."
                )
        for inner in _inner_jaxprs(equation):
            check_digits(inner, source)


def _inner_jaxprs(equation):
    leaves = jax.tree.leaves(
        list(equation.params.values()),
        is_leaf=lambda x: isinstance(x, core.ClosedJaxpr | core.Jaxpr),
    )
    return [x for x in leaves if isinstance(x, core.ClosedJaxpr | core.Jaxpr)]
