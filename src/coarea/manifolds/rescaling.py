"""A linear map between the sampler's positions and the model's: what a mass matrix amounts to."""

import equinox as eqx
from jaxtyping import Array, Float

from coarea.jacobians.linalg import small


class Rescaling(eqx.Module):
    """Model position = matrix × sampler position.

    The matrix is a vector for a diagonal one, or a lower triangle; None is the identity. A unit
    mass matrix in sampler space is (matrix matrixᵀ)⁻¹ in model space.
    """

    matrix: Float[Array, " M"] | Float[Array, "M M"] | None = None
    keeps_normals: bool = eqx.field(static=True, default=False)
    """Whether the inputs that are standard normal keep their scale."""

    @property
    def is_identity(self) -> bool:
        """Whether both spaces are the same."""
        return self.matrix is None

    @property
    def leaves_normals(self) -> bool:
        """Whether standard normal inputs are standard normal in sampler space too."""
        return self.is_identity or self.keeps_normals

    def to_model_space(self, u: Float[Array, " M"]) -> Float[Array, " M"]:
        """The position that the user's functions see."""
        R = self.matrix
        if R is None:
            return u
        return R * u if R.ndim == 1 else small.combine(u, R.T)

    def to_sampler_space(self, u: Float[Array, " M"]) -> Float[Array, " M"]:
        """The position that the sampler moves."""
        R = self.matrix
        if R is None:
            return u
        return u / R if R.ndim == 1 else small.solve_lower(R, u[:, None])[:, 0]
