"""Codecs: a `Code` encodes the new part of a message in bytes and decodes it, a `ConcatCodec` that of several
levels."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from functools import reduce
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike

from ..core._vector import max_or_nan


class Code(eqx.Module):
    """Encodes the new part of a message in bytes, and decodes it.

    Both ends know `key`; only the sender knows `secret`. Flows are multiplied by `mixing`.
    """

    mixing: eqx.AbstractVar[float]
    is_random: ClassVar[bool] = True  # whether it draws random numbers from its keys

    @abstractmethod
    def bytes(self, entries: int, dtype: DTypeLike) -> int:
        """The size of one node's message."""

    @abstractmethod
    def float_bytes(self, entries: int, dtype: DTypeLike) -> int:
        """How many bytes at the front of a message are floats of `dtype`; 0 where a code writes integers only.

        A receiver checks that they are finite before it decodes.
        """

    @abstractmethod
    def encode(self, new: Array, key: Array, secret: Array) -> Array:
        """(entries,) → (bytes,) of uint8."""

    @abstractmethod
    def decode(self, row: Array, key: Array, entries: int, dtype: DTypeLike) -> Array:
        """(bytes,) → (entries,)"""


class TopK(Code):
    is_random: ClassVar[bool] = False
    share: float = eqx.field(static=True)
    mixing: float = eqx.field(static=True)

    def bytes(self, entries: int, dtype: DTypeLike) -> int:
        return _count(self.share, entries) * (np.dtype(dtype).itemsize + _position_dtype(entries).itemsize)

    def float_bytes(self, entries: int, dtype: DTypeLike) -> int:
        return _count(self.share, entries) * np.dtype(dtype).itemsize

    def encode(self, new: Array, key: Array, secret: Array) -> Array:
        positions = jax.lax.top_k(jnp.abs(new), _count(self.share, new.size))[1]
        return jnp.concatenate([to_bytes(new[positions]), to_bytes(positions.astype(_position_dtype(new.size)))])

    def decode(self, row: Array, key: Array, entries: int, dtype: DTypeLike) -> Array:
        values, positions = jnp.split(row, [self.float_bytes(entries, dtype)])
        indices = from_bytes(positions, _position_dtype(entries)).astype(jnp.int32)
        return jnp.zeros(entries, dtype).at[indices].set(from_bytes(values, dtype), mode="drop")


class RandomK(Code):
    share: float = eqx.field(static=True)
    mixing: float = eqx.field(static=True)

    def bytes(self, entries: int, dtype: DTypeLike) -> int:
        return _count(self.share, entries) * np.dtype(dtype).itemsize

    def float_bytes(self, entries: int, dtype: DTypeLike) -> int:
        return self.bytes(entries, dtype)

    def encode(self, new: Array, key: Array, secret: Array) -> Array:
        return to_bytes(new[self._positions(key, new.size)])

    def decode(self, row: Array, key: Array, entries: int, dtype: DTypeLike) -> Array:
        return jnp.zeros(entries, dtype).at[self._positions(key, entries)].set(from_bytes(row, dtype))

    def _positions(self, key: Array, entries: int) -> Array:
        chances = jax.random.uniform(key, (entries,), jnp.float32)
        return jax.lax.top_k(chances, _count(self.share, entries))[1]


class Quantized(Code):
    is_random: ClassVar[bool] = False
    bits: int = eqx.field(static=True)
    mixing: float = eqx.field(static=True)

    @property
    def _largest(self) -> int:
        return 2 ** (self.bits - 1) - 1

    def bytes(self, entries: int, dtype: DTypeLike) -> int:
        return self.float_bytes(entries, dtype) + -(-entries * self.bits // 8)

    def float_bytes(self, entries: int, dtype: DTypeLike) -> int:
        return np.dtype(dtype).itemsize

    def encode(self, new: Array, key: Array, secret: Array) -> Array:
        scale = max_or_nan(jnp.abs(new))
        steps = jnp.round(new / jnp.where(scale > 0, scale, 1) * jnp.asarray(self._largest, new.dtype))
        numbers = (steps + jnp.asarray(self._largest, new.dtype)).astype(jnp.uint8)
        per_byte = 8 // self.bits
        numbers = jnp.pad(numbers, (0, int(-new.size % per_byte))).reshape(-1, per_byte)
        shifts = jnp.arange(per_byte, dtype=jnp.uint8) * jnp.uint8(self.bits)
        return jnp.concatenate([to_bytes(scale[None]), (numbers << shifts).sum(1, dtype=jnp.uint8)])

    def decode(self, row: Array, key: Array, entries: int, dtype: DTypeLike) -> Array:
        scale, numbers = jnp.split(row, [self.float_bytes(entries, dtype)])
        shifts = jnp.arange(8 // self.bits, dtype=jnp.uint8) * jnp.uint8(self.bits)
        steps = ((numbers[:, None] >> shifts) & jnp.uint8(2**self.bits - 1)).reshape(-1)[:entries]
        end = jnp.asarray(self._largest, dtype)
        return (steps.astype(dtype) - end) / end * from_bytes(scale, dtype)[0]


class ConcatCodec(NamedTuple):
    """Encodes the message of every level separately and concatenates the codes in one row."""

    code: Code
    widths: list[int]
    dtype: DTypeLike  # of the decoded values
    key_paths: Sequence[
        tuple[int, ...]
    ]  # by level: what is folded into its keys, so that levels draw different numbers

    def encode(self, new: Array, key: Array, secret: Array) -> Array:
        parts = jnp.split(new, np.cumsum(self.widths)[:-1].tolist())
        keys = [self._keys(i, key, secret) for i in range(len(parts))]
        return jnp.concatenate([self.code.encode(part, *pair) for part, pair in zip(parts, keys, strict=True)])

    def decode(self, row: Array, key: Array) -> Array:
        lengths = [self.code.bytes(width, self.dtype) for width in self.widths]
        rows = jnp.split(row, np.cumsum(lengths)[:-1].tolist())
        keys = [self._keys(i, key)[0] for i in range(len(self.widths))]
        parts = [
            self.code.decode(part, key, width, self.dtype)
            for part, width, key in zip(rows, self.widths, keys, strict=True)
        ]
        return jnp.concatenate(parts)

    def _keys(self, part: int, *keys: Array) -> list[Array]:
        return [reduce(jax.random.fold_in, self.key_paths[part], key) for key in keys]


def _count(share: float, entries: int) -> int:
    return max(1, min(entries, math.ceil(share * entries)))


def _position_dtype(entries: int) -> np.dtype:
    return np.dtype(np.uint16 if entries <= 2**16 else np.uint32)


def to_bytes(array: Array) -> Array:
    """The bits of the array as (bytes,) of uint8."""
    return jax.lax.bitcast_convert_type(array, jnp.uint8).reshape(-1)


def from_bytes(row: Array, dtype: DTypeLike) -> Array:
    """The array of this dtype whose bits are (bytes,) of uint8."""
    return jax.lax.bitcast_convert_type(row.reshape(-1, np.dtype(dtype).itemsize), dtype)
