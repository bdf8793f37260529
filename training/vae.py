"""Variational auto-encoders, trained with Adam: what the training scripts have in common."""

import itertools
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax


def initial_layers(key, widths) -> tuple[tuple[jax.Array, ...], tuple[jax.Array, ...]]:
    """Weights (in, out), of a size that keeps a signal's, and biases of layers of these widths."""
    pairs = list(itertools.pairwise(widths))
    keys = jax.random.split(key, len(pairs))
    weights = (
        jax.random.normal(k, pair) / jnp.sqrt(pair[0]) for k, pair in zip(keys, pairs, strict=True)
    )
    return tuple(weights), tuple(jnp.zeros(n) for _, n in pairs)


def gaussian_kl(mean, log_variance):
    """From N(mean, e^log_variance) to the standard normal distribution."""
    return 0.5 * jnp.sum(mean**2 + jnp.exp(log_variance) - 1.0 - log_variance, axis=-1)


def gaussian_log_density(x, mean, log_variance):
    """Of independent normals."""
    squares = (x - mean) ** 2 * jnp.exp(-log_variance)
    return -0.5 * jnp.sum(squares + log_variance + jnp.log(2 * jnp.pi), axis=-1)


def train(
    bound: Callable[..., jax.Array],
    parameters: Any,
    train_data: np.ndarray,
    held_out_data: np.ndarray,
    *,
    steps: int,
    batch: int,
    rate: float,
    seed: int,
    reports: int = 20,
) -> Any:
    """Parameters that maximise the mean of `bound(parameters, key, x)` over batches x.

    The rate falls to zero; now and then the bound is printed, also of data held out.
    """
    optimiser = optax.adam(optax.cosine_decay_schedule(rate, steps))
    data, others = jnp.asarray(train_data), jnp.asarray(held_out_data)

    def step(carry, key):
        parameters, state = carry
        choice, noise = jax.random.split(key)
        x = data[jax.random.randint(choice, (batch,), 0, len(data))]
        loss, slope = jax.value_and_grad(lambda p: -jnp.mean(bound(p, noise, x)))(parameters)
        change, state = optimiser.update(slope, state)
        return (optax.apply_updates(parameters, change), state), -loss

    stretch = jax.jit(lambda carry, keys: jax.lax.scan(step, carry, keys))
    judge = jax.jit(lambda parameters, key: jnp.mean(bound(parameters, key, others)))
    carry = parameters, optimiser.init(parameters)
    began = time.perf_counter()
    for i, keys in enumerate(
        jnp.array_split(jax.random.split(jax.random.key(seed), steps), reports)
    ):
        carry, values = stretch(carry, keys)
        held_out = judge(carry[0], jax.random.key(i))
        print(
            f"{time.perf_counter() - began:6.0f} s  bound {jnp.mean(values):.2f} training, "
            f"{held_out:.2f} held out",
            flush=True,
        )
    return carry[0]
