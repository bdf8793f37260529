"""The paper's studies and more, each a short readable module with a `run` function."""
