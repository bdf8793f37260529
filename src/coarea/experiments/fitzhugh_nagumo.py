"""The hypoelliptic FitzHugh–Nagumo model of a neuron, its voltage seen exactly and nothing else.

    dx₁ = (x₁ − x₁³ − x₂)/ε dt,   dx₂ = (γx₁ − x₂ + β) dt + σ dW,

x₁ every 0.2 time units, with steps of strong order 1.5 between (after Graham, Thiery & Beskos,
*Manifold Markov chain Monte Carlo methods for Bayesian inference in diffusion models*, 2022). The
noise reaches what is seen only through x₂, so that no likelihood of the steps can be written down.
"""

import jax
import jax.numpy as jnp
import numpy as np

import coarea as co

INTERVAL = 0.2
TRUTH = {"sigma": 0.3, "epsilon": 0.1, "gamma": 1.5, "beta": 0.8}
FIRST_STATE = (-0.5, 0.2)


def model(observations: int = 100, steps_between: int = 25) -> co.Markov:
    """Parameters with priors log σ, log ε, log γ, β ~ N(0, 1), two normals a step."""
    return co.Markov(
        shared={"log_sigma": (), "log_epsilon": (), "log_gamma": (), "beta": ()},
        noise=2,
        steps=observations * steps_between,
        initial=lambda s, n: n - jnp.stack([jnp.zeros_like(s["beta"]), s["beta"]]),
        initial_noise=2,
        step=lambda s, x, n, t: step(parameters(s), x, n, INTERVAL / steps_between),
        observe=lambda s, x, n, t: x[0],
        observe_every=steps_between,
        outputs=parameters,
    )


def parameters(s):
    """The rates by name."""
    return {
        "sigma": jnp.exp(s["log_sigma"]),
        "epsilon": jnp.exp(s["log_epsilon"]),
        "gamma": jnp.exp(s["log_gamma"]),
        "beta": s["beta"],
    }


def step(z, x, n, dt):
    """One step of strong order 1.5."""
    x1, x2 = x[0], x[1]
    drift1 = (x1 - x1**3 - x2) / z["epsilon"]
    drift2 = z["gamma"] * x1 - x2 + z["beta"]
    # The integral of the Brownian path over the step, which reaches x₁ before its end point does.
    area = 0.5 * dt**1.5 * (n[0] + n[1] / np.sqrt(3.0))
    curvature1 = ((1 - 3 * x1**2) * drift1 - drift2) / z["epsilon"]
    curvature2 = z["gamma"] * drift1 - drift2
    return jnp.stack(
        [
            x1 + dt * drift1 + 0.5 * dt**2 * curvature1 - z["sigma"] / z["epsilon"] * area,
            x2 + dt * drift2 + 0.5 * dt**2 * curvature2 + z["sigma"] * (np.sqrt(dt) * n[0] - area),
        ]
    )


def dataset(seed: int, observations: int = 100, steps_between: int = 10_000) -> np.ndarray:
    """x₁ at the observation times, simulated with much finer steps than are used to infer."""
    dt = INTERVAL / steps_between

    def interval(x, key):
        noise = jax.random.normal(key, (steps_between, 2))
        x, _ = jax.lax.scan(lambda x, n: (step(TRUTH, x, n, dt), None), x, noise)
        return x, x[0]

    with jax.enable_x64(True):
        keys = jax.random.split(jax.random.key(seed), observations)
        return np.asarray(
            jax.jit(lambda k: jax.lax.scan(interval, jnp.array(FIRST_STATE), k)[1])(keys)
        )
