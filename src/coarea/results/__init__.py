"""Draws as ArviZ data, and their diagnostics."""

from coarea.results.diagnose import diagnose as diagnose
