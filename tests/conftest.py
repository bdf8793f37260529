import jax
import pytest

jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture
def x64():
    """For tests that work below the top-level calls, which enter double precision themselves."""
    with jax.enable_x64(True):
        yield
