"""Running chains: compiled blocks of transitions on threads and devices, one driver for all."""
