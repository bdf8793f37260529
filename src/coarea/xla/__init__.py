"""How programs are compiled, and what is asked of XLA beyond plain `jax.jit`."""
