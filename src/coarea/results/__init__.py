"""Draws as ArviZ data, and what they say about themselves."""

from coarea.results.diagnose import diagnose as diagnose
