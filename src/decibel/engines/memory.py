"""What a device has room for: where the copy of a state goes, and what to say when memory ends."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

SLACK = 0.1  # of what is free is not counted on, since it lies in pieces
BLOCK = 2**28  # bytes that travel to the host at a time


class Full(Exception):
    """A device has no room for what is to come."""


def copied(tree: Any, beside: Callable[[], int]) -> Callable[[], Any]:
    """Copies all leaves and returns how to have them back. The copy lies on the device where it fits there together
    with `beside`, the bytes that are needed for other things, and in the host's memory where it does not."""
    if fits(tree, beside):
        copies = jax.tree.map(jnp.copy, tree)
        return lambda: copies
    if any(max(beside(), BLOCK) > _free(device) for device in _sizes(tree)):
        raise Full
    leaves, structure = jax.tree.flatten(tree)
    shapes = [(leaf.shape, leaf.sharding) for leaf in leaves]
    held = [[(part.device, _on_host(part.data)) for part in leaf.addressable_shards] for leaf in leaves]

    def back(shape: tuple[int, ...], sharding: Any, parts: list[tuple[Any, np.ndarray]]) -> Array:
        arrays = [jax.device_put(part, device) for device, part in parts]
        return jax.make_array_from_single_device_arrays(shape, sharding, arrays)

    return lambda: jax.tree.unflatten(structure, [back(*kind, parts) for kind, parts in zip(shapes, held, strict=True)])


def fits(tree: Any, beside: Callable[[], int]) -> bool:
    """Whether every device has room for its part of the tree once more."""
    return all(
        size + beside() <= (1 - SLACK) * _free(device) for device, size in _sizes(tree).items() if statistics(device)
    )


@contextmanager
def or_say(sentence: str) -> Iterator[None]:
    """Where a device is full, its error is this sentence."""
    try:
        yield
    except (Full, jax.errors.JaxRuntimeError) as error:
        if not isinstance(error, Full) and "RESOURCE_EXHAUSTED" not in str(error):
            raise
        raise MemoryError(sentence) from error


def statistics(device: Any) -> dict[str, int]:
    """What a device counts of its memory; nothing on a CPU."""
    return device.memory_stats() or {}


def _free(device: Any) -> float:
    memory = statistics(device)
    return memory.get("bytes_limit", math.inf) - memory.get("bytes_in_use", 0)


def _sizes(tree: Any) -> Counter[Any]:
    """The bytes of the tree on each device."""
    sizes: Counter[Any] = Counter()
    for leaf in jax.tree.leaves(tree):
        for part in leaf.addressable_shards:
            sizes[part.device] += part.data.nbytes
    return sizes


def _on_host(array: Array) -> np.ndarray:
    """A copy, made in blocks along the longest axis: each takes its own size on the device for a moment, and of an
    array that NumPy reads as a whole JAX would keep another copy on the host."""
    if not array.size or not array.ndim:
        return np.array(array)
    host, axis = np.empty(array.shape, array.dtype), int(np.argmax(array.shape))
    length = array.shape[axis]
    most = max(1, BLOCK * length // array.nbytes)
    for first in range(0, length, most):
        size = min(most, length - first)
        host[(slice(None),) * axis + (slice(first, first + size),)] = _block(array, first, size, axis)
    return host


def _block(array: Array, first: int, size: int, axis: int) -> Array:
    return jax.lax.dynamic_slice_in_dim(array, first, size, axis)
