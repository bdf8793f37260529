"""What can go wrong, by kind. Every message names the thing and the cure."""

from typing import Any


class CoareaError(Exception):
    """The base of every error that coarea raises on purpose."""


class ModelError(CoareaError, ValueError):
    """The generator itself cannot be used: its inputs, its outputs or its derivatives."""


class DataError(CoareaError, ValueError):
    """The observed values do not fit the generator."""


class JacobianError(ModelError):
    """The observed outputs do not respond to the inputs in enough directions."""


class PrecisionError(CoareaError, ValueError):
    """Numbers are stored with fewer digits than exact conditioning needs."""


class StartError(CoareaError, RuntimeError):
    """No inputs that reproduce the data were found."""


class SettingError(CoareaError, ValueError):
    """An option of a kernel or of `sample` has a value that cannot work."""


class AcceptanceError(CoareaError, RuntimeError):
    """No simulation came close enough to the data; `smallest_distance` says how close one came."""

    def __init__(self, message: str, smallest_distance: float):
        super().__init__(message)
        self.smallest_distance = smallest_distance


class ResultError(CoareaError, RuntimeError):
    """Draws were made, but something failed afterwards. `draws` has what could be saved.

    It is what the call would have returned, or, where that could not be made, a dictionary of
    NumPy arrays for each of its groups.
    """

    def __init__(self, message: str, draws: Any):
        super().__init__(message)
        self.draws = draws


class StructureWarning(UserWarning):
    """The sparsity of Jacobians cannot be read, so every model is treated as dense."""


class SamplingWarning(UserWarning):
    """The run ended, but something about it deserves a look."""
