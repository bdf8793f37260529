"""Targets of many kinds, and functions of their draws with known means.

The means are closed forms or quadratures unless stated otherwise.
"""

import sys
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr
from scipy.integrate import quad

import coarea as co
from benchmarks.loop import NOISE
from benchmarks.loop import target as thin_loop
from coarea.manifolds import AbstractTarget
from coarea.studies import lotka_volterra
from coarea.studies.lotka_volterra_methods import exact_moments


class Case(NamedTuple):
    """A target, and functions of its draws (a posterior dataset) with their exact means."""

    target: AbstractTarget
    functions: dict[str, tuple[Callable, float]]


def linear_gaussian(num_constraints):
    rng = np.random.default_rng(1)
    M = num_constraints + 10
    A, c, y = (
        rng.normal(size=(num_constraints, M)),
        rng.normal(size=M),
        rng.normal(size=num_constraints),
    )
    model = co.Generator(lambda u: {"z": c @ u["u"], "y": A @ u["u"]}, {"u": M})
    gain = A.T @ np.linalg.inv(A @ A.T)
    mean, variance = c @ gain @ y, c @ (np.eye(M) - gain @ A) @ c
    return Case(
        co.condition(model, {"y": y}),
        {
            "mean": (lambda d: d["z"].values, mean),
            "variance": (lambda d: (d["z"].values - mean) ** 2, variance),
        },
    )


def sphere():
    kappa = 3.0
    target = co.Manifold(
        lambda x: x @ x - 1.0, lambda x: kappa * x[2], point=np.array([0.0, 0.0, 1.0])
    )
    mean = 1 / np.tanh(kappa) - 1 / kappa
    return Case(
        target,
        {
            "E x₃": (lambda d: d["point"].values[..., 2], mean),
            "E x₃²": (lambda d: d["point"].values[..., 2] ** 2, 1 - 2 * mean / kappa),
        },
    )


def torus():
    R, r = 2.0, 1.2
    target = co.Manifold(
        lambda x: (jnp.hypot(x[0], x[1]) - R) ** 2 + x[2] ** 2 - r**2,
        lambda x: jnp.zeros(()),
        point=np.array([R + r, 0.0, 0.0]),
    )

    def cosine(d):
        x = d["point"].values
        return (np.hypot(x[..., 0], x[..., 1]) - R) / r

    return Case(target, {"E cos": (cosine, r / (2 * R)), "E cos²": (lambda d: cosine(d) ** 2, 0.5)})


def rotations():
    """Uniform on SO(4): ten equations for sixteen numbers; E X₁₁ = 0, E X₁₁² = 1/4."""
    rows, columns = np.triu_indices(4)

    def constraint(X):
        return (X @ X.T - jnp.eye(4))[rows, columns]

    target = co.Manifold(constraint, lambda X: jnp.zeros(()), point=np.eye(4))
    return Case(
        target,
        {
            "E X₁₁": (lambda d: d["point"].values[..., 0, 0], 0.0),
            "E X₁₁²": (lambda d: d["point"].values[..., 0, 0] ** 2, 0.25),
            "E X₁₁X₂₂X₁₂X₂₁": (
                lambda d: np.prod(
                    [d["point"].values[..., i, j] for i in (0, 1) for j in (0, 1)], axis=0
                ),
                -1 / 72,
            ),
        },
    )


def lotka_volterra_case():
    """Reference: importance sampling of the tractable posterior."""
    y = lotka_volterra.dataset(seed=0)
    mean, sd = exact_moments(y)
    functions = {}
    for i in range(4):
        functions[f"E log z{i}"] = (lambda d, i=i: np.log(d["z"].values[..., i]), mean[i])
        functions[f"var log z{i}"] = (
            lambda d, i=i: (np.log(d["z"].values[..., i]) - mean[i]) ** 2,
            sd[i] ** 2,
        )
    return Case(co.condition(lotka_volterra.generator(), {"y": y}), functions)


def loop(sigma):
    """y = θ₁² + 3θ₀²(θ₀² − 1) + σn = 1. The posterior of θ by quadrature over (θ₀, n)."""

    def inner(x, function):
        """∫ over n, with θ₁ = ±√(1 − 3x²(x² − 1) − σn): its density is ρ / (2|θ₁|)."""
        level = 1 - 3 * x**2 * (x**2 - 1)
        # n = level/σ − θ₁²/σ; integrate over θ₁ ≥ 0 where n is within 9 of zero.
        low, high = max(level - 9 * sigma, 0.0), level + 9 * sigma
        if high <= 0:
            return 0.0
        # Gauss–Legendre in θ₁, on the interval that the noise allows.
        t, w = np.polynomial.legendre.leggauss(200)
        a, b = np.sqrt(low), np.sqrt(high)
        theta = 0.5 * (b - a) * t + 0.5 * (a + b)
        n = (level - theta**2) / sigma
        density = np.exp(-0.5 * theta**2 - 0.5 * n**2 - 0.5 * x**2) / sigma
        return 0.5 * (b - a) * np.sum(w * density * function(x, theta))

    def integral(function):
        edge = 1.6 if sigma < 0.5 else 5.0
        return quad(lambda x: inner(x, function), 0.0, edge, limit=400)[0]

    total = integral(lambda x, t: 1.0)
    functions = {
        "E θ₀²": (lambda d: d["theta"].values[..., 0] ** 2, integral(lambda x, t: x**2) / total),
        "E θ₁²": (lambda d: d["theta"].values[..., 1] ** 2, integral(lambda x, t: t**2) / total),
    }
    return Case(thin_loop(sigma), functions)


def quantile_case(quantile, truth, from_normal, num=250):
    """Independent data from a distribution given by its quantile function.

    `truth` gives the standard normals that `from_normal` maps to the parameters.

    The reference likelihood is 1/Q′(p) at Q(p) = y, found by bisection. The reference posterior
    over the four parameters is from importance sampling around its mode, with a heavy-tailed
    proposal.
    """

    def simulate(u):
        z = from_normal(u["z"])
        return {"z": z, "y": jax.vmap(lambda n: quantile(z, n))(u["n"])}

    model = co.Generator(simulate, {"z": 4, "n": num})
    with jax.enable_x64(True):
        n = jax.random.normal(jax.random.key(5), (num,))
        z = from_normal(jnp.array(truth))
        y = np.asarray(jax.vmap(lambda n: quantile(z, n))(n))
        mean, sd = _by_importance(quantile, from_normal, y, np.array(truth))
    functions = {}
    for i in range(4):
        functions[f"E z{i}"] = (lambda d, i=i: d["z"].values[..., i], mean[i])
        functions[f"var z{i}"] = (lambda d, i=i: (d["z"].values[..., i] - mean[i]) ** 2, sd[i] ** 2)
    return Case(co.condition(model, {"y": y}), functions)


def _by_importance(quantile, from_normal, y, start, num=100_000):
    from scipy.optimize import minimize

    def normal_score(z, value):
        """The n with Q(z, n) = value, by bisection."""

        def halve(_, ends):
            low, high = ends
            middle = 0.5 * (low + high)
            below = quantile(z, middle) < value
            return jnp.where(below, middle, low), jnp.where(below, high, middle)

        low, high = jax.lax.fori_loop(0, 60, halve, (jnp.asarray(-12.0), jnp.asarray(12.0)))
        return 0.5 * (low + high)

    def log_posterior(u):
        z = from_normal(u)
        n = jax.vmap(lambda value: normal_score(z, value))(y)
        slope = jax.vmap(jax.grad(lambda n: quantile(z, n)))(n)
        value = jnp.sum(-0.5 * n**2 - jnp.log(slope)) - 0.5 * u @ u
        # A bisection that ends at an end of the interval shows that the datum cannot be produced.
        return jnp.where(jnp.max(jnp.abs(n)) < 11.9, value, -jnp.inf)

    value = jax.jit(log_posterior)
    batched = jax.jit(lambda u: jax.lax.map(log_posterior, u, batch_size=1000))
    best = minimize(
        lambda u: -float(np.nan_to_num(value(jnp.asarray(u)), nan=-1e10, neginf=-1e10)),
        start,
        method="Nelder-Mead",
        options={"maxiter": 4000, "maxfev": 4000, "xatol": 1e-6, "fatol": 1e-8},
    )
    h = 1e-3
    H = np.empty((4, 4))
    E = h * np.eye(4)
    for i in range(4):
        for j in range(4):
            H[i, j] = sum(
                s * t * float(value(jnp.asarray(best.x + s * E[i] + t * E[j])))
                for s in (-1, 1)
                for t in (-1, 1)
            ) / (4 * h * h)
    L = np.linalg.cholesky(1.3 * np.linalg.inv(-H))
    rng = np.random.default_rng(0)
    dof = 6
    t = rng.normal(size=(num, 4)) * np.sqrt(dof / rng.chisquare(dof, size=(num, 1)))
    u = best.x + t @ L.T
    log_weight = np.asarray(batched(u)) + 0.5 * (dof + 4) * np.log1p(np.sum(t**2, axis=1) / dof)
    log_weight = np.where(np.isfinite(log_weight), log_weight, -np.inf)
    weight = np.exp(log_weight - log_weight.max())
    weight /= weight.sum()
    z = np.asarray(jax.vmap(from_normal)(u))
    mean = weight @ z
    print(f"  reference: effective size {1 / np.sum(weight**2):.0f} of {num}", file=sys.stderr)
    return mean, np.sqrt(weight @ (z - mean) ** 2)


def g_and_k():
    """Location, scale, skewness and kurtosis through a transformation of the normal."""

    def quantile(z, n):
        a, b, g, k = z
        return a + b * (1 + 0.8 * jnp.tanh(0.5 * g * n)) * (1 + n**2) ** k * n

    def from_normal(u):
        return jnp.stack([3 * u[0], jnp.exp(0.5 * u[1]), u[2], 0.5 * jnp.exp(0.7 * u[3] - 0.5)])

    return quantile_case(quantile, (1.0, 0.0, 1.0, 5 / 7), from_normal)


def tukey_lambda():
    """The thesis's generalised Tukey lambda: z₁ + z₂((p^z₃ − 1)/z₃ − ((1 − p)^z₄ − 1)/z₄)."""

    def quantile(z, n):
        log_p, log_q = jax.scipy.special.log_ndtr(n), jax.scipy.special.log_ndtr(-n)
        return z[0] + z[1] * (jnp.expm1(z[2] * log_p) / z[2] - jnp.expm1(z[3] * log_q) / z[3])

    def from_normal(u):
        return jnp.stack([u[0], -jax.scipy.special.log_ndtr(-u[1]), u[2], u[3]])

    return quantile_case(quantile, (5.0, 0.3375, 0.4, -0.1), from_normal)


def funnel():
    """Eight groups, y_j = τ e_j + 0.1 n_j with small noise; log τ ~ N(0, 1). By quadrature.

    Given τ, the y_j are independent N(0, τ² + 0.01).
    """
    y = 0.7 * np.array([2.8, 0.8, -0.3, 0.7, -0.1, 0.1, 1.8, 1.2])

    def simulate(u):
        tau = jnp.exp(u["log_tau"])
        return {"log_tau": u["log_tau"], "y": tau * u["effect"] + 0.1 * u["n"]}

    def density(x):
        variance = np.exp(2 * x) + 0.01
        return np.exp(-0.5 * x**2 - 0.5 * np.sum(y**2) / variance) * variance**-4

    total = quad(density, -8, 8)[0]
    mean = quad(lambda x: x * density(x), -8, 8)[0] / total
    square = quad(lambda x: x**2 * density(x), -8, 8)[0] / total
    model = co.Generator(simulate, {"log_tau": (), "effect": 8, "n": 8})
    return Case(
        co.condition(model, {"y": y}),
        {
            "E log τ": (lambda d: d["log_tau"].values, mean),
            "E (log τ)²": (lambda d: d["log_tau"].values ** 2, square),
        },
    )


def latent_ode():
    """Logistic growth observed at ten times with noise; rate and start by quadrature over both."""
    times = np.linspace(0.5, 5.0, 10)
    step = 0.05

    def trajectory(rate, x0):
        def euler(x, _):
            x = x + step * rate * x * (1 - x)
            return x, x

        _, x = jax.lax.scan(euler, x0, None, length=100)
        return x[9::10]

    def simulate(u):
        rate, x0 = jnp.exp(0.5 * u["rate"]), 0.5 * ndtr(u["x0"])
        return {"rate": rate, "x0": x0, "y": trajectory(rate, x0) + 0.05 * u["n"]}

    model = co.Generator(simulate, {"rate": (), "x0": (), "n": len(times)})
    with jax.enable_x64(True):
        noise = 0.05 * jax.random.normal(jax.random.key(2), (10,))
        y = np.asarray(trajectory(jnp.asarray(1.3), jnp.asarray(0.08)) + noise)
        a, b = jnp.linspace(-1.5, 3, 1500), jnp.linspace(-4, 1, 1500)

        def log_density(a, b):
            x = trajectory(jnp.exp(0.5 * a), 0.5 * ndtr(b))
            return -0.5 * jnp.sum(((y - x) / 0.05) ** 2) - 0.5 * a**2 - 0.5 * b**2

        table = jax.lax.map(lambda a: jax.vmap(lambda b: log_density(a, b))(b), a)
        weight = jnp.exp(table - table.max())
        weight /= weight.sum()
        rate = float(jnp.sum(weight * jnp.exp(0.5 * a)[:, None]))
        start = float(jnp.sum(weight * 0.5 * ndtr(b)[None, :]))
    return Case(
        co.condition(model, {"y": y}),
        {
            "E rate": (lambda d: d["rate"].values, rate),
            "E start": (lambda d: d["x0"].values, start),
        },
    )


CASES = {
    "linear Gaussian, N = 1": lambda: linear_gaussian(1),
    "linear Gaussian, N = 50": lambda: linear_gaussian(50),
    "Lotka–Volterra": lotka_volterra_case,
    "Tukey lambda, 250 data": tukey_lambda,
    "g-and-k, 250 data": g_and_k,
    "torus": torus,
    "von Mises–Fisher on a sphere": sphere,
    "rotations SO(4)": rotations,
    "funnel, small noise": funnel,
    "latent ODE": latent_ode,
    **{f"loop, σ = {sigma:g}": lambda sigma=sigma: loop(sigma) for sigma in NOISE},
}
