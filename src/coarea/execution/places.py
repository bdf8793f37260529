"""Where chains run: in small groups on the cores of a CPU, or all at once on an accelerator."""

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import SingleDeviceSharding

from coarea.errors import SettingError
from coarea.keys import ChainKeys, chain_keys, key_from_seed
from coarea.xla import jit_fast_compile

Devices: TypeAlias = str | Sequence[Any] | Any | None  # Any: a jax.Device
T = TypeVar("T")

_PINNED = "pinned_host"


class Place(NamedTuple):
    """A device, and the numbers of the chains that run there as one group.

    The last group is padded with numbers beyond `num_chains`, so that all groups share one compiled
    program. The draws of these chains are discarded.
    """

    device: Any
    chains: range
    num_chains: int

    def active(self) -> AbstractContextManager:
        """A context in which this device is JAX's default."""
        return jax.default_device(self.device)

    def keys(self, seed: int) -> ChainKeys:
        """The random keys of its chains."""
        with self.active():
            keys = _keys(key_from_seed(seed), jnp.array(self.chains))
        # Committed to the device, as all that is computed from them: programs compile once.
        return jax.device_put(keys, self.device)

    @property
    def is_accelerator(self) -> bool:
        """Whether arrays must be copied from the device to the host."""
        return self.device.platform != "cpu"

    def fetched(self, arrays: T) -> T:
        """Copy arrays from the device to NumPy.

        The copy goes through pinned host memory if there is any, which is about thirty times as
        fast.
        """
        if self.is_accelerator and any(
            memory.kind == _PINNED for memory in self.device.addressable_memories()
        ):
            arrays = jax.device_put(arrays, SingleDeviceSharding(self.device, memory_kind=_PINNED))
        return jax.tree.map(np.asarray, arrays)

    def put(self, rows: T) -> T:
        """Copy the rows of its own chains to the device; `rows` has a row for each chain."""
        mine = np.array(self.chains) % self.num_chains
        return jax.tree.map(lambda x: jax.device_put(np.asarray(x)[mine], self.device), rows)


@jit_fast_compile
def _keys(key, chains) -> ChainKeys:
    return jax.vmap(lambda i: chain_keys(key, i))(chains)


def places_for(num_chains: int, vmap_width: int, devices: Devices) -> list[Place]:
    """Assign chains 0, 1, … to places on the given devices, or on JAX's default devices.

    On a CPU each place has up to `vmap_width` chains.
    """
    found = _devices(devices)
    if found[0].platform == "cpu":
        found = found[:1]  # virtual CPU devices share the same cores
        width = vmap_width
        num_groups = math.ceil(num_chains / width)
    else:
        num_groups = min(len(found), num_chains)
        width = math.ceil(num_chains / num_groups)
    return [
        Place(found[i % len(found)], range(i * width, (i + 1) * width), num_chains)
        for i in range(num_groups)
    ]


def _devices(given: Devices) -> list[Any]:
    if given is None:
        return jax.local_devices()
    if isinstance(given, str):
        try:
            return jax.local_devices(backend=given)
        except RuntimeError as error:
            raise SettingError(
                f"devices={given!r}: JAX finds none here; it has "
                f"{', '.join(sorted({d.platform for d in jax.local_devices()}))}."
            ) from error
    found = list(given) if isinstance(given, Sequence) else [given]
    if not found or not all(isinstance(d, jax.Device) for d in found):
        raise SettingError(
            f"devices={given!r}: give 'cpu', 'gpu', a device of jax.devices() or a list of them."
        )
    if len({d.platform for d in found}) > 1:
        raise SettingError("devices: all must be of one kind, for equal programs on each.")
    return found
