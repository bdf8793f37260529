"""The sparsity pattern of a Jacobian, read off the traced function."""

import functools
import importlib
import warnings

import numpy as np

from coarea.errors import StructureWarning


def brief(error: Exception) -> str:
    """The first sentence of an error message."""
    return str(error).split(". ")[0].splitlines()[0] + "."


@functools.cache
def reader_is_missing() -> str | None:
    """Why asdex cannot be imported; None if it can. Warns once, because every model is affected."""
    try:
        importlib.import_module("asdex")
    except Exception as error:  # ImportError, or any error from its use of JAX internals
        warnings.warn(
            f"asdex cannot be imported ({brief(error)}), so that no structure is found in any "
            "model and each is treated as dense, which is slow for hundreds of observed values. "
            "pip install 'jax<0.12' asdex",
            StructureWarning,
            stacklevel=5,
        )
        return brief(error)
    return None


def read_pattern(residual, u):
    """A sparse matrix (N, M) of ones where the Jacobian can be nonzero."""
    # Import asdex only when it is used, because the import is slow.
    import asdex
    from scipy.sparse import csr_array

    found = asdex.jacobian_sparsity(lambda u: residual(u), np.zeros(u.shape))
    ones = np.ones(found.nnz, dtype=np.int8)
    return csr_array((ones, (np.asarray(found.rows), np.asarray(found.cols))), shape=found.shape)
