"""Every mistake ends in a typed error that names the thing and the cure."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import coarea as co
from coarea.errors import (
    CoareaError,
    DataError,
    JacobianError,
    ModelError,
    PrecisionError,
    SettingError,
    StartError,
)


def model(function=lambda u: u["a"] + u["b"], **inputs):
    return co.Generator(lambda u: {"z": u["a"], "y": function(u)}, inputs or {"a": (), "b": ()})


SINGLE = jnp.zeros(())
POSTERIOR = co.condition(model(), {"y": 1.0})


def condition(function, y=1.0, **inputs):
    return co.condition(model(function, **inputs), {"y": y})


def sample(function, y=1.0, **inputs):
    return co.sample(condition(function, y, **inputs), draws=5, warmup=20, chains=1)


def unbounded_loop(u):
    return jax.lax.while_loop(lambda x: x < 1.0, lambda x: 2.0 * x + x**2, jnp.abs(u["a"])) + u["b"]


MISTAKES = {
    "inputs not named": (
        ModelError, "must be a dictionary that names", lambda: co.Generator(lambda u: u, 3),
    ),
    "no inputs": (ModelError, "no elements", lambda: co.Generator(lambda u: u, {"a": 0})),
    "not a function": (ModelError, "not callable", lambda: co.Generator(3, {"a": 1})),
    "discrete input": (
        ModelError, "input 'k' is discrete .*Marginalise",
        lambda: co.Generator(lambda u: u, {"k": dist.Poisson(3.0)}),
    ),
    "not a distribution": (
        ModelError, "input 'a': expected a shape", lambda: co.Generator(lambda u: u, {"a": "4"}),
    ),
    "outputs not named": (
        ModelError, "must return a dictionary",
        lambda: co.condition(co.Generator(lambda u: u["a"], {"a": 2}), {"y": 1.0}),
    ),
    "not a generator": (
        ModelError, "is wrapped: coarea.Generator", lambda: co.condition(lambda u: u, {"y": 1.0}),
    ),
    "nothing observed": (DataError, "not empty", lambda: co.condition(model(), {})),
    "unknown output": (
        DataError, "'x' is not an output .* y, z", lambda: co.condition(model(), {"x": 1.0}),
    ),
    "wrong shape": (
        DataError, r"has shape \(2,\), but the generator's output 'y' has shape \(\)",
        lambda: condition(lambda u: u["a"], np.ones(2)),
    ),
    "not numeric": (
        DataError, "'y' is not real-valued", lambda: condition(lambda u: u["a"], "one"),
    ),
    "complex data": (
        DataError, "'y' is not real-valued.*complex", lambda: condition(lambda u: u["a"], 1j),
    ),
    "NaN in the data": (
        DataError, r"not finite, the first at index \(1,\).*masked_invalid",
        lambda: condition(lambda u: u["a"], np.array([0.0, np.nan]), a=2, b=2),
    ),
    "everything masked": (
        DataError, "every observed value is masked",
        lambda: condition(lambda u: u["a"], np.ma.masked_invalid([np.nan, np.nan]), a=2, b=2),
    ),
    "as many observed values as inputs": (
        DataError, "2 values are observed but there are only 2 random inputs.*noise it lacks",
        lambda: condition(lambda u: jnp.stack([u["a"], u["b"]]), np.ones(2)),
    ),
    "integer output": (
        ModelError, "output 'y' has dtype int64, which has no derivative",
        lambda: condition(lambda u: jnp.round(u["a"]).astype(int)),
    ),
    "cast at the end": (
        PrecisionError, "output 'y' has dtype float32",
        lambda: condition(lambda u: u["a"].astype(jnp.float32)),
    ),
    "cast on the way": (
        PrecisionError, "casts a float64 value to float32",
        lambda: condition(lambda u: u["b"] + u["a"].astype(jnp.float32)),
    ),
    "cast inside a loop": (
        PrecisionError, "casts a float64 value to float32",
        lambda: condition(
            lambda u: u["b"]
            + jax.lax.fori_loop(0, 3, lambda _, x: x.astype(jnp.float32).astype(float), u["a"])
        ),
    ),
    "not differentiable": (
        ModelError, "cannot be differentiated twice.*fixed length",
        lambda: condition(unbounded_loop),
    ),
    "NaN from the generator": (
        ModelError, "NaN or infinite at every point.*simulate",
        lambda: sample(lambda u: jnp.log(-jnp.abs(u["a"])) + u["b"]),
    ),
    "constant output": (
        JacobianError, r"y\[1\]: the derivative with respect to every input is zero",
        lambda: sample(
            lambda u: jnp.stack([u["a"][0] + u["b"][0], jnp.round(u["a"][1])]),
            np.ones(2), a=2, b=2,
        ),
    ),
    "repeated output": (
        JacobianError, r"y\[0\], y\[2\] are not independent",
        lambda: sample(
            lambda u: jnp.stack([u["a"][0], u["a"][1] + u["b"][0], 2 * u["a"][0]]),
            np.array([1.0, 1.0, 2.0]), a=2, b=2,
        ),
    ),
    "data that cannot be produced": (
        StartError, "no inputs that reproduce the data were found for 1 of 1 chains: the closest",
        lambda: sample(lambda u: u["a"] ** 2 + u["b"] ** 2, -1.0),
    ),
    "nothing left to report": (
        DataError, "nothing left to report.*keep='inputs'",
        lambda: co.sample(
            co.condition(co.Generator(lambda u: {"y": u["a"][0]}, {"a": 2}), {"y": 1.0})
        ),
    ),
    "negative step size": (SettingError, "step_size=-0.1", lambda: co.CHMC(step_size=-0.1)),
    "step size in words": (SettingError, "step_size='0.1'", lambda: co.CHMC(step_size="0.1")),
    "no steps": (SettingError, "num_steps=0", lambda: co.CHMC(num_steps=0)),
    "steps in a list": (SettingError, r"num_steps=\[4, 8\]", lambda: co.CHMC(num_steps=[4, 8])),
    "half a step": (SettingError, "num_steps=2.5", lambda: co.CHMC(num_steps=2.5)),
    "half a geodesic step": (
        SettingError, "geodesic_steps=1.5", lambda: co.NUTS(geodesic_steps=1.5),
    ),
    "unknown mass": (SettingError, "mass='dense': choose", lambda: co.NUTS(mass="dense")),
    "length without warm-up": (
        SettingError, "too short to find num_steps",
        lambda: co.sample(POSTERIOR, warmup=0, kernel=co.CHMC(step_size=0.1)),
    ),
    "device that is not there": (
        SettingError, "devices='tpu': JAX finds none here; it has cpu",
        lambda: co.sample(POSTERIOR, devices="tpu"),
    ),
    "device of no kind": (SettingError, "devices=3", lambda: co.sample(POSTERIOR, devices=3)),
    "no tree": (SettingError, "max_tree_depth=0", lambda: co.NUTS(max_tree_depth=0)),
    "start for no chains": (
        SettingError, "chains=0", lambda: co.find_start(POSTERIOR, jax.random.key(0), 0),
    ),
    "start for no target": (
        ModelError, "find_start takes what coarea.condition",
        lambda: co.find_start(model(), jax.random.key(0), 1),
    ),
    "seed that is none": (SettingError, "seed=None", lambda: co.sample(POSTERIOR, seed=None)),
    "input without randomness": (
        ModelError, "input 'a' is not random",
        lambda: co.Generator(lambda u: u, {"a": dist.Delta(1.0)}),
    ),
    "array of single precision": (
        PrecisionError, "mixes float32 with the float64.*with NumPy",
        lambda: condition(
            lambda u: jax.lax.fori_loop(0, 3, lambda _, x: x + u["a"], SINGLE) + u["b"]
        ),
    ),
    "as many equations as unknowns": (
        ModelError, "2 equations for 2 unknowns",
        lambda: co.Manifold(lambda x: x, lambda x: 0.0, point=np.ones(2)),
    ),
    "density of several numbers": (
        ModelError, r"one number, not shape \(2,\)",
        lambda: co.Manifold(lambda x: x[0], lambda x: x, point=np.ones(2)),
    ),
    "nested point": (
        ModelError, "dictionary from names to arrays",
        lambda: co.Manifold(lambda x: x["a"]["b"], lambda x: 0.0, point={"a": {"b": 1.0}}),
    ),
    "start outside the support": (
        StartError, "log density there is not finite",
        lambda: co.sample(
            co.Manifold(lambda x: jnp.sum(x), lambda x: jnp.sum(jnp.log(x)), point=-np.ones(3))
        ),
    ),
    "no geodesic steps": (SettingError, "geodesic_steps=0", lambda: co.CHMC(geodesic_steps=0)),
    "not a probability": (
        SettingError, "target_acceptance=80", lambda: co.CHMC(target_acceptance=80),
    ),
    "rotation of what is not normal": (
        SettingError, "standard normal, of which there are none here",
        lambda: co.sample(
            condition(
                lambda u: u["a"] + u["b"], a=dist.StudentT(5.0), b=dist.StudentT(5.0)
            ),
            kernel=co.CHMC(integrator=co.dynamics.Rattle(flow=co.dynamics.Rotation())),
        ),
    ),
    "no target": (ModelError, "takes what coarea.condition", lambda: co.sample(model())),
    "no kernel": (SettingError, "kernel='nuts'", lambda: co.sample(POSTERIOR, kernel="nuts")),
    "no draws": (SettingError, "draws=0", lambda: co.sample(POSTERIOR, draws=0)),
    "no warm-up": (SettingError, "warmup=3 is too short", lambda: co.sample(POSTERIOR, warmup=3)),
    "unknown precision": (
        SettingError, "precision='float16'", lambda: co.sample(POSTERIOR, precision="float16"),
    ),
    "unknown keep": (SettingError, "keep='all'", lambda: co.sample(POSTERIOR, keep="all")),
    "start of another shape": (
        SettingError, r"start has shape \(2,\).* need \(4, 2\)",
        lambda: co.sample(POSTERIOR, start=np.zeros(2)),
    ),
    "double precision off": (
        PrecisionError, "x64 mode is off.*enable_x64",
        lambda: co.kernels.chmc(POSTERIOR, step_size=0.1),
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named_with_its_cure(mistake):
    kind, message, make = MISTAKES[mistake]
    with pytest.raises(kind, match=f"(?s){message}") as raised:
        make()
    assert isinstance(raised.value, CoareaError)


def test_a_cast_in_an_output_that_is_not_observed_is_allowed():
    generator = co.Generator(
        lambda u: {"image": u["a"].astype(jnp.float32), "y": u["a"] + u["b"]}, {"a": (), "b": ()}
    )
    assert co.condition(generator, {"y": 1.0}).num_constraints == 1


def test_the_kernel_refuses_a_position_off_the_manifold(x64):
    algorithm = co.kernels.nuts(POSTERIOR, step_size=0.1)
    with pytest.raises(StartError, match=r"not on the manifold.*find_start"):
        algorithm.init(jnp.array([3.0, 1.0]))


def test_the_kernel_refuses_to_step_in_single_precision():
    with jax.enable_x64(True):
        algorithm = co.kernels.nuts(POSTERIOR, step_size=0.1)
        state = algorithm.init(jnp.array([0.5, 0.5]))
    with pytest.raises(PrecisionError, match="x64 mode is off"):
        algorithm.step(jax.random.key(0), state)


def test_the_kernel_refuses_a_step_size_that_is_not_positive(x64):
    with pytest.raises(SettingError, match="step_size=0"):
        co.kernels.chmc(POSTERIOR, step_size=0)
