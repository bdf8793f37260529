"""Variational auto-encoders, trained with Adam: what the training scripts have in common."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax


class Trained(NamedTuple):
    """Parameters at the end, and the mean ELBO in nats a datum after each stretch of training."""

    parameters: Any
    training: list[float]
    held_out: list[float]


def gaussian_kl(mean, log_variance):
    """From N(mean, e^log_variance) to the standard normal distribution."""
    return 0.5 * jnp.sum(mean**2 + jnp.exp(log_variance) - 1.0 - log_variance, axis=-1)


def gaussian_log_density(x, mean, log_variance):
    """Of independent normals."""
    squares = (x - mean) ** 2 * jnp.exp(-log_variance)
    return -0.5 * jnp.sum(squares + log_variance + jnp.log(2 * jnp.pi), axis=-1)


def train(
    elbo: Callable[..., jax.Array],
    parameters: Any,
    train_data: np.ndarray,
    held_out_data: np.ndarray,
    *,
    steps: int,
    batch: int,
    rate: float,
    seed: int,
    reports: int = 20,
) -> Trained:
    """Maximise the mean of `elbo(parameters, key, x)` over batches x, the rate falling to zero."""
    optimiser = optax.adam(optax.cosine_decay_schedule(rate, steps))
    data, others = jnp.asarray(train_data), jnp.asarray(held_out_data)

    def step(carry, key):
        parameters, state = carry
        choice, noise = jax.random.split(key)
        x = data[jax.random.randint(choice, (batch,), 0, len(data))]
        loss, slope = jax.value_and_grad(lambda p: -jnp.mean(elbo(p, noise, x)))(parameters)
        change, state = optimiser.update(slope, state)
        return (optax.apply_updates(parameters, change), state), -loss

    stretch = jax.jit(lambda carry, keys: jax.lax.scan(step, carry, keys))
    judge = jax.jit(lambda parameters, key: jnp.mean(elbo(parameters, key, others)))
    carry = parameters, optimiser.init(parameters)
    kept: tuple[list[float], list[float]] = ([], [])
    began = time.perf_counter()
    for i, keys in enumerate(
        jnp.array_split(jax.random.split(jax.random.key(seed), steps), reports)
    ):
        carry, values = stretch(carry, keys)
        kept[0].append(float(jnp.mean(values)))
        kept[1].append(float(judge(carry[0], jax.random.key(i))))
        print(
            f"{time.perf_counter() - began:6.0f} s  ELBO {kept[0][-1]:.2f} training, "
            f"{kept[1][-1]:.2f} held out",
            flush=True,
        )
    return Trained(carry[0], *kept)
