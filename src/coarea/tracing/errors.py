"""Explain errors that a user's function raises while traced: the line, the reason, the cure."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jax

from coarea.errors import CoareaError, ModelError, PrecisionError

_HERE = str(Path(__file__).parents[1])
_LIBRARIES = ("site-packages", "dist-packages", "importlib")

_BRANCH = (
    "it branches in Python on a value that depends on the random inputs. Use jax.numpy.where, "
    "jax.lax.cond or jax.lax.select, which JAX can trace"
)
_NUMPY = (
    "it hands a value that depends on the random inputs to NumPy, SciPy or Python, which cannot be "
    "traced. Use the function of the same name in jax.numpy or jax.scipy"
)
_INTEGER = (
    "it uses a value that depends on the random inputs where Python needs a whole number: a range, "
    "a shape or an index. Shapes and loop bounds must be constants; mask with jax.numpy.where what "
    "is not needed"
)
_CONCRETE = (
    "it needs the number behind a value that depends on the random inputs (float(), int(), "
    ".item(), a shape). Keep such values as JAX arrays"
)
_BOOLEAN_INDEX = (
    "it picks elements by a condition on the random inputs, so that their number is not known. Use "
    "jax.numpy.where(condition, x, 0.0)"
)
_LEAKED = (
    "it uses a value that an earlier call left behind (in a global, an attribute or a list). "
    "Return what is to be kept as an output instead"
)

_CURES: tuple[tuple[type[Exception], str], ...] = (
    (jax.errors.TracerBoolConversionError, _BRANCH),
    (jax.errors.TracerIntegerConversionError, _INTEGER),
    (jax.errors.TracerArrayConversionError, _NUMPY),
    (jax.errors.UnexpectedTracerError, _LEAKED),
    (jax.errors.NonConcreteBooleanIndexError, _BOOLEAN_INDEX),
    (jax.errors.ConcretizationTypeError, _CONCRETE),
)


def explained(error: Exception, what: str) -> CoareaError:
    """An error that explains what went wrong in `what`, where, and what to do."""
    place = where(error)
    for kind, cure in _CURES:
        if isinstance(error, kind):
            return ModelError(f"{what} cannot be traced{place}: {cure}.")
    message = str(error).strip().split("\n")[0]
    text = f"{type(error).__name__}: {message}".strip(": ")
    if isinstance(error, TypeError) and "concrete values" in text:
        return ModelError(f"{what} cannot be traced{place}: {_INTEGER}.")
    if isinstance(error, AssertionError) and _is_from(error, "numpyro"):
        return ModelError(
            f"{what} uses NumPyro's primitives without a key{place}. Draw random numbers from the "
            "inputs; a NumPyro model is conditioned as it is, coarea.condition(model, observed)."
        )
    if isinstance(error, TypeError) and "float32" in str(error) and "float64" in str(error):
        return PrecisionError(
            f"{what} mixes float32 with the float64 of its inputs{place}, most likely in an "
            "array made by JAX outside of its function, where double precision is off. Make "
            f"such arrays inside the function, or with NumPy. JAX says: {message}"
        )
    if isinstance(error, TypeError) and "int32" in str(error) and "int64" in str(error):
        return PrecisionError(
            f"{what} meets an array that JAX remembers in another precision{place}. Call "
            "jax.clear_caches() first, or index with a copy of the array. JAX says: "
            f"{message}"
        )
    return ModelError(f"{what} fails{place} with {text}")


@contextmanager
def explaining(what: str) -> Iterator[None]:
    """A context that explains errors raised by `what`."""
    try:
        yield
    except CoareaError:
        raise
    except Exception as error:
        raise explained(error, what) from error


def _is_from(error: BaseException, library: str) -> bool:
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and f"/{library}/" in frames[-1].filename.replace("\\", "/")


def where(error: BaseException) -> str:
    """A description of the user's line that raised an error; empty if there is none."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(_HERE)
        and not any(library in frame.filename for library in _LIBRARIES)
        and not frame.filename.startswith("<frozen")
    ]
    if not frames:
        return ""
    last = frames[-1]
    line = f": `{last.line}`" if last.line else ""
    return f" (in {last.name}, {Path(last.filename).name} line {last.lineno}{line})"
