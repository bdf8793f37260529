"""Benchmarks of coarea and its peers. A case defines one problem and runs all tools on it."""
