"""Partly observed images: masked arrays in which the unobserved pixels are masked."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from coarea.errors import DataError, SettingError

SIDE = 28


def _top_quarter(rows, columns, rng):
    return rows < SIDE // 4


def _left_half(rows, columns, rng):
    return columns < SIDE // 2


def _centre_hole(rows, columns, rng):
    return (np.abs(rows - 13.5) > 5) | (np.abs(columns - 13.5) > 5)


def _random(rows, columns, rng):
    return rng.random((SIDE, SIDE)) < 0.2


# Each function returns which pixels are observed.
MASKS: dict[str, Callable[..., np.ndarray]] = {
    "top-quarter": _top_quarter,
    "left-half": _left_half,
    "centre-hole": _centre_hole,
    "random": _random,
}


def see(image: np.ndarray, mask: str, seed: int = 0) -> np.ma.MaskedArray:
    """Apply one of `MASKS` to an image; pixels that are already masked stay masked."""
    if mask not in MASKS:
        raise SettingError(f"mask={mask!r}: choose one of {', '.join(MASKS)}.")
    rows, columns = np.indices((SIDE, SIDE))
    seen = MASKS[mask](rows, columns, np.random.default_rng(seed))
    return np.ma.array(check_image(image), mask=~seen | np.ma.getmaskarray(image))


def check_image(image: np.ndarray) -> np.ndarray:
    """Refuse an array whose size or values are not those of an image of a digit."""
    values = np.ma.getdata(image)
    if values.shape != (SIDE, SIDE):
        raise DataError(f"the image has shape {values.shape}: {SIDE} × {SIDE} pixels are needed.")
    if not np.issubdtype(values.dtype, np.number):
        raise DataError(f"the image has dtype {values.dtype}: numbers between 0 and 1 are needed.")
    seen = np.ma.compressed(np.ma.asarray(image)).astype(float)
    if not np.all(np.isfinite(seen)) or np.any((seen < 0) | (seen > 1)):
        raise DataError(
            "the image has values that are not between 0 (black, no ink) and 1 (white): divide "
            "bytes by 255, and mask pixels that are not known (numpy.ma)."
        )
    return values.astype(float)


def check_seen(image: np.ma.MaskedArray) -> np.ndarray:
    """The indices of the observed pixels; refuse an image with none or all observed."""
    check_image(image)
    seen = np.flatnonzero(~np.ma.getmaskarray(image))
    if seen.size == 0:
        raise DataError("all pixels are masked: nothing is seen to go by.")
    if seen.size == SIDE**2:
        raise DataError("no pixel is masked: all is seen, and nothing is left to paint.")
    return seen


def read_image(path: Path) -> np.ndarray:
    """Read a grey image from `.npy` or any format that matplotlib reads; ink must be light."""
    try:
        if path.suffix == ".npy":
            return np.load(path)
        from matplotlib.image import imread

        pixels = np.asarray(imread(path), dtype=float)
    except (OSError, ValueError, SyntaxError, EOFError) as error:
        raise DataError(f"the image {str(path)!r} cannot be read: {error}.") from error
    if pixels.max(initial=0.0) > 1:
        pixels = pixels / 255.0
    return pixels[..., :3].mean(axis=-1) if pixels.ndim == 3 else pixels
