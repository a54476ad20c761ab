"""JAX's own random numbers (threefry), in a form that compiles to one pass.

On a CPU, JAX lowers every hash to a loop of small operations: the four that lead from a run's key to a node's batch
took longer than the rest of a small step. Here the twenty rounds are written out: a step of 20 nodes takes a quarter of
the time (`python -m benchmarks keys`). The numbers are JAX's, bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.extend.random import define_prng_impl, threefry_prng_impl
from jaxtyping import Integer, Key, UInt, UInt32

ROTATIONS = (13, 15, 26, 6), (17, 29, 16, 24)


def key(seed: int | Integer[Array, ""]) -> Key[Array, ""]:
    """`jax.random.key(seed)`; every function of `jax.random` takes it and gives what it gives there."""
    return jax.random.key(seed, impl=UNROLLED)


def key_per_seed(seeds: Iterable[int]) -> Key[Array, " seeds"]:
    """(seeds,) the `key` of each seed; seeds are integers from 0 to 2³² − 1, whatever the default integers are."""
    return jax.vmap(key)(jnp.asarray(np.fromiter(seeds, np.uint32)))


def fold_in_each(key: Key[Array, "*keys"], numbers: Integer[Array, "*numbers"]) -> Key[Array, "*numbers"]:
    """A key per number; where there are keys already, pair by pair."""
    over = None if key.ndim == 0 else 0
    folded = jax.vmap(jax.random.fold_in, (over, 0))(key if over is None else key.reshape(-1), numbers.reshape(-1))
    return folded.reshape(numbers.shape)


def _hash(
    k: UInt32[Array, " 2"], high: UInt32[Array, "*shape"], low: UInt32[Array, "*shape"]
) -> tuple[UInt32[Array, "*shape"], UInt32[Array, "*shape"]]:
    """Threefry-2x32 (Salmon et al., 2011) of a counter given by its two halves."""
    keys = (k[0], k[1], k[0] ^ k[1] ^ jnp.uint32(0x1BD11BDA))
    a, b = high + keys[0], low + keys[1]
    for i in range(5):
        for r in ROTATIONS[i % 2]:
            a = a + b
            b = a ^ ((b << jnp.uint32(r)) | (b >> jnp.uint32(32 - r)))
        a, b = a + keys[(i + 1) % 3], b + keys[(i + 2) % 3] + jnp.uint32(i + 1)
    return a, b


def _counters(shape: tuple[int, ...]) -> tuple[UInt32[Array, "*shape"], UInt32[Array, "*shape"]]:
    size = math.prod(shape)
    if size >= 2**32:
        raise ValueError(f"{size} random numbers in one call are too many: draw them in parts.")
    low = jax.lax.iota(jnp.uint32, size).reshape(shape)
    return jnp.zeros_like(low), low


def _fold_in(k: UInt32[Array, " 2"], data: int | Integer[Array, ""]) -> UInt32[Array, " 2"]:
    low = jnp.asarray(data, jnp.uint32)
    return jnp.stack(_hash(k, jnp.zeros_like(low), low))


def _split(k: UInt32[Array, " 2"], shape: tuple[int, ...]) -> UInt32[Array, "*shape 2"]:
    return jnp.stack(_hash(k, *_counters(shape)), axis=-1)


def _random_bits(k: UInt32[Array, " 2"], bit_width: int, shape: tuple[int, ...]) -> UInt[Array, "*shape"]:
    a, b = _hash(k, *_counters(shape))
    if bit_width == 64:
        return (a.astype(jnp.uint64) << jnp.uint64(32)) | b.astype(jnp.uint64)
    return (a ^ b).astype(f"uint{bit_width}")


UNROLLED = define_prng_impl(
    key_shape=(2,),
    seed=threefry_prng_impl.seed,
    split=_split,
    random_bits=_random_bits,
    fold_in=_fold_in,
    name="threefry-unrolled",
    tag="3fu",
)
