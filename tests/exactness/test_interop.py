"""coarea's kernels under other libraries' drivers, against exact answers."""

import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from test_numpyro import exponentials

import coarea as co
from coarea.errors import PrecisionError, SettingError
from exact import assert_mean


def kernel_run(chain_method, **options):
    kernel = co.interop.numpyro.ConstrainedNUTS(exponentials, {"total": 42.0}, **options)
    sampler = numpyro.infer.MCMC(
        kernel,
        num_warmup=300,
        num_samples=2000,
        num_chains=2,
        chain_method=chain_method,
        progress_bar=False,
    )
    sampler.run(jax.random.key(0), extra_fields=("accept_prob", "constraint_error"))
    return sampler


@pytest.mark.parametrize("chain_method", ["sequential", "vectorized"])
def test_numpyros_driver_runs_the_kernel(chain_method, x64, capsys):
    sampler = kernel_run(chain_method)
    x = np.asarray(sampler.get_samples(group_by_chain=True)["x"])
    np.testing.assert_allclose(x.sum(-1), 42.0, rtol=1e-8)
    assert_mean(x[..., 0] / 42.0, 1 / 5)
    assert_mean((x[..., 0] / 42.0 - 1 / 5) ** 2, (1 / 5) * (4 / 5) / 6)
    fields = sampler.get_extra_fields()
    assert float(jnp.max(fields["constraint_error"])) < 1e-8
    assert 0.6 < float(jnp.mean(fields["accept_prob"])) <= 1
    sampler.print_summary()
    assert "x[0]" in capsys.readouterr().out
    if chain_method == "sequential":
        return
    import arviz_base

    tree = arviz_base.from_numpyro(sampler)
    assert tree.posterior["x"].shape == (2, 2000, 5)
    # The run goes on from where it was.
    sampler.post_warmup_state = sampler.last_state
    sampler.run(jax.random.key(1))
    assert_mean(np.asarray(sampler.get_samples(group_by_chain=True)["x"])[..., 0] / 42.0, 1 / 5)


def test_the_kernel_asks_for_double_precision():
    kernel = co.interop.numpyro.ConstrainedNUTS(exponentials, {"total": 42.0})
    sampler = numpyro.infer.MCMC(kernel, num_warmup=50, num_samples=10, progress_bar=False)
    with pytest.raises(PrecisionError, match="x64"):
        sampler.run(jax.random.key(0))


PARALLEL = """
import jax, numpyro
numpyro.set_host_device_count(2)
jax.config.update("jax_enable_x64", True)
import sys; sys.path[:0] = {folders!r}
import test_interop
x = test_interop.kernel_run("parallel").get_samples(group_by_chain=True)["x"]
assert x.shape == (2, 2000, 5), x.shape
assert abs(float((x / 42).mean()) - 0.2) < 1e-9
assert abs(float(x[..., 0].mean()) / 42 - 0.2) < 0.02
"""


def test_chains_run_on_devices_of_their_own():
    here = Path(__file__)
    script = PARALLEL.format(folders=[str(here.parent), str(here.parents[1])])
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


def test_the_kernel_takes_numpyro_models_alone():
    model = co.Generator(lambda u: {"y": u["a"].sum()}, {"a": 2})
    with pytest.raises(SettingError, match="NumPyro model"):
        co.interop.numpyro.ConstrainedNUTS(model, {"y": 1.0})
