"""Device memory: where the copy of the state is kept, and the error when memory runs out."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias, TypeVar

import jax
import jax.numpy as jnp

from ..core._types import PyTree

Device: TypeAlias = Any  # JAX's, for which it has no type that checkers know
T = TypeVar("T")

SLACK = 0.1  # of the free memory is not counted on, since it is fragmented
NO_ROOM = (
    "A copy of the state, {:.0f} GB, is kept in case a step diverges, and fits neither on the device nor into the host "
    "memory that JAX uses: raise XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB (default 64) before the run, or use fewer nodes or "
    "a smaller model."
)


class OutOfMemory(Exception):
    """A device has no room for what must fit on it."""


def copied(tree: T, reserved_bytes: int) -> Callable[[], T]:
    """Copies all leaves and returns a function that returns the copy, on the device.

    The copy stays on the device if it fits there in addition to `reserved_bytes`. Otherwise it goes to pinned memory of
    the host, which transfers fastest.
    """
    if fits(tree, reserved_bytes):
        copies = jax.tree.map(jnp.copy, tree)
        return lambda: copies
    sizes = _sizes(tree)
    if any(reserved_bytes > _free(device) for device in sizes):
        raise OutOfMemory
    device_shardings = jax.tree.map(lambda leaf: leaf.sharding, tree)
    host_shardings = jax.tree.map(lambda leaf: leaf.sharding.with_memory_kind("pinned_host"), tree)
    with oom_hint(NO_ROOM.format(sum(sizes.values()) / 1e9)):
        on_host = jax.block_until_ready(jax.device_put(tree, host_shardings))
    return lambda: jax.device_put(on_host, device_shardings)


def fits(tree: PyTree, reserved_bytes: int) -> bool:
    """Whether every device has room for a copy of its part of the tree in addition to `reserved_bytes`."""
    return all(size + reserved_bytes <= (1 - SLACK) * _free(device) for device, size in _sizes(tree).items())


@contextmanager
def oom_hint(sentence: str) -> Iterator[None]:
    """Turns out-of-memory errors of a device into a `MemoryError` with this sentence."""
    try:
        yield
    except (OutOfMemory, jax.errors.JaxRuntimeError) as error:
        if not isinstance(error, OutOfMemory) and "RESOURCE_EXHAUSTED" not in str(error):
            raise
        raise MemoryError(sentence) from error


def statistics(device: Device) -> dict[str, int]:
    """The memory statistics of a device; empty on a CPU."""
    return device.memory_stats() or {}


def _free(device: Device) -> float:
    memory = statistics(device)
    return memory.get("bytes_limit", math.inf) - memory.get("bytes_in_use", 0)


def _sizes(tree: PyTree) -> Counter[Device]:
    """The bytes of the tree on each device."""
    sizes: Counter[Device] = Counter()
    for leaf in jax.tree.leaves(tree):
        for part in leaf.addressable_shards:
            sizes[part.device] += part.data.nbytes
    return sizes
