"""Approximate methods refuse what cannot work, and say plainly when they find nothing."""

import jax.numpy as jnp
import numpy as np
import pytest

import coarea as co
from coarea.errors import AcceptanceError, DataError, ModelError, SettingError, StartError

Y = np.array([0.9, 0.3])


def location(num=2):
    return co.Generator(
        lambda u: {"z": u["z"], "y": u["z"] + 0.5 * u["n"]},
        inputs={"z": (), "n": num},
        parameters=["z"],
    )


UNDIRECTED = co.Generator(lambda u: {"z": u["z"], "y": u["z"] + u["n"]}, {"z": (), "n": 2})
STEPS = co.Generator(
    lambda u: {"z": u["z"], "y": jnp.floor(20 * u["z"]) + jnp.floor(u["n"])},
    inputs={"z": (), "n": 10},
    parameters=["z"],
)
approximate = co.approximate
MISTAKES = {
    "no tolerance": (
        lambda: approximate.mcmc(location(), {"y": Y}, epsilon=0),
        SettingError,
        "epsilon=0",
    ),
    "negative tolerance": (
        lambda: approximate.smc(location(), {"y": Y}, epsilon=-1.0),
        SettingError,
        "positive",
    ),
    "tolerance of words": (
        lambda: approximate.nuts(location(), {"y": Y}, epsilon="small"),
        SettingError,
        "epsilon='small'",
    ),
    "tolerance not a number": (
        lambda: approximate.hmc(location(), {"y": Y}, epsilon=np.nan),
        SettingError,
        "epsilon=nan",
    ),
    "undirected": (
        lambda: approximate.mcmc(UNDIRECTED, {"y": Y}, epsilon=1.0),
        ModelError,
        r"parameters=\('z',\)",
    ),
    "no model": (
        lambda: approximate.reject(lambda: None, {"y": Y}, epsilon=1.0),
        ModelError,
        "Generator",
    ),
    "unknown output": (
        lambda: approximate.reject(UNDIRECTED, {"x": Y}, epsilon=1.0),
        DataError,
        "'x' is not an output",
    ),
    "epsilon and quantile": (
        lambda: approximate.reject(UNDIRECTED, {"y": Y}, epsilon=1.0, quantile=0.1),
        SettingError,
        "one of them",
    ),
    "quantile above one": (
        lambda: approximate.reject(UNDIRECTED, {"y": Y}, quantile=2.0),
        SettingError,
        "between 0 and 1",
    ),
    "unknown kernel": (
        lambda: approximate.reject(UNDIRECTED, {"y": Y}, epsilon=1.0, kernel="box"),
        SettingError,
        "kernel='box'",
    ),
    "unknown parameter": (
        lambda: co.Generator(lambda u: u, {"z": ()}, parameters=["theta"]),
        ModelError,
        "'theta' is not one of the inputs",
    ),
    "a group left out": (
        lambda: approximate.elliptical_slice(UNDIRECTED, {"y": Y}, epsilon=1.0, groups=["z"]),
        SettingError,
        "'n' never moves",
    ),
    "more parameters than values": (
        lambda: approximate.optimisation_monte_carlo(
            co.Generator(lambda u: {"y": u["z"][0] + u["n"]}, {"z": 2, "n": ()}, parameters=["z"]),
            {"y": 0.0},
            epsilon=1.0,
        ),
        SettingError,
        "do not determine",
    ),
    "one simulation": (
        lambda: approximate.hamiltonian(location(), {"y": Y}, simulations=1),
        SettingError,
        "2 or more",
    ),
    "no spread": (
        lambda: approximate.hamiltonian(
            co.Generator(
                lambda u: {"y": jnp.stack([u["z"], u["z"] + u["n"]])},
                {"z": (), "n": ()},
                parameters=["z"],
            ),
            {"y": Y},
        ),
        SettingError,
        "give epsilon",
    ),
    "a factor beside a likelihood": (
        lambda: approximate.tractable(
            co.Generator(
                lambda u: {"y": u["z"]}, {"z": ()}, parameters=["z"], log_factor=lambda o: o["y"]
            ),
            {"y": 0.0},
            lambda parameters, observed: 0.0,
        ),
        ModelError,
        "log_factor",
    ),
    "draws as a start": (
        lambda: approximate.mcmc(location(), {"y": Y}, epsilon=1.0, start={"z": 1}),
        SettingError,
        "start must be an array",
    ),
    "start of another shape": (
        lambda: approximate.mcmc(location(), {"y": Y}, epsilon=1.0, start=np.zeros((4, 2))),
        SettingError,
        "start has shape",
    ),
    "no start": (
        lambda: approximate.mcmc(STEPS, {"y": np.full(10, 0.3)}, epsilon=0.1),
        StartError,
        "smallest distance seen",
    ),
    "statistics that are no dictionary": (
        lambda: co.condition(location().summarise(lambda o: o["y"].mean()), {"y": Y}),
        ModelError,
        "named statistics",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named_with_its_cure(mistake):
    make, error, message = MISTAKES[mistake]
    with pytest.raises(error, match=message):
        make()


SHORT = {"draws": 5, "warmup": 20, "chains": 1, "progress": False}
METHODS = {
    "reject": {"epsilon": 1.0, "simulations": 100},
    "smc": {"epsilon": 1.0, "particles": 100},
    "optimisation_monte_carlo": {"epsilon": 1.0, "simulations": 10},
    "elliptical_slice": {"epsilon": 1.0, **SHORT},
    "mcmc": {"epsilon": 1.0, **SHORT},
    "hmc": {"epsilon": 1.0, **SHORT},
    "nuts": {"epsilon": 1.0, **SHORT},
    "hamiltonian": SHORT,
    "tractable": {"log_likelihood": lambda parameters, observed: 0.0, **SHORT},
}
REPORTING_OUTPUTS = [name for name in METHODS if name not in ("hamiltonian", "tractable")]


@pytest.mark.parametrize("method", METHODS)
def test_names_of_the_axes_are_refused_before_drawing(method):
    model = co.Generator(
        lambda u: {"z": u["draw"], "y": u["draw"] + u["n"]},
        {"draw": (), "n": ()},
        parameters=["draw"],
    )
    with pytest.raises(ModelError, match="named 'draw', which is what ArviZ calls an axis"):
        getattr(approximate, method)(model, {"y": 0.0}, keep="inputs", **METHODS[method])
    if method in REPORTING_OUTPUTS:
        model = co.Generator(
            lambda u: {"chain": u["z"], "y": u["z"] + u["n"]},
            {"z": (), "n": ()},
            parameters=["z"],
        )
        with pytest.raises(ModelError, match="named 'chain', which is what ArviZ calls an axis"):
            getattr(approximate, method)(model, {"y": 0.0}, **METHODS[method])


@pytest.mark.parametrize("method", REPORTING_OUTPUTS)
def test_nothing_left_to_report_is_refused(method):
    model = co.Generator(lambda u: {"y": u["z"] + u["n"]}, {"z": (), "n": ()}, parameters=["z"])
    with pytest.raises(DataError, match="pass keep='inputs'"):
        getattr(approximate, method)(model, {"y": 0.0}, **METHODS[method])
    draws = getattr(approximate, method)(model, {"y": 0.0}, keep="inputs", **METHODS[method])
    assert set(draws["inputs"].data_vars) == {"z", "n"}


TOO_MUCH = {
    "reject": ("The numbers of 90000 simulations", {"epsilon": 1.0, "simulations": 90_000}),
    "smc": ("9000 particles", {"epsilon": 1.0, "particles": 9000}),
    "optimisation_monte_carlo": ("9000 simulations", {"epsilon": 1.0, "simulations": 9000}),
    "elliptical_slice": ("Start points of 9000 chains", {"epsilon": 1.0, "chains": 9000}),
    "hmc": ("90000 draws of 1 chains", {"epsilon": 1.0, "draws": 90_000, "chains": 1}),
    "hamiltonian": ("9000 simulations for each density", {"simulations": 9000}),
}


@pytest.mark.parametrize("method", TOO_MUCH)
def test_what_does_not_fit_into_memory_is_refused_before_drawing(method, monkeypatch):
    what, options = TOO_MUCH[method]
    monkeypatch.setattr("coarea.arguments._free_memory", lambda: 1e5)
    with pytest.raises(SettingError, match=f"{what}.* would take .* GB of memory"):
        getattr(approximate, method)(location(), {"y": Y}, **options)


def test_draws_that_do_not_fit_into_memory_are_refused(monkeypatch):
    weighted = approximate.reject(
        location(), {"y": Y}, epsilon=1.0, kernel="gaussian", simulations=100
    )
    monkeypatch.setattr("coarea.arguments._free_memory", lambda: 1e5)
    with pytest.raises(SettingError, match=r"9000 draws would take .* a smaller num"):
        approximate.resample(weighted, 9000)
    with pytest.raises(SettingError, match=r"accepted simulations would take .* a smaller epsilon"):
        approximate.reject(location(), {"y": Y}, epsilon=np.inf, simulations=9000)


@pytest.mark.parametrize("method", ["reject", "optimisation_monte_carlo"])
def test_nothing_accepted_is_said_plainly_with_the_smallest_distance(method):
    y = np.linspace(-1.0, 1.0, 20)
    with pytest.raises(AcceptanceError, match=r"none of 1000 .* smallest distance seen is") as seen:
        getattr(co.approximate, method)(location(20), {"y": y}, epsilon=0.01, simulations=1000)
    assert 0.01 < seen.value.smallest_distance < 10
