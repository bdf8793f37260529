"""Warm-up: step size, trajectory length and mass."""
