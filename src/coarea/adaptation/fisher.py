"""Scales from draws and gradients: the linear map under which both look alike.

Under a normal density with covariance Σ the gradient at x is −Σ⁻¹(x − m). Draws with covariance C
then have gradients with covariance Σ⁻¹CΣ⁻¹, so that Σ is the geometric mean of C and the inverse
covariance of the gradients, whatever C is: the chains need not have reached the bulk of the
posterior yet. For other densities it minimises the Fisher divergence (Seyboldt, Carlson & Carpenter
2026, nutpie).
"""

import numpy as np

# Added to the variances of draws and gradients, relative to both, in scaled coordinates.
_FLOOR = 1e-5
# Draws for each dimension below which only the diagonal is estimated.
DRAWS_PER_DIMENSION = 3


def scales_from(x: np.ndarray, g: np.ndarray) -> np.ndarray | None:
    """The standard deviations that draws and gradients, arrays (draw, element), stand for.

    None if they say nothing, because chains did not move or left the numbers that are finite.
    """
    usable = np.all(np.isfinite(x), axis=1) & np.all(np.isfinite(g), axis=1)
    if np.count_nonzero(usable) < 4:
        return None
    spread, slope = np.std(x[usable], axis=0), np.std(g[usable], axis=0)
    if not np.all(spread > 0):
        return None
    # An element without a gradient has a flat density: its draws alone tell its scale.
    scales = np.where(slope > 0, np.sqrt(spread / np.where(slope > 0, slope, 1.0)), spread)
    return scales if np.all(np.isfinite(scales) & (scales > 0)) else None


def matrix_from(x: np.ndarray, g: np.ndarray) -> np.ndarray | None:
    """A lower triangle R for which R⁻¹x is about as wide as it is steep in all directions.

    With too few draws for that it is diagonal.
    """
    scales = scales_from(x, g)
    if scales is None:
        return None
    usable = np.all(np.isfinite(x), axis=1) & np.all(np.isfinite(g), axis=1)
    x, g = x[usable] / scales, g[usable] * scales
    num_draws, size = x.shape
    if num_draws < DRAWS_PER_DIMENSION * size:
        return np.diag(scales)
    floor = _FLOOR * np.eye(size)
    of_draws = np.atleast_2d(np.cov(x, rowvar=False)) + floor
    of_gradients = np.atleast_2d(np.cov(g, rowvar=False)) + floor
    root, inverse_root = _powers(of_gradients, 0.5), _powers(of_gradients, -0.5)
    mean = inverse_root @ _powers(root @ of_draws @ root, 0.5) @ inverse_root
    try:
        return scales[:, None] * np.linalg.cholesky(0.5 * (mean + mean.T))
    except np.linalg.LinAlgError:
        return np.diag(scales)


def _powers(matrix: np.ndarray, exponent: float) -> np.ndarray:
    """A power of a symmetric positive definite matrix."""
    values, vectors = np.linalg.eigh(0.5 * (matrix + matrix.T))
    return (vectors * np.maximum(values, 1e-300) ** exponent) @ vectors.T
