"""Draws as a netCDF file."""

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from xarray import DataTree


def write_netcdf(draws: "DataTree", path: Path) -> None:
    """Write the draws to a file, whole or not at all.

    HDF5 makes the file in memory. If HDF5 itself wrote to a full disk, it would crash the process
    when it cleans up.
    """
    content = draws.to_netcdf(engine="h5netcdf")
    assert isinstance(content, memoryview)
    part = path.with_name(f"{path.name}.part")
    try:
        part.write_bytes(content)
        part.replace(path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            part.unlink()
        if isinstance(error, OSError):  # an error while writing does not name the file
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
