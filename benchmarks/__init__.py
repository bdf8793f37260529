"""coarea beside its peers: each case states a problem once and runs all tools on it in one run."""
