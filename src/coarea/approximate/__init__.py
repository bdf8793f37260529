"""Approximate alternatives to exact conditioning, for the same models and in the same format."""

from coarea.approximate.elliptical_slice import elliptical_slice as elliptical_slice
from coarea.approximate.hamiltonian import hamiltonian as hamiltonian
from coarea.approximate.mcmc import mcmc as mcmc
from coarea.approximate.optimisation_monte_carlo import (
    optimisation_monte_carlo as optimisation_monte_carlo,
)
from coarea.approximate.reject import reject as reject
from coarea.approximate.smc import smc as smc
from coarea.approximate.trajectories import hmc as hmc
from coarea.approximate.trajectories import nuts as nuts
from coarea.approximate.trajectories import tractable as tractable
from coarea.approximate.weights import resample as resample
