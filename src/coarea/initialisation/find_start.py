"""`find_start`: find points on the manifold before sampling."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from coarea.arguments import checked_count
from coarea.dynamics.projection import Tolerance
from coarea.initialisation.checks import check_starts, with_shared_starts
from coarea.initialisation.search import search
from coarea.keys import chain_keys, checked_key
from coarea.manifolds.parametrisation import without_chart
from coarea.manifolds.target import AbstractTarget
from coarea.manifolds.validation import check_target
from coarea.precision import top_level
from coarea.xla import one_blas_thread


@top_level
def find_start(target: AbstractTarget, key: Key[Array, ""], chains: int) -> np.ndarray:
    """Find a point on the manifold for each chain.

    The result is an array (chains, inputs), which `sample` accepts as `start`.

    >>> import coarea as co, jax
    >>> model = co.Generator(lambda u: {"z": u["z"], "y": u["z"] ** 3 + u["n"]}, {"z": (), "n": ()})
    >>> posterior = co.condition(model, {"y": 1.5})
    >>> co.find_start(posterior, jax.random.key(0), chains=3).shape
    (3, 2)
    """
    check_target(target, "find_start")
    target = without_chart(target)
    key, chains = checked_key(key), checked_count("chains", chains)
    tolerance = Tolerance.default(jnp.float64)
    with one_blas_thread():
        found = [
            search(target, chain_keys(key, chain).start[None], tolerance) for chain in range(chains)
        ]
    starts = jax.tree.map(lambda *x: jnp.concatenate(x), *found)
    starts = with_shared_starts(starts, tolerance, stacklevel=4)
    check_starts(target, starts, tolerance)
    return np.asarray(starts.u)
