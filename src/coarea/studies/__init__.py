"""The paper's studies and others; each is a short module with a `run` function."""
