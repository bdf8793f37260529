"""Models and data that cannot be used are refused, by name and with the cure."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import coarea as co
from coarea import approximate
from coarea.errors import (
    CoareaError,
    DataError,
    JacobianError,
    ModelError,
    PrecisionError,
    SettingError,
    StartError,
)
from mistakes import (
    DIRECTED,
    KEY,
    MODEL,
    VECTOR,
    N,
    gen,
    latent,
    manifold,
    markov,
    plain,
    sample,
    scoped,
    y_is,
)


def branch(u):
    if u["z"] > 0:
        return u["z"] + u["n"]
    return u["n"]


def short_loop(u):
    x = u["z"]
    for _ in range(u["z"].astype(int)):
        x = x + 1
    return x + u["n"]


class Keeps:
    def __call__(self, u):
        if hasattr(self, "last"):
            return self.last + u["n"]
        self.last = u["z"]
        return u["z"] + u["n"]


@jax.custom_vjp
def backwards_only(x):
    return x**2


backwards_only.defvjp(lambda x: (x**2, x), lambda x, g: (2 * x * g,))


def scipy_call(u):
    import scipy.special

    return scipy.special.gammaln(u["z"]) + u["n"]


def write_in_place(u):
    x = jnp.zeros(3)
    x[0] = u["z"]
    return x.sum() + u["n"]


def raises(u):
    raise KeyError("population")


def wrong_shapes(u):
    return jnp.ones(3) @ jnp.ones(4) + u["z"] + u["n"]


def unknown_input(u):
    return u["sigma"] + u["n"]


def callback(u):
    return jax.pure_callback(np.sin, jax.ShapeDtypeStruct((), u["z"].dtype), u["z"]) + u["n"]


def counts():
    rate = numpyro.sample("rate", dist.LogNormal(0.0, 1.0))
    x = numpyro.sample("x", dist.Normal())
    numpyro.deterministic("t", x + rate)
    numpyro.sample("k", dist.Poisson(rate), obs=3)


def changing():
    changing.count += 1
    numpyro.sample(f"a{changing.count}", dist.Normal())
    numpyro.deterministic(
        "t", numpyro.sample("b", dist.Normal()) + numpyro.sample("c", dist.Normal())
    )


changing.count = 0

TRACING = {
    "branch": (
        ModelError,
        "it branches in Python on a value that depends on the",
        lambda: y_is(branch),
    ),
    "and": (
        ModelError,
        "it branches in Python on a value that depends on the",
        lambda: y_is(lambda u: u["n"] + (u["z"] > 0 and u["n"] > 0)),
    ),
    "while": (
        ModelError,
        "it branches in Python on a value that depends on the",
        lambda: y_is(lambda u: [None for _ in iter(lambda: bool(u["z"] > 0), False)]),
    ),
    "numpy": (
        ModelError,
        "it hands a value that depends on the random inputs to",
        lambda: y_is(lambda u: np.sin(u["z"]) + u["n"]),
    ),
    "numpy array": (
        ModelError,
        "it hands a value that depends on the random inputs to",
        lambda: y_is(lambda u: np.array([u["z"], u["n"]]).sum()),
    ),
    "float": (
        ModelError,
        "it needs the number behind a value that depends on the",
        lambda: y_is(lambda u: float(u["z"]) + u["n"]),
    ),
    "int": (
        ModelError,
        "it needs the number behind a value that depends on the",
        lambda: y_is(lambda u: int(u["z"]) + u["n"]),
    ),
    "range": (
        ModelError,
        "it uses a value that depends on the random inputs where",
        lambda: y_is(short_loop),
    ),
    "item": (
        ModelError,
        "it needs the number behind a value that depends on the",
        lambda: y_is(lambda u: u["z"].item() + u["n"]),
    ),
    "mask": (
        ModelError,
        "it picks elements by a condition on the random inputs, so",
        lambda: y_is(lambda u: u["z"] + u["n"][u["n"] > 0].sum(), {"z": (), "n": 3}),
    ),
    "shape": (
        ModelError,
        "it uses a value that depends on the random inputs where",
        lambda: y_is(lambda u: jnp.zeros(u["z"].astype(int)).sum() + u["n"]),
    ),
    "scipy": (
        ModelError,
        "it hands a value that depends on the random inputs to",
        lambda: y_is(scipy_call),
    ),
    "write": (
        ModelError,
        "with TypeError: JAX arrays are immutable and do not",
        lambda: y_is(write_in_place),
    ),
    "raises": (ModelError, "with KeyError: 'population'", lambda: y_is(raises)),
    "shapes": (
        ModelError,
        "with TypeError: dot_general requires contracting",
        lambda: y_is(wrong_shapes),
    ),
    "unknown input": (ModelError, "with KeyError: 'sigma'", lambda: y_is(unknown_input)),
    "custom_vjp": (
        ModelError,
        "the generator cannot be differentiated twice, forwards",
        lambda: y_is(lambda u: backwards_only(u["z"]) + u["n"]),
    ),
    "callback": (
        ModelError,
        "the generator cannot be differentiated twice, forwards",
        lambda: y_is(callback),
    ),
    "math": (
        ModelError,
        "it needs the number behind a value that depends on the",
        lambda: y_is(lambda u: __import__("math").exp(u["z"]) + u["n"]),
    ),
    "list index": (
        ModelError,
        "it uses a value that depends on the random inputs where",
        lambda: y_is(lambda u: [1.0, 2.0][u["z"].astype(int)] + u["n"]),
    ),
    "numpyro in generator": (
        ModelError,
        "the generator's function uses NumPyro's primitives",
        lambda: y_is(lambda u: numpyro.sample("a", dist.Normal(0.0, 1.0)) + u["z"]),
    ),
    "two arguments": (
        ModelError,
        "with TypeError: <lambda>.<locals>.<lambda>()",
        lambda: co.condition(co.Generator(lambda u, v: {"y": u["z"]}, N), {"y": 1.0}),
    ),
    "attribute": (
        ModelError,
        "with AttributeError: 'dict' object has no attribute",
        lambda: y_is(lambda u: u.z + u["n"]),
    ),
    "in simulate": (
        ModelError,
        "it branches in Python on a value that depends on the",
        lambda: gen(lambda u: {"y": branch(u)}).simulate(KEY, 3),
    ),
    "in factor": (
        ModelError,
        "it branches in Python on a value that depends on the",
        lambda: gen(plain, log_factor=lambda o: 0.0 if o["z"] > 0 else -1.0),
    ),
    "in summarise": (
        ModelError,
        "it hands a value that depends on the random inputs to",
        lambda: co.condition(MODEL.summarise(lambda o: {"s": np.sin(o["y"])}), {"s": 0.1}),
    ),
    "in manifold": (
        ModelError,
        "it branches in Python on a value that depends on the",
        lambda: co.Manifold(lambda x: x[0] if x[0] > 0 else x[1], lambda x: 0.0, point=np.ones(2)),
    ),
    "in density": (
        ModelError,
        "it needs the number behind a value that depends on the",
        lambda: co.Manifold(
            lambda x: x @ x - 1.0, lambda x: float(x[0]), point=np.array([1.0, 0.0])
        ),
    ),
    "in likelihood": (
        ModelError,
        "it needs the number behind a value that depends on the",
        lambda: approximate.tractable(
            DIRECTED, {"y": 1.0}, log_likelihood=lambda z, y: float(z["z"])
        ),
    ),
    "in numpyro": (
        ModelError,
        "it hands a value that depends on the random inputs to",
        lambda: co.condition(
            lambda: numpyro.deterministic(
                "d", np.sin(numpyro.sample("a", dist.Normal().expand([2]))).sum()
            ),
            {"d": 0.3},
        ),
    ),
    "branch numpyro": (
        ModelError,
        "it branches in Python on a value that depends on the",
        lambda: co.condition(
            lambda: numpyro.deterministic(
                "d", 1.0 if numpyro.sample("a", dist.Normal()) > 0 else 2.0
            ),
            {"d": 0.3},
        ),
    ),
}

OUTPUTS = {
    "nested": (
        ModelError,
        "the generator's function returns 'y' as a dict, which is",
        lambda: co.condition(gen(lambda u: {"y": {"a": u["z"]}}), {"y": 1.0}),
    ),
    "none": (
        ModelError,
        "the generator's function returns 'x' as None, which is no",
        lambda: co.condition(gen(lambda u: {"y": u["z"] + u["n"], "x": None}), {"y": 1.0}),
    ),
    "string": (
        ModelError,
        "the generator's function returns 'x' as a str, which is",
        lambda: co.condition(gen(lambda u: {"y": u["z"] + u["n"], "x": "name"}), {"y": 1.0}),
    ),
    "ragged": (
        ModelError,
        "the generator's function returns 'x' as a list, which is",
        lambda: co.condition(
            gen(lambda u: {"y": u["z"] + u["n"], "x": [u["z"], jnp.ones(2)]}), {"y": 1.0}
        ),
    ),
    "int names": (
        ModelError,
        "the generator's function names one of its outputs 1",
        lambda: co.condition(gen(lambda u: {"y": u["z"] + u["n"], 1: u["z"]}), {"y": 1.0}),
    ),
    "tuple": (
        ModelError,
        "the generator's function must return a dictionary of",
        lambda: co.condition(gen(lambda u: (u["z"],)), {"y": 1.0}),
    ),
    "nothing": (
        ModelError,
        "the generator's function must return a dictionary of",
        lambda: co.condition(gen(lambda u: None), {"y": 1.0}),
    ),
    "key output": (
        ModelError,
        "the generator's function returns 'x' as an array of shape",
        lambda: latent(lambda u: {"x": jax.random.key(3)}),
    ),
    "object array": (
        ModelError,
        "the generator's function returns 'x' as an array of shape",
        lambda: latent(lambda u: {"x": np.array([None, 1])}),
    ),
    "integer observed": (
        ModelError,
        "output 'y' has dtype int64, which has no derivative: only",
        lambda: y_is(lambda u: jnp.round(u["z"] + u["n"]).astype(int)),
    ),
    "boolean observed": (
        ModelError,
        "output 'y' has dtype bool, which has no derivative: only",
        lambda: y_is(lambda u: u["z"] + u["n"] > 0),
    ),
    "complex observed": (
        ModelError,
        "output 'y' has dtype complex128, which has no derivative",
        lambda: y_is(lambda u: u["z"] + 1j * u["n"]),
    ),
    "latent chain": (
        ModelError,
        "an output or input is named 'chain', which is what ArviZ",
        lambda: latent(lambda u: {"chain": u["z"]}),
    ),
    "latent draw": (
        ModelError,
        "an output or input is named 'draw', which is what ArviZ",
        lambda: latent(lambda u: {"draw": u["z"]}),
    ),
    "slash twice": (
        ModelError,
        "two of the names 'a.b', 'a/b' are the same when '/' is",
        lambda: latent(lambda u: {"a/b": u["z"], "a.b": u["n"]}),
    ),
    "input chain kept": (
        ModelError,
        "an output or input is named 'chain', which is what ArviZ",
        lambda: sample(
            co.condition(
                co.Generator(
                    lambda u: {"z": u["chain"], "y": u["chain"] + u["n"]}, {"chain": (), "n": ()}
                ),
                {"y": 1.0},
            ),
            keep="inputs",
        ),
    ),
    "summary not dict": (
        ModelError,
        "the function given to summarise must return a dictionary",
        lambda: co.condition(MODEL.summarise(lambda o: o["y"]), {"y": 1.0}),
    ),
    "factor vector": (
        ModelError,
        "log_factor must return one number, the log of a factor of",
        lambda: gen(plain, log_factor=lambda o: jnp.ones(2)),
    ),
    "factor none": (
        ModelError,
        "log_factor must return one number, the log of a factor of",
        lambda: gen(plain, log_factor=lambda o: None),
    ),
    "factor string": (
        ModelError,
        "log_factor must be a function of the outputs, not 'no'",
        lambda: gen(plain, log_factor="no"),
    ),
}

DATA = {
    "none": (
        DataError,
        "observed 'y' is not real-valued: it is None. Leave out",
        lambda: co.condition(MODEL, {"y": None}),
    ),
    "string": (
        DataError,
        "observed 'y' is not real-valued: it has dtype <U1",
        lambda: co.condition(MODEL, {"y": "a"}),
    ),
    "ragged": (
        DataError,
        "observed 'y' cannot be made an array of numbers: its rows",
        lambda: co.condition(VECTOR, {"y": [[1.0], [1.0, 2.0]]}),
    ),
    "strings": (
        DataError,
        "observed 'y' is not real-valued: it has dtype <U1",
        lambda: co.condition(VECTOR, {"y": ["1", "2", "3"]}),
    ),
    "list with none": (
        DataError,
        "observed 'y' is not real-valued: it has None among its",
        lambda: co.condition(VECTOR, {"y": [1.0, None, 2.0]}),
    ),
    "key": (
        DataError,
        "observed 'y' cannot be made an array of numbers: it has",
        lambda: co.condition(MODEL, {"y": KEY}),
    ),
    "dict": (
        DataError,
        "observed 'y' is not real-valued: it is a dict",
        lambda: co.condition(MODEL, {"y": {"a": 1.0}}),
    ),
    "set": (
        DataError,
        "observed 'y' is not real-valued: it is a set",
        lambda: co.condition(MODEL, {"y": {1.0}}),
    ),
    "object": (
        DataError,
        "observed 'y' is not real-valued: it is a object",
        lambda: co.condition(MODEL, {"y": object()}),
    ),
    "function": (
        DataError,
        "observed 'y' is not real-valued: it is a function",
        lambda: co.condition(MODEL, {"y": lambda: 1.0}),
    ),
    "dates": (
        DataError,
        "observed 'y' is not real-valued: it has dtype",
        lambda: co.condition(VECTOR, {"y": np.array(["2020-01-01"] * 3, "datetime64[D]")}),
    ),
    "inf": (
        DataError,
        "observed 'y' has values that are not finite, the first at",
        lambda: co.condition(MODEL, {"y": np.inf}),
    ),
    "nan": (
        DataError,
        "observed 'y' has values that are not finite, the first at",
        lambda: co.condition(MODEL, {"y": np.nan}),
    ),
    "long": (
        DataError,
        "observed 'y' has shape (4,), but the generator's output",
        lambda: co.condition(VECTOR, {"y": np.ones(4)}),
    ),
    "column": (
        DataError,
        "observed 'y' has shape (3, 1), but the generator's output",
        lambda: co.condition(VECTOR, {"y": np.ones((3, 1))}),
    ),
    "empty": (
        DataError,
        "observed 'y' has shape (0,), but the generator's output",
        lambda: co.condition(VECTOR, {"y": []}),
    ),
    "not a dict": (
        DataError,
        "observed must be a dictionary from output names to",
        lambda: co.condition(MODEL, 1.0),
    ),
    "list": (
        DataError,
        "observed must be a dictionary from output names to",
        lambda: co.condition(MODEL, [1.0]),
    ),
    "set of names": (
        DataError,
        "observed must be a dictionary from output names to",
        lambda: co.condition(MODEL, {"y"}),
    ),
    "int name": (
        DataError,
        "1 is not an output of the generator, whose outputs are y",
        lambda: co.condition(MODEL, {1: 1.0}),
    ),
    "unknown": (
        DataError,
        "'x' is not an output of the generator, whose outputs are",
        lambda: co.condition(MODEL, {"x": 1.0}),
    ),
    "decimal": (
        DataError,
        "observed 'y' is not real-valued: it is a Decimal",
        lambda: co.condition(MODEL, {"y": __import__("decimal").Decimal("1.5")}),
    ),
    "huge": (
        StartError,
        "points that reproduce the data were found, but the log",
        lambda: sample(co.condition(MODEL, {"y": 1e300})),
    ),
    "all masked": (
        DataError,
        "every observed value is masked: there is nothing to",
        lambda: co.condition(VECTOR, {"y": np.ma.masked_all(3)}),
    ),
    "numpyro none": (
        DataError,
        "observed 'total' is not real-valued: it is None. Leave",
        lambda: co.condition(scoped, {"total": None}),
    ),
    "numpyro ragged": (
        DataError,
        "observed 'a/x' cannot be made an array of numbers: its",
        lambda: co.condition(scoped, {"a/x": [[1.0], [1.0, 2.0]]}),
    ),
    "numpyro string": (
        DataError,
        "observed 'total' is not real-valued: it has dtype <U1",
        lambda: co.condition(scoped, {"total": "a"}),
    ),
    "traced": (
        DataError,
        "observed 'y' cannot be made an array of numbers: it is",
        lambda: jax.vmap(lambda y: co.condition(MODEL, {"y": y}).num_inputs)(jnp.ones(2)),
    ),
    "traced jit": (
        SettingError,
        "condition was called in a function that jax.jit, scan or",
        lambda: jax.jit(lambda y: co.condition(MODEL, {"y": y}).num_inputs)(1.0),
    ),
    "complex": (
        DataError,
        "observed 'y' is not real-valued: it has dtype complex128",
        lambda: co.condition(MODEL, {"y": 1j}),
    ),
    "likelihood data none": (
        DataError,
        "observed 'k' is not real-valued: it is None. Leave out",
        lambda: co.condition(counts, {"k": None}),
    ),
    "negative count": (
        DataError,
        "observed 'k' has values outside of the support of its",
        lambda: co.condition(counts, {"k": -1}),
    ),
    "half count": (
        DataError,
        "observed 'k' has values outside of the support of its",
        lambda: co.condition(counts, {"k": 1.5}),
    ),
}

INPUTS = {
    "uniform": (
        ModelError,
        "input 'z': the parameters of Uniform are out of range, so",
        lambda: gen(plain, {"z": dist.Uniform(1.0, 0.0), "n": ()}),
    ),
    "truncated": (
        ModelError,
        "input 'z': the parameters of",
        lambda: gen(plain, {"z": dist.TruncatedNormal(low=2.0, high=1.0), "n": ()}),
    ),
    "none": (
        ModelError,
        "input 'z': expected a shape (such as 4 or (50, 2), for",
        lambda: gen(plain, {"z": None}),
    ),
    "float": (
        ModelError,
        "input 'z': expected a shape (such as 4 or (50, 2), for",
        lambda: gen(plain, {"z": 1.5}),
    ),
    "negative": (
        ModelError,
        "input 'z': expected a shape (such as 4 or (50, 2), for",
        lambda: gen(plain, {"z": -1}),
    ),
    "class": (
        ModelError,
        "input 'z': expected a shape (such as 4 or (50, 2), for",
        lambda: gen(plain, {"z": dist.Normal}),
    ),
    "array": (
        ModelError,
        "input 'z': expected a shape (such as 4 or (50, 2), for",
        lambda: gen(plain, {"z": np.ones(3)}),
    ),
    "list": (
        ModelError,
        "inputs must be a dictionary that names each random input",
        lambda: gen(plain, ["z", "n"]),
    ),
    "string": (
        ModelError,
        "inputs must be a dictionary that names each random input",
        lambda: gen(plain, "z"),
    ),
    "discrete": (
        ModelError,
        "input 'z' is discrete (BernoulliProbs), and there is no",
        lambda: gen(plain, {"z": dist.Bernoulli(0.5)}),
    ),
    "parameters int": (
        ModelError,
        "parameters=3: give the names of inputs, such as ['z']",
        lambda: gen(plain, parameters=3),
    ),
    "parameters unknown": (
        ModelError,
        "parameters=('x',): 'x' is not one of the inputs, which",
        lambda: gen(plain, parameters=["x"]),
    ),
    "parameters ints": (
        ModelError,
        "parameters=(1,): 1 is not one of the inputs, which are z",
        lambda: gen(plain, parameters=[1]),
    ),
    "bool": (
        ModelError,
        "input 'z': expected a shape (such as 4 or (50, 2), for",
        lambda: gen(plain, {"z": True, "n": ()}),
    ),
    "huge": (
        SettingError,
        "1 simulations of 300000000001 numbers each would take",
        lambda: gen(plain, {"z": 10**11, "n": ()}).simulate(KEY, 1),
    ),
    "improper simulate": (
        ModelError,
        "simulate draws from the prior, which input 'z' does not",
        lambda: gen(
            plain, {"z": dist.ImproperUniform(dist.constraints.real, (), ()), "n": ()}
        ).simulate(KEY, 2),
    ),
    "numpyro uniform": (
        ModelError,
        "site 'a': the parameters of Uniform are out of range, so",
        lambda: co.condition(
            lambda: numpyro.deterministic(
                "t",
                numpyro.sample("a", dist.Uniform(1.0, 0.0)) + numpyro.sample("b", dist.Normal()),
            ),
            {"t": 0.3},
        ),
    ),
    "numpyro scale": (
        ModelError,
        "with ValueError: Normal distribution got invalid",
        lambda: co.condition(
            lambda: numpyro.deterministic(
                "t",
                numpyro.sample("a", dist.Normal(0.0, -1.0)) + numpyro.sample("b", dist.Normal()),
            ),
            {"t": 0.3},
        ),
    ),
    "function none": (
        ModelError,
        "the generator's function is not callable: None",
        lambda: co.Generator(None, N),
    ),
    "inputs empty": (
        ModelError,
        "inputs must be a dictionary that names each random input",
        lambda: gen(plain, {}),
    ),
}

MARKOV = {
    "steps float": (
        SettingError,
        "steps=6.0: it must be a whole number, 1 or more",
        lambda: markov(steps=6.0),
    ),
    "steps none": (
        SettingError,
        "steps=None: it must be a whole number, 1 or more",
        lambda: markov(steps=None),
    ),
    "steps 0": (
        SettingError,
        "steps=0: it must be a whole number, 1 or more",
        lambda: markov(steps=0),
    ),
    "steps string": (
        SettingError,
        "steps='6': it must be a whole number, 1 or more",
        lambda: markov(steps="6"),
    ),
    "every": (
        ModelError,
        "steps=6 must be a positive multiple of observe_every=4",
        lambda: markov(observe_every=4),
    ),
    "every 0": (
        SettingError,
        "observe_every=0: it must be a whole number, 1 or more",
        lambda: markov(observe_every=0),
    ),
    "every float": (
        SettingError,
        "observe_every=2.0: it must be a whole number, 1 or more",
        lambda: markov(observe_every=2.0),
    ),
    "shared none": (
        ModelError,
        "inputs must be a dictionary that names each random input",
        lambda: markov(shared=None),
    ),
    "shared empty": (
        ModelError,
        "inputs must be a dictionary that names each random input",
        lambda: markov(shared={}),
    ),
    "shared list": (
        ModelError,
        "inputs must be a dictionary that names each random input",
        lambda: markov(shared=["a"]),
    ),
    "shared taken": (
        ModelError,
        "shared inputs may not be called noise: the simulator's",
        lambda: markov(shared={"noise": ()}),
    ),
    "shared taken twice": (
        ModelError,
        "shared inputs may not be called noise, x: the simulator's",
        lambda: markov(shared={"x": (), "noise": ()}),
    ),
    "noise string": (
        ModelError,
        "noise='2': give the shape of the standard normals that it",
        lambda: markov(noise="2"),
    ),
    "noise negative": (
        ModelError,
        "noise=-1: give the shape of the standard normals that it",
        lambda: markov(noise=-1),
    ),
    "noise float": (
        ModelError,
        "noise=1.5: give the shape of the standard normals that it",
        lambda: markov(noise=1.5),
    ),
    "noise dist": (
        ModelError,
        "noise=<numpyro.distributions.continuous.Normal object at",
        lambda: markov(noise=dist.Normal()),
    ),
    "noise 0": (
        ModelError,
        "step must return a state of the shape that initial",
        lambda: markov(noise=0),
    ),
    "step none": (ModelError, "step must be a function, not None", lambda: markov(step=None)),
    "initial array": (
        ModelError,
        "initial must be a function, not Array([0., 0.]",
        lambda: markov(initial=jnp.zeros(2)),
    ),
    "observe string": (
        ModelError,
        "observe must be a function, or left out, not 'y'",
        lambda: markov(observe="y"),
    ),
    "outputs list": (
        ModelError,
        "outputs must be a function, or left out, not ['a']",
        lambda: markov(outputs=["a"]),
    ),
    "step arguments": (
        ModelError,
        "with TypeError: <lambda>.<locals>.<lambda>() takes",
        lambda: markov(step=lambda x, n: x + n),
    ),
    "initial arguments": (
        ModelError,
        "with TypeError: <lambda>.<locals>.<lambda>() takes",
        lambda: markov(initial=lambda: jnp.zeros(())),
    ),
    "step shape": (
        ModelError,
        "step must return a state of the shape that initial",
        lambda: markov(step=lambda s, x, n, t: jnp.stack([x, n])),
    ),
    "step dict": (
        ModelError,
        "step must return one array, not a dict: put what it holds",
        lambda: markov(step=lambda s, x, n, t: {"x": x}),
    ),
    "step none returned": (
        ModelError,
        "step must return one array, not None: put what it holds",
        lambda: markov(step=lambda s, x, n, t: None),
    ),
    "step tuple": (
        ModelError,
        "step must return a state of the shape that initial",
        lambda: markov(step=lambda s, x, n, t: (x, n)),
    ),
    "initial none": (
        ModelError,
        "initial must return one array, not None: put what it",
        lambda: markov(initial=lambda s, n: None),
    ),
    "initial dict": (
        ModelError,
        "initial must return one array, not a dict: put what it",
        lambda: markov(initial=lambda s, n: {"x": 0.0}),
    ),
    "initial string": (
        ModelError,
        "initial must return one array, not a str: put what it",
        lambda: markov(initial=lambda s, n: "text"),
    ),
    "step branch": (
        ModelError,
        "it branches in Python on a value that depends on the",
        lambda: markov(step=lambda s, x, n, t: x + n if x > 0 else n),
    ),
    "step key": (
        ModelError,
        "with KeyError: 'b'",
        lambda: markov(step=lambda s, x, n, t: x + s["b"]),
    ),
    "outputs not dict": (
        ModelError,
        "outputs must return a dictionary of named values, such as",
        lambda: markov(outputs=lambda s: s["a"]),
    ),
    "outputs int names": (
        ModelError,
        "outputs names one of its values 1: names must be strings",
        lambda: markov(outputs=lambda s: {1: s["a"]}),
    ),
    "observe noise": (
        ModelError,
        "observe_noise is given, but no observe function that",
        lambda: markov(observe_noise="a"),
    ),
    "observe noise of a size": (
        ModelError,
        "observe_noise is given, but no observe function that",
        lambda: markov(observe_noise=2),
    ),
    "data short": (
        DataError,
        "observed 'y' has shape (5,), but the generator's output",
        lambda: co.condition(markov(), {"y": np.ones(5)}),
    ),
    "numpy step": (
        ModelError,
        "it hands a value that depends on the random inputs to",
        lambda: markov(step=lambda s, x, n, t: np.sin(x) + n),
    ),
}

MANIFOLD = {
    "constraint none": (
        ModelError,
        "constraint must be a function of the point, not None",
        lambda: manifold(None),
    ),
    "constraint returns none": (
        ModelError,
        "constraint returns no equations, but None",
        lambda: manifold(lambda x: None),
    ),
    "constraint empty": (
        ModelError,
        "constraint returns no equations, but an array of shape",
        lambda: manifold(lambda x: jnp.zeros(0)),
    ),
    "constraint bool": (
        ModelError,
        "constraint returns values that are not real numbers but",
        lambda: manifold(lambda x: x @ x == 1.0),
    ),
    "constraint int": (
        ModelError,
        "constraint returns values that are not real numbers but",
        lambda: manifold(lambda x: 1),
    ),
    "constraint string": (
        ModelError,
        "with TypeError: Value 'text' with dtype <U4 is not",
        lambda: manifold(lambda x: "text"),
    ),
    "density none": (
        ModelError,
        "log_density must be a function of the point, not None",
        lambda: manifold(log_density=None),
    ),
    "density returns none": (
        ModelError,
        "log_density must return one number, not None",
        lambda: manifold(log_density=lambda x: None),
    ),
    "density vector": (
        ModelError,
        "log_density must return one number, not shape (2,)",
        lambda: manifold(log_density=lambda x: x),
    ),
    "density string": (
        ModelError,
        "with ValueError: could not convert string to float",
        lambda: manifold(log_density=lambda x: "text"),
    ),
    "point none": (
        ModelError,
        "point has elements that are not finite: give one near the",
        lambda: manifold(point=None),
    ),
    "point string": (
        ModelError,
        "point must be an array, or a dictionary from names to",
        lambda: manifold(point="text"),
    ),
    "point scalar": (
        ModelError,
        "the constraint has 1 equations for 1 unknowns, which",
        lambda: manifold(lambda x: x - 1.0, point=1.0),
    ),
    "point empty": (
        ModelError,
        "point has no elements: give one near the manifold",
        lambda: manifold(point=np.zeros(0)),
    ),
    "point nan": (
        ModelError,
        "point has elements that are not finite: give one near the",
        lambda: manifold(point=np.array([np.nan, 0.0])),
    ),
    "point ragged": (
        ModelError,
        "point must be an array, or a dictionary from names to",
        lambda: manifold(point=[[1.0], [1.0, 2.0]]),
    ),
    "point off": (
        StartError,
        "no inputs that reproduce the data were found for 1 of 1",
        lambda: sample(manifold(lambda x: x @ x + 1.0)),
    ),
    "too many": (
        ModelError,
        "the constraint has 3 equations for 2 unknowns, which",
        lambda: manifold(lambda x: jnp.stack([x[0], x[1], x[0] + x[1]])),
    ),
    "as many": (
        ModelError,
        "the constraint has 2 equations for 2 unknowns, which",
        lambda: manifold(lambda x: x),
    ),
    "complex": (
        ModelError,
        "constraint returns values that are not real numbers but",
        lambda: manifold(lambda x: x[0] * 1j),
    ),
    "geodesic": (
        ModelError,
        "geodesic='circle': leave it out; spheres and Stiefel",
        lambda: co.Manifold(
            lambda x: x @ x - 1.0, lambda x: 0.0, point=np.array([1.0, 0.0]), geodesic="circle"
        ),
    ),
    "constant": (
        JacobianError,
        "constraint[0]: the derivative with respect to every input",
        lambda: sample(manifold(lambda x: jnp.zeros(()) * x[0])),
    ),
    "huge units": (
        JacobianError,
        "constraint[0]: the derivatives are of size 2e+300, of",
        lambda: sample(manifold(lambda x: 1e300 * (x @ x - 1.0))),
    ),
    "sphere n": (
        ModelError,
        "shape='3': give positive whole numbers",
        lambda: co.manifolds.Sphere(lambda x: 0.0, "3"),
    ),
    "sphere 1": (
        ModelError,
        "shape=(1,): vectors on a sphere need two or more",
        lambda: co.manifolds.Sphere(lambda x: 0.0, 1),
    ),
    "sphere float": (
        ModelError,
        "shape=3.0: give positive whole numbers",
        lambda: co.manifolds.Sphere(lambda x: 0.0, 3.0),
    ),
    "sphere fraction": (
        ModelError,
        "shape=2.5: give positive whole numbers",
        lambda: co.manifolds.Sphere(lambda x: x[0], 2.5),
    ),
    "stiefel": (
        ModelError,
        "shape=(2, 3): give the matrix's rows and columns, no more",
        lambda: co.manifolds.Stiefel(lambda x: 0.0, (2, 3)),
    ),
    "stiefel int": (
        ModelError,
        "shape=3: give the matrix's rows and columns, no more",
        lambda: co.manifolds.Stiefel(lambda x: 0.0, 3),
    ),
    "sphere density": (
        ModelError,
        "log_density must be a function of the point, not None",
        lambda: co.manifolds.Sphere(None, 3),
    ),
    "dict point": (
        ModelError,
        "point must be an array, or a dictionary from names to",
        lambda: co.Manifold(
            lambda x: x["a"] @ x["a"] - 1.0, lambda x: 0.0, point={"a": [1.0, 0.0], "b": "text"}
        ),
    ),
}

NUMPYRO = {
    "sites change": (
        ModelError,
        "the model's sites change from one call to the next: a1",
        lambda: co.condition(changing, {"t": 0.3}),
    ),
    "not a model": (
        ModelError,
        "condition takes a coarea.Generator, a coarea.Markov or a",
        lambda: co.condition(3, {"y": 1.0}),
    ),
    "no args": (
        ModelError,
        "the model cannot be called with args=() and kwargs={}",
        lambda: co.condition(lambda x: x, {"y": 1.0}),
    ),
    "args string": (
        ModelError,
        "args='ab', kwargs={}: give a tuple and a dictionary of",
        lambda: co.condition(scoped, {"total": 0.1}, args="ab"),
    ),
    "args int": (
        ModelError,
        "args=3, kwargs={}: give a tuple and a dictionary of the",
        lambda: co.condition(scoped, {"total": 0.1}, args=3),
    ),
    "kwargs list": (
        ModelError,
        "args=(), kwargs=[1]: give a tuple and a dictionary of the",
        lambda: co.condition(scoped, {"total": 0.1}, kwargs=[1]),
    ),
    "noise_inputs": (
        ModelError,
        "noise_inputs names 'q', but it is not a site of the model",
        lambda: co.condition(scoped, {"total": 0.1}, noise_inputs=["q"]),
    ),
    "noise_inputs int": (
        ModelError,
        "noise_inputs=3: give the names of observed sites, such as ['y']",
        lambda: co.condition(scoped, {"total": 0.1}, noise_inputs=3),
    ),
    "structure": (
        ModelError,
        "structure='sparse': choose 'auto', 'dense'",
        lambda: co.condition(scoped, {"total": 0.1}, structure="sparse"),
    ),
    "structure none": (
        ModelError,
        "structure=None: choose 'auto', 'dense', 'elementwise'",
        lambda: co.condition(scoped, {"total": 0.1}, structure=None),
    ),
    "structure list": (
        ModelError,
        "structure=['dense']: choose 'auto', 'dense'",
        lambda: co.condition(scoped, {"total": 0.1}, structure=["dense"]),
    ),
    "discrete": (
        ModelError,
        "site 'k' is a discrete latent (Poisson), and there is no",
        lambda: co.condition(
            lambda: numpyro.deterministic(
                "t", numpyro.sample("k", dist.Poisson(3.0)) + numpyro.sample("b", dist.Normal())
            ),
            {"t": 0.3},
        ),
    ),
    "two sites": (
        ModelError,
        "the model has two sites named 'a': give each its own",
        lambda: co.condition(
            lambda: (numpyro.sample("a", dist.Normal()), numpyro.sample("a", dist.Normal())),
            {"a": 0.3},
        ),
    ),
    "raises": (
        ModelError,
        "with KeyError: 'a'",
        lambda: co.condition(lambda: {}["a"], {"a": 0.3}),
    ),
    "no sites": (
        DataError,
        "'a' is not a site of the model, whose sites are . A",
        lambda: co.condition(lambda: None, {"a": 0.3}),
    ),
    "nothing observed": (
        DataError,
        "nothing is observed. Name the observed sites and their values",
        lambda: co.condition(scoped),
    ),
    "all observed": (
        DataError,
        "1 values are observed but there are only 1 random inputs",
        lambda: co.condition(lambda: numpyro.sample("a", dist.Normal()), {"a": 0.3}),
    ),
    "param": (
        ModelError,
        "site 'p': numpyro.param is for optimisation, and has no",
        lambda: co.condition(lambda: numpyro.param("p", 1.0), {"p": 0.3}),
    ),
    "kernel model": (
        SettingError,
        "ConstrainedNUTS takes a NumPyro model; a coarea generator",
        lambda: co.interop.numpyro.ConstrainedNUTS(MODEL),
    ),
    "kernel kernel": (
        SettingError,
        "kernel='nuts': give a kernel such as coarea.NUTS()",
        lambda: co.interop.numpyro.ConstrainedNUTS(scoped, kernel="nuts"),
    ),
    "kernel single": (
        PrecisionError,
        "ConstrainedNUTS needs double precision, but JAX's x64",
        lambda: numpyro.infer.MCMC(
            co.interop.numpyro.ConstrainedNUTS(scoped, observed={"total": 0.1}),
            num_warmup=20,
            num_samples=5,
            progress_bar=False,
        ).run(KEY),
    ),
}


GROUPS = {
    "tracing": TRACING,
    "outputs": OUTPUTS,
    "data": DATA,
    "inputs": INPUTS,
    "markov": MARKOV,
    "manifold": MANIFOLD,
    "numpyro": NUMPYRO,
}
CASES = {
    f"{group}, {name}": case for group, table in GROUPS.items() for name, case in table.items()
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", CASES)
def test_a_bad_model_is_refused_by_name(case):
    kind, message, make = CASES[case]
    with pytest.raises(kind) as raised:
        make()
    assert message in str(raised.value)
    assert isinstance(raised.value, CoareaError)
