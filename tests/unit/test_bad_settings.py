"""Settings and results that cannot be used are refused, by name and with the cure."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import xarray as xr

import coarea as co
from coarea import approximate
from coarea.dynamics import Leapfrog, Rattle
from coarea.errors import (
    CoareaError,
    DataError,
    ModelError,
    PrecisionError,
    SettingError,
    StartError,
)
from mistakes import (
    DIRECTED,
    KEY,
    MODEL,
    POSTERIOR,
    VECTOR,
    gen,
    in_double,
    plain,
    sample,
    scoped,
)

DRAWS = co.sample(POSTERIOR, draws=30, warmup=20, chains=2, progress=False, keep="inputs")

SEEDS = {
    "float": (
        SettingError,
        "seed=1.0: it must be a whole number, 0 or more",
        lambda: sample(seed=1.0),
    ),
    "none": (
        SettingError,
        "seed=None: it must be a whole number, 0 or more",
        lambda: sample(seed=None),
    ),
    "key": (
        SettingError,
        "seed=a PRNGKeyArray: it must be a whole number, 0 or",
        lambda: sample(seed=KEY),
    ),
    "string": (
        SettingError,
        "seed='0': it must be a whole number, 0 or more",
        lambda: sample(seed="0"),
    ),
    "negative": (
        SettingError,
        "seed=-1: it must be a whole number, 0 or more",
        lambda: sample(seed=-1),
    ),
    "bool": (
        SettingError,
        "seed=True: it must be a whole number, 0 or more",
        lambda: sample(seed=True),
    ),
    "many keys": (
        SettingError,
        "key holds several keys (shape (3,)): give one of them",
        lambda: MODEL.simulate(jax.random.split(KEY, 3), 2),
    ),
    "none key": (
        SettingError,
        "key=None: give a random key, such as jax.random.key(0)",
        lambda: MODEL.simulate(None, 2),
    ),
    "string key": (
        SettingError,
        "key='a': give a random key, such as jax.random.key(0), or",
        lambda: co.find_start(POSTERIOR, "a", 2),
    ),
    "float key": (
        SettingError,
        "key=0.5: give a random key, such as jax.random.key(0), or",
        lambda: co.find_start(POSTERIOR, 0.5, 2),
    ),
    "reject bad seed": (
        SettingError,
        "seed=1.5: it must be a whole number, 0 or more",
        lambda: approximate.reject(MODEL, {"y": 1.0}, epsilon=0.5, simulations=100, seed=1.5),
    ),
}

SAMPLE = {
    "draws float": (
        SettingError,
        "draws=10.0: it must be a whole number, 1 or more",
        lambda: sample(draws=10.0),
    ),
    "draws 0": (
        SettingError,
        "draws=0: it must be a whole number, 1 or more",
        lambda: sample(draws=0),
    ),
    "draws none": (
        SettingError,
        "draws=None: it must be a whole number, 1 or more",
        lambda: sample(draws=None),
    ),
    "draws string": (
        SettingError,
        "draws='10': it must be a whole number, 1 or more",
        lambda: sample(draws="10"),
    ),
    "draws bool": (
        SettingError,
        "draws=True: it must be a whole number, 1 or more",
        lambda: sample(draws=True),
    ),
    "draws huge": (
        SettingError,
        "10000000000 draws of 1 chains, with 1 numbers each, would",
        lambda: sample(draws=10**10),
    ),
    "chains huge": (
        SettingError,
        "100000 draws of 10000000 chains, with 1 numbers each",
        lambda: sample(chains=10**7, draws=10**5),
    ),
    "warmup negative": (
        SettingError,
        "warmup=-1: it must be a whole number, 0 or more",
        lambda: sample(warmup=-1),
    ),
    "warmup 3": (
        SettingError,
        "warmup=3 is too short to find step_size (20 is the least",
        lambda: sample(warmup=3),
    ),
    "chains 0": (
        SettingError,
        "chains=0: it must be a whole number, 1 or more",
        lambda: sample(chains=0),
    ),
    "chains list": (
        SettingError,
        "chains=[1]: it must be a whole number, 1 or more",
        lambda: sample(chains=[1]),
    ),
    "kernel of words": (
        SettingError,
        "kernel='nuts': give a kernel such as coarea.NUTS()",
        lambda: sample(kernel="nuts"),
    ),
    "kernel class": (
        SettingError,
        "kernel=<class 'coarea.kernels.nuts.NUTS'>: give a kernel",
        lambda: sample(kernel=co.NUTS),
    ),
    "kernel string": (
        SettingError,
        "kernel='nuts': give a kernel such as coarea.NUTS()",
        lambda: sample(kernel="nuts"),
    ),
    "kernel numpyro": (
        SettingError,
        "kernel=<numpyro.infer.hmc.NUTS object at",
        lambda: sample(kernel=numpyro.infer.NUTS(scoped)),
    ),
    "keep": (SettingError, "keep='all': choose 'inputs' or None", lambda: sample(keep="all")),
    "keep list": (
        SettingError,
        "keep=['inputs']: choose 'inputs' or None",
        lambda: sample(keep=["inputs"]),
    ),
    "precision": (
        SettingError,
        "precision='double': choose 'float64' or 'float32'",
        lambda: sample(precision="double"),
    ),
    "precision dtype": (
        SettingError,
        "precision=<class 'numpy.float64'>: choose 'float64' or",
        lambda: sample(precision=np.float64),
    ),
    "devices": (
        SettingError,
        "devices='tpu': JAX finds none here; it has cpu",
        lambda: sample(devices="tpu"),
    ),
    "devices int": (
        SettingError,
        "devices=3: give 'cpu', 'gpu', a device of jax.devices()",
        lambda: sample(devices=3),
    ),
    "devices empty": (
        SettingError,
        "devices=[]: give 'cpu', 'gpu', a device of jax.devices()",
        lambda: sample(devices=[]),
    ),
    "target generator": (
        ModelError,
        "sample takes what coarea.condition(model, observed)",
        lambda: sample(MODEL),
    ),
    "target none": (
        ModelError,
        "sample takes what coarea.condition(model, observed)",
        lambda: sample(None),
    ),
    "target function": (
        ModelError,
        "sample takes what coarea.condition(model, observed)",
        lambda: sample(plain),
    ),
    "target dict": (
        ModelError,
        "sample takes what coarea.condition(model, observed)",
        lambda: sample({"y": 1.0}),
    ),
    "start short": (
        SettingError,
        "start has shape (2,), but 1 chains on 2 inputs need (1",
        lambda: sample(start=np.zeros(2)),
    ),
    "start string": (
        SettingError,
        "start must be an array with a row for each chain, such as",
        lambda: sample(start="prior"),
    ),
    "start dict": (
        SettingError,
        "start must be an array with a row for each chain, such as",
        lambda: sample(start={"z": 0.0, "n": 1.0}),
    ),
    "start none list": (
        SettingError,
        "start has shape (1,), but 1 chains on 2 inputs need (1",
        lambda: sample(start=[None]),
    ),
    "start nan": (
        SettingError,
        "start has elements that are not finite",
        lambda: sample(start=[[np.nan, 0.0]]),
    ),
    "start other draws": (
        SettingError,
        "start has shape (2, 2), but 1 chains on 4 inputs need (1",
        lambda: sample(co.condition(VECTOR, {"y": np.ones(3)}), start=DRAWS),
    ),
    "start other chains": (
        SettingError,
        "start has shape (2, 2), but 3 chains on 2 inputs need (3",
        lambda: sample(start=DRAWS, chains=3),
    ),
    "start dataset": (
        SettingError,
        "start must be an array with a row for each chain, such as",
        lambda: sample(start=DRAWS.posterior),
    ),
    "start scalar": (
        SettingError,
        "start has shape (), but 1 chains on 2 inputs need (1, 2)",
        lambda: sample(start=0.0),
    ),
    "start ragged": (
        SettingError,
        "start must be an array with a row for each chain, such as",
        lambda: sample(start=[[1.0], [1.0, 2.0]]),
    ),
    "start complex": (
        SettingError,
        "start must be an array with a row for each chain, such as",
        lambda: sample(start=[[1j, 0.0]]),
    ),
    "start function": (
        SettingError,
        "start must be an array with a row for each chain, such as",
        lambda: sample(start=lambda: 0),
    ),
    "start far": (
        ModelError,
        "the constrained quantities were NaN or infinite at the",
        lambda: sample(
            co.condition(
                gen(lambda u: {"z": u["z"], "y": jnp.exp(u["z"]) + jnp.exp(u["n"])}), {"y": 1.0}
            ),
            start=[[800.0, 800.0]],
        ),
    ),
    "in jit": (
        SettingError,
        "sample was called in a function that jax.jit, scan or",
        lambda: jax.jit(lambda x: sample().posterior["z"].values.mean() + x)(1.0),
    ),
    "in vmap": (
        SettingError,
        "seed=VmapTracer(aval=int32[], batched=int32[2]): it must",
        lambda: jax.vmap(lambda s: sample(seed=s).posterior["z"].values.mean())(jnp.arange(2)),
    ),
    "in grad": (
        SettingError,
        "start must be an array with a row for each chain, such as",
        lambda: jax.grad(lambda s: sample(start=s[None]).posterior["z"].values.mean())(
            jnp.zeros(2)
        ),
    ),
    "find_start chains": (
        SettingError,
        "chains=0: it must be a whole number, 1 or more",
        lambda: co.find_start(POSTERIOR, KEY, 0),
    ),
    "find_start target": (
        ModelError,
        "find_start takes what coarea.condition(model, observed)",
        lambda: co.find_start(MODEL, KEY, 2),
    ),
    "simulate -1": (
        SettingError,
        "num=-1: it must be a whole number, 1 or more",
        lambda: MODEL.simulate(KEY, -1),
    ),
    "simulate float": (
        SettingError,
        "num=2.5: it must be a whole number, 1 or more",
        lambda: MODEL.simulate(KEY, 2.5),
    ),
    "simulate huge": (
        SettingError,
        "1000000000000 simulations of 4 numbers each would take",
        lambda: MODEL.simulate(KEY, 10**12),
    ),
    "simulate in jit": (
        SettingError,
        "simulate was called in a function that jax.jit, scan or",
        lambda: jax.jit(lambda k: MODEL.simulate(k, 2)["y"].sum())(KEY),
    ),
    "condition in jit": (
        SettingError,
        "condition was called in a function that jax.jit, scan or",
        lambda: jax.jit(lambda x: co.condition(MODEL, {"y": 1.0}).num_inputs + x)(1.0),
    ),
    "find_start in jit": (
        SettingError,
        "find_start was called in a function that jax.jit, scan or",
        lambda: jax.jit(lambda k: co.find_start(POSTERIOR, k, 2).sum())(KEY),
    ),
}

KERNELS = {
    "step array": (
        SettingError,
        "step_size=array([0.1, 0.2]): it must be a positive",
        lambda: co.NUTS(step_size=np.array([0.1, 0.2])),
    ),
    "step string": (
        SettingError,
        "step_size='0.1': it must be a positive number, such as",
        lambda: co.NUTS(step_size="0.1"),
    ),
    "step 0": (
        SettingError,
        "step_size=0.0: it must be a positive number, such as 0.1",
        lambda: co.CHMC(step_size=0.0),
    ),
    "step nan": (
        SettingError,
        "step_size=nan: it must be a positive number, such as 0.1",
        lambda: co.CHMC(step_size=np.nan),
    ),
    "step inf": (
        SettingError,
        "step_size=inf: it must be a positive number, such as 0.1",
        lambda: co.CHMC(step_size=np.inf),
    ),
    "step bool": (
        SettingError,
        "step_size=True: it must be a positive number, such as",
        lambda: co.CHMC(step_size=True),
    ),
    "depth none": (
        SettingError,
        "max_tree_depth=None: it must be a whole number, 1 or",
        lambda: co.NUTS(max_tree_depth=None),
    ),
    "depth float": (
        SettingError,
        "max_tree_depth=3.5: it must be a whole number, 1 or more",
        lambda: co.NUTS(max_tree_depth=3.5),
    ),
    "depth 0": (
        SettingError,
        "max_tree_depth=0: it must be a whole number, 1 or more",
        lambda: co.NUTS(max_tree_depth=0),
    ),
    "steps float": (
        SettingError,
        "num_steps=1.5: give a positive whole number of steps, or",
        lambda: co.CHMC(num_steps=1.5),
    ),
    "steps string": (
        SettingError,
        "num_steps='3': give a positive whole number of steps, or",
        lambda: co.CHMC(num_steps="3"),
    ),
    "steps triple": (
        SettingError,
        "num_steps=(1, 2, 3): give a positive whole number of",
        lambda: co.CHMC(num_steps=(1, 2, 3)),
    ),
    "steps reversed": (
        SettingError,
        "num_steps=(5, 2): give a positive whole number of steps",
        lambda: co.CHMC(num_steps=(5, 2)),
    ),
    "steps list": (
        SettingError,
        "num_steps=[1, 2]: give a positive whole number of steps",
        lambda: co.CHMC(num_steps=[1, 2]),
    ),
    "steps 0": (
        SettingError,
        "num_steps=0: give a positive whole number of steps, or a",
        lambda: co.CHMC(num_steps=0),
    ),
    "steps array": (
        SettingError,
        "num_steps=array([1, 2]): give a positive whole number of",
        lambda: co.CHMC(num_steps=np.array([1, 2])),
    ),
    "accept 1": (
        SettingError,
        "target_acceptance=1: it must be a number between 0 and 1",
        lambda: co.NUTS(target_acceptance=1),
    ),
    "accept string": (
        SettingError,
        "target_acceptance='high': it must be a number between 0",
        lambda: co.NUTS(target_acceptance="high"),
    ),
    "accept array": (
        SettingError,
        "target_acceptance=array([0.5, 0.5]): it must be a number",
        lambda: co.NUTS(target_acceptance=np.ones(2) * 0.5),
    ),
    "mass": (
        SettingError,
        "mass='full': choose 'auto', 'identity' or 'diagonal'",
        lambda: co.NUTS(mass="full"),
    ),
    "mass none": (
        SettingError,
        "mass=None: choose 'auto', 'identity' or 'diagonal'",
        lambda: co.NUTS(mass=None),
    ),
    "mass array": (
        SettingError,
        "mass=array([1., 1.]): choose 'auto', 'identity' or 'diagonal'",
        lambda: co.NUTS(mass=np.ones(2)),
    ),
    "geodesic": (
        SettingError,
        "geodesic_steps=0: it must be a whole number, 1 or more",
        lambda: co.NUTS(geodesic_steps=0),
    ),
    "geodesic float": (
        SettingError,
        "geodesic_steps=2.0: it must be a whole number, 1 or more",
        lambda: co.CHMC(geodesic_steps=2.0),
    ),
    "integrator": (
        SettingError,
        "integrator='rattle': leave it out, or give a coarea.dynamics.Rattle",
        lambda: co.NUTS(integrator="rattle"),
    ),
    "integrator of another target": (
        SettingError,
        "integrator=Leapfrog() moves without constraints, but this target is a manifold",
        lambda: sample(kernel=co.NUTS(integrator=Leapfrog())),
    ),
    "flow": (
        SettingError,
        "flow='straight': leave it out, or give",
        lambda: Rattle(flow="straight"),
    ),
    "tolerance": (
        SettingError,
        "tolerance='1e-9': it must be a positive number, such as",
        lambda: Rattle(tolerance="1e-9"),
    ),
    "tolerance 0": (
        SettingError,
        "tolerance=0.0: it must be a positive number, such as",
        lambda: Rattle(tolerance=0.0),
    ),
    "tolerance none array": (
        SettingError,
        "tolerance=array([1., 1.]): it must be a positive number",
        lambda: Rattle(tolerance=np.ones(2)),
    ),
    "solvers": (
        SettingError,
        "solvers='newton': leave it out, or give a tuple of",
        lambda: Rattle(solvers="newton"),
    ),
    "solvers list": (
        SettingError,
        "solvers=[]: leave it out, or give a tuple of solvers of",
        lambda: Rattle(solvers=[]),
    ),
    "reverse": (
        SettingError,
        "reverse_check='yes': choose True or False",
        lambda: Rattle(reverse_check="yes"),
    ),
    "langevin": (
        SettingError,
        "step_size='a': it must be a positive number, such as 0.1",
        lambda: co.Langevin(step_size="a"),
    ),
    "nuts single": (
        PrecisionError,
        "a kernel on a manifold needs double precision, but JAX's",
        lambda: co.kernels.nuts(POSTERIOR, 0.1),
    ),
    "nuts on generator": (
        ModelError,
        "a kernel moves on what coarea.condition(model, observed)",
        lambda: in_double(lambda: co.kernels.nuts(MODEL, 0.1)),
    ),
    "nuts step": (
        SettingError,
        "step_size='a': it must be a positive number, such as 0.1",
        lambda: in_double(lambda: co.kernels.nuts(POSTERIOR, "a")),
    ),
    "nuts position": (
        StartError,
        "the position given to init is no vector of 2 numbers",
        lambda: in_double(lambda: co.kernels.nuts(POSTERIOR, 0.1).init("text")),
    ),
    "nuts short": (
        StartError,
        "the position given to init is no vector of 2 numbers",
        lambda: in_double(lambda: co.kernels.nuts(POSTERIOR, 0.1).init(np.zeros(3))),
    ),
}

APPROXIMATE = {
    "reject none": (
        SettingError,
        "give epsilon, or else quantile: one of them says what is",
        lambda: approximate.reject(MODEL, {"y": 1.0}),
    ),
    "reject both": (
        SettingError,
        "give epsilon, or else quantile: one of them says what is",
        lambda: approximate.reject(MODEL, {"y": 1.0}, epsilon=0.1, quantile=0.1),
    ),
    "reject quantile": (
        SettingError,
        "quantile='a': it must be a number between 0 and 1, such",
        lambda: approximate.reject(MODEL, {"y": 1.0}, quantile="a"),
    ),
    "reject quantile 2": (
        SettingError,
        "quantile=2.0: it must be a number between 0 and 1, such",
        lambda: approximate.reject(MODEL, {"y": 1.0}, quantile=2.0),
    ),
    "reject eps": (
        SettingError,
        "epsilon='a': the tolerance is a distance from the data, a",
        lambda: approximate.reject(MODEL, {"y": 1.0}, epsilon="a"),
    ),
    "reject eps array": (
        SettingError,
        "epsilon=array([1., 1.]): the tolerance is a distance from",
        lambda: approximate.reject(MODEL, {"y": 1.0}, epsilon=np.ones(2)),
    ),
    "reject kernel": (
        SettingError,
        "kernel='box': choose 'uniform' or 'gaussian'",
        lambda: approximate.reject(MODEL, {"y": 1.0}, epsilon=0.1, kernel="box"),
    ),
    "reject kernel none": (
        SettingError,
        "kernel=None: choose 'uniform' or 'gaussian'",
        lambda: approximate.reject(MODEL, {"y": 1.0}, epsilon=0.1, kernel=None),
    ),
    "reject sims": (
        SettingError,
        "simulations=1.5: it must be a whole number, 1 or more",
        lambda: approximate.reject(MODEL, {"y": 1.0}, epsilon=0.1, simulations=1.5),
    ),
    "reject model": (
        ModelError,
        "approximate methods take a coarea.Generator or a",
        lambda: approximate.reject(plain, {"y": 1.0}, epsilon=0.1),
    ),
    "reject data": (
        DataError,
        "observed must be a dictionary from output names to",
        lambda: approximate.reject(MODEL, None, epsilon=0.1),
    ),
    "reject keep": (
        SettingError,
        "keep='z': choose 'inputs' or None",
        lambda: approximate.reject(MODEL, {"y": 1.0}, epsilon=0.1, keep="z"),
    ),
    "mcmc undirected": (
        ModelError,
        "mcmc needs a directed model: it moves the parameters and",
        lambda: approximate.mcmc(MODEL, {"y": 1.0}, epsilon=0.1),
    ),
    "mcmc option": (
        SettingError,
        "there is no option 'burnin'; there are draws, warmup",
        lambda: approximate.mcmc(DIRECTED, {"y": 1.0}, epsilon=0.1, burnin=3),
    ),
    "mcmc step": (
        SettingError,
        "step_size='a': it must be a positive number, such as 0.1",
        lambda: approximate.mcmc(DIRECTED, {"y": 1.0}, epsilon=0.1, step_size="a"),
    ),
    "mcmc start": (
        SettingError,
        "start must be an array, a row for each chain: could not",
        lambda: approximate.mcmc(DIRECTED, {"y": 1.0}, epsilon=0.1, start="a"),
    ),
    "mcmc eps nan": (
        SettingError,
        "epsilon=nan: the tolerance is a distance from the data, a",
        lambda: approximate.mcmc(DIRECTED, {"y": 1.0}, epsilon=np.nan),
    ),
    "smc particles": (
        SettingError,
        "particles=3: it must be a whole number, 10 or more",
        lambda: approximate.smc(DIRECTED, {"y": 1.0}, epsilon=0.1, particles=3),
    ),
    "smc moves": (
        SettingError,
        "moves='all': choose 'parameters' or 'inputs'",
        lambda: approximate.smc(DIRECTED, {"y": 1.0}, epsilon=0.1, moves="all"),
    ),
    "smc eps none": (
        SettingError,
        "epsilon=None: the tolerance is a distance from the data",
        lambda: approximate.smc(DIRECTED, {"y": 1.0}, epsilon=None),
    ),
    "slice groups": (
        SettingError,
        "groups=[('x',)]: 'n' never moves; the inputs are z, n",
        lambda: approximate.elliptical_slice(MODEL, {"y": 1.0}, epsilon=0.1, groups=["x"]),
    ),
    "slice groups nested": (
        SettingError,
        "groups=[[['z']], 'n']: give a list of names, or of tuples of",
        lambda: approximate.elliptical_slice(MODEL, {"y": 1.0}, epsilon=0.1, groups=[[["z"]], "n"]),
    ),
    "slice groups of int": (
        SettingError,
        "groups=[3, 'n']: give a list of names, or of tuples of names",
        lambda: approximate.elliptical_slice(MODEL, {"y": 1.0}, epsilon=0.1, groups=[3, "n"]),
    ),
    "slice groups int": (
        SettingError,
        "groups=3: give a list of names, or of tuples of names",
        lambda: approximate.elliptical_slice(MODEL, {"y": 1.0}, epsilon=0.1, groups=3),
    ),
    "hmc steps": (
        SettingError,
        "num_steps='a': give a positive whole number of steps, or",
        lambda: approximate.hmc(MODEL, {"y": 1.0}, epsilon=0.1, num_steps="a"),
    ),
    "nuts eps": (
        SettingError,
        "epsilon=-1: the tolerance is a distance from the data, a",
        lambda: approximate.nuts(MODEL, {"y": 1.0}, epsilon=-1),
    ),
    "hamiltonian sims": (
        SettingError,
        "simulations=1: it must be a whole number, 2 or more",
        lambda: approximate.hamiltonian(DIRECTED, {"y": 1.0}, simulations=1),
    ),
    "hamiltonian eps": (
        SettingError,
        "epsilon='a': the tolerance is a distance from the data, a",
        lambda: approximate.hamiltonian(DIRECTED, {"y": 1.0}, epsilon="a"),
    ),
    "tractable none": (
        ModelError,
        "fails with TypeError: 'NoneType' object is not callable",
        lambda: approximate.tractable(DIRECTED, {"y": 1.0}, log_likelihood=None),
    ),
    "tractable vector": (
        ModelError,
        "log_likelihood must return one number, not shape (2,)",
        lambda: approximate.tractable(
            DIRECTED, {"y": 1.0}, log_likelihood=lambda z, y: jnp.ones(2)
        ),
    ),
    "tractable outputs": (
        ModelError,
        "outputs must return a dictionary of named values, such as",
        lambda: approximate.tractable(
            DIRECTED,
            {"y": 1.0},
            log_likelihood=lambda z, y: -(z["z"] ** 2),
            outputs=lambda z: z["z"],
        ),
    ),
    "tractable outputs list": (
        ModelError,
        "fails with TypeError: 'list' object is not callable",
        lambda: approximate.tractable(
            DIRECTED, {"y": 1.0}, log_likelihood=lambda z, y: -(z["z"] ** 2), outputs=["z"]
        ),
    ),
    "omc eps": (
        SettingError,
        "epsilon=None: the tolerance is a distance from the data",
        lambda: approximate.optimisation_monte_carlo(DIRECTED, {"y": 1.0}, epsilon=None),
    ),
    "resample": (
        DataError,
        "these draws have no weights: they all count alike",
        lambda: approximate.resample(DRAWS, 10),
    ),
    "resample none": (
        DataError,
        "resample takes the draws that coarea.sample returns, with",
        lambda: approximate.resample(None, 10),
    ),
    "resample num": (
        SettingError,
        "num='a': it must be a whole number, 1 or more",
        lambda: approximate.resample(DRAWS, "a"),
    ),
}

AFTER = {
    "diagnose none": (
        DataError,
        "diagnose takes the draws that coarea.sample returns, with",
        lambda: co.diagnose(None),
    ),
    "diagnose dict": (
        DataError,
        "diagnose takes the draws that coarea.sample returns, with",
        lambda: co.diagnose({}),
    ),
    "diagnose dataset": (
        DataError,
        "diagnose takes the draws that coarea.sample returns, with",
        lambda: co.diagnose(DRAWS.posterior),
    ),
    "diagnose no stats": (
        DataError,
        "diagnose takes the draws that coarea.sample returns, with",
        lambda: co.diagnose(xr.DataTree.from_dict({"posterior": DRAWS.posterior.dataset})),
    ),
    "diagnose array": (
        DataError,
        "diagnose takes the draws that coarea.sample returns, with",
        lambda: co.diagnose(np.ones(3)),
    ),
    "predictive none": (
        DataError,
        "predictive takes the draws that coarea.sample returns",
        lambda: co.predictive(MODEL, None, KEY),
    ),
    "predictive dict": (
        DataError,
        "predictive takes the draws that coarea.sample returns",
        lambda: co.predictive(MODEL, {}, KEY),
    ),
    "predictive model": (
        ModelError,
        "predictive takes a coarea.Generator, a coarea.Markov or a",
        lambda: co.predictive(None, DRAWS, KEY),
    ),
    "predictive other": (
        DataError,
        "none of the model's inputs (q) is among those of the",
        lambda: co.predictive(co.Generator(lambda u: {"y": u["q"]}, {"q": ()}), DRAWS, KEY),
    ),
    "predictive numpyro other": (
        DataError,
        "none of the draws' variables (z) is a site of the model",
        lambda: co.predictive(scoped, DRAWS, KEY),
    ),
    "predictive no inputs": (
        DataError,
        "the draws do not have the random inputs, from which a",
        lambda: co.predictive(MODEL, sample(), KEY),
    ),
    "predictive chain": (
        ModelError,
        "an output or input is named 'chain', which is what ArviZ",
        lambda: co.predictive(
            lambda: numpyro.sample("chain", dist.Normal(numpyro.sample("z", dist.Normal()))),
            DRAWS,
            KEY,
        ),
    ),
    "predictive args": (
        ModelError,
        "args and kwargs are for NumPyro models",
        lambda: co.predictive(MODEL, DRAWS, KEY, args=(1,)),
    ),
    "predictive shapes": (
        DataError,
        "input 'z' has shape (3,) in the model, but () in the",
        lambda: co.predictive(co.Generator(lambda u: {"y": u["z"]}, {"z": 3}), DRAWS, KEY),
    ),
    "predictive call": (
        ModelError,
        "fails with TypeError: <lambda>.<locals>.<lambda>()",
        lambda: co.predictive(
            lambda x: numpyro.deterministic("z2", numpyro.sample("z", dist.Normal()) * x),
            DRAWS,
            KEY,
        ),
    ),
    "predictive key": (
        SettingError,
        "key='a': give a random key, such as jax.random.key(0), or",
        lambda: co.predictive(MODEL, DRAWS, "a"),
    ),
}


GROUPS = {
    "seeds": SEEDS,
    "sample": SAMPLE,
    "kernels": KERNELS,
    "approximate": APPROXIMATE,
    "after": AFTER,
}
CASES = {
    f"{group}, {name}": case for group, table in GROUPS.items() for name, case in table.items()
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", CASES)
def test_a_bad_setting_is_refused_by_name(case):
    kind, message, make = CASES[case]
    with pytest.raises(kind) as raised:
        make()
    assert message in str(raised.value)
    assert isinstance(raised.value, CoareaError)
