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

SLACK = 0.1  # of what is free is not counted on, since it lies in pieces
NO_ROOM = (
    "A copy of the state, {:.0f} GB, is kept in case a step diverges, and fits neither on the device nor into the host "
    "memory that JAX uses: raise XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB (default 64) before the run, or use fewer nodes or "
    "a smaller model."
)


class OutOfMemory(Exception):
    """A device has no room for what is to come."""


def copied(tree: T, beside: int) -> Callable[[], T]:
    """Copies all leaves and returns how to have them back. The copy lies on the device where it fits there together
    with `beside`, the bytes that are needed for other things, and in the host's memory where it does not: in pages that
    are locked, since only these travel as fast as the wires allow."""
    if fits(tree, beside):
        copies = jax.tree.map(jnp.copy, tree)
        return lambda: copies
    sizes = _sizes(tree)
    if any(beside > _free(device) for device in sizes):
        raise OutOfMemory
    at_home = jax.tree.map(lambda leaf: leaf.sharding, tree)
    away = jax.tree.map(lambda leaf: leaf.sharding.with_memory_kind("pinned_host"), tree)
    with oom_hint(NO_ROOM.format(sum(sizes.values()) / 1e9)):
        held = jax.block_until_ready(jax.device_put(tree, away))
    return lambda: jax.device_put(held, at_home)


def fits(tree: PyTree, beside: int) -> bool:
    """Whether every device has room for its part of the tree once more."""
    return all(size + beside <= (1 - SLACK) * _free(device) for device, size in _sizes(tree).items())


@contextmanager
def oom_hint(sentence: str) -> Iterator[None]:
    """Where a device is full, its error is this sentence."""
    try:
        yield
    except (OutOfMemory, jax.errors.JaxRuntimeError) as error:
        if not isinstance(error, OutOfMemory) and "RESOURCE_EXHAUSTED" not in str(error):
            raise
        raise MemoryError(sentence) from error


def statistics(device: Device) -> dict[str, int]:
    """What a device counts of its memory; nothing on a CPU."""
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
