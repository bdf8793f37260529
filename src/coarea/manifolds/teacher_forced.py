"""Teacher forcing: a Markov simulator whose whole state is seen after every step.

If yₜ = f(v, yₜ₋₁, nₜ) and all y are known, f(v, ȳₜ₋₁, nₜ) = ȳₜ has the same solutions, and on them
the same determinant |JJᵀ|: the Jacobian of the one is a unit triangular matrix times that of the
other. So the steps decouple.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from typing_extensions import override

from coarea.generators import AbstractSimulator, Markov
from coarea.generators.inputs import Inputs


class TeacherForced(AbstractSimulator):
    """Every state computed from the one that was seen before it."""

    model: Markov
    seen: Float[Array, "T ..."]
    inputs: Inputs
    parameters: tuple[str, ...] | None = eqx.field(static=True)

    def __init__(self, model: Markov, seen):
        self.model, self.seen = model, seen
        self.inputs, self.parameters = model.inputs, model.parameters

    @override
    def frozen(self):
        return TeacherForced(self.model.frozen(), self.seen)

    @property
    @override
    def fixed(self) -> dict[str, Array]:
        """The states, which are what was seen."""
        return {"x": self.seen}

    @override
    def outputs_of(self, values):
        model = self.model
        s = {name: values[name] for name in model.shared.names}
        first = model.first_state(s, values.get("initial_noise"))
        seen = jnp.asarray(self.seen, first.dtype)
        before = jnp.concatenate([first[None], seen[:-1]])
        y = jax.vmap(lambda x, n, t: model.step(s, x, n, t))(
            before, values["noise"], jnp.arange(model.steps)
        )
        return {**model.reported(s), "x": seen, "y": y}
