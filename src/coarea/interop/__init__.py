"""coarea's kernels for other libraries' drivers, each imported when it is first asked for."""

import importlib


def __getattr__(name: str):
    if name == "numpyro":
        return importlib.import_module("coarea.interop.numpyro")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
