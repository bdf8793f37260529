"""Noise that follows from the other inputs, given the data: what a chart needs."""

from collections.abc import Callable, Sequence

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from coarea.jacobians.split import AbstractUncoupled
from coarea.tracing import solve_for


class NoiseSolver(eqx.Module):
    """How to solve for the local inputs of a structure with as many of them as constraints.

    They are all elements of some of the named inputs, whose sizes are `sizes`. Noise that enters as
    a summand, whatever its factor, is solved for by the linear algebra of the structure; other
    noise, if each value has its own, by undoing what the model does to it.
    """

    jacobian: AbstractUncoupled
    sizes: tuple[int, ...] = eqx.field(static=True)
    is_affine: bool = eqx.field(static=True)

    def solve(
        self, residual: Callable, without_noise: Float[Array, " M"]
    ) -> tuple[Float[Array, " M"], Float[Array, ""]]:
        """All inputs, and log |det B| there. `residual` takes the parts of each named input."""
        local = self.jacobian.local_inputs
        groups = np.repeat(np.arange(len(self.sizes)), self.sizes)
        noisy = set(groups[local.flat[~local.is_pad]])
        fixed = self._parts(without_noise)

        def of_parts(noise: Sequence[Array]):
            # Inputs without noise are kept apart: what is computed from them alone then has no
            # tangent, rather than one of zeros.
            left = iter(noise)
            return residual(tuple(next(left) if i in noisy else x for i, x in enumerate(fixed)))

        def of_noise(n):
            whole = self._parts(local.put(without_noise, n))
            return of_parts([x for i, x in enumerate(whole) if i in noisy])

        if self.is_affine:
            zero = jnp.zeros(local.flat.size, without_noise.dtype)
            value, B = self.jacobian.local_pieces(of_noise, zero)
            factor = self.jacobian.local(B)
            n = -factor.rotate_transpose(factor.solve(value[None])[0])
            return local.put(without_noise, n), factor.log_det()
        found = iter(solve_for(of_parts, [x for i, x in enumerate(fixed) if i in noisy]))
        whole = jnp.concatenate([next(found) if i in noisy else x for i, x in enumerate(fixed)])
        n = local.take(whole).ravel()
        _, B = self.jacobian.local_pieces(of_noise, n)
        return local.put(without_noise, n), self.jacobian.local(B).log_det()

    def _parts(self, u: Float[Array, " M"]) -> list[Array]:
        """The elements of each named input."""
        return jnp.split(u, np.cumsum(self.sizes)[:-1])
