"""Differences that are clipped, rounded to integers on a grid, and sent with integer noise.

The low bits of noisy floats reveal which noise is possible (Mironov, 2012); integers do not. On the grid a clipped
difference has a norm of at most `limit`, the noise is a discrete Gaussian of σ = `scale`, and scale/limit is at least
the strategy's `noise`. The privacy guarantee is exact, whatever the dtype of the run.
"""

from __future__ import annotations

import math
import os
from fractions import Fraction
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike

from ..core._discrete_gaussian import TABLE, RandomBytes, discrete_gaussian
from ..core._vector import max_or_nan
from ._codecs import Code, from_bytes, to_bytes

LARGEST_SCALE = 2**26
FINE = 8  # grid steps in a clipped entry of average size, at least
NOT_FINITE = -(2**31)  # sent where the difference is not finite; no other integer is so low


class Grid(NamedTuple):
    """The integer grid of a message."""

    scale: int  # the deviation of the noise, in steps
    limit: int  # the largest norm of a difference, in steps
    step: float

    @classmethod
    def of(cls, clip: float, noise: float, entries: int) -> Grid:
        """A grid fine enough for the noise, and for the small entries of long messages."""
        needed = math.ceil(math.log2(max(TABLE, FINE * noise * math.sqrt(entries))))
        scale = min(2**needed, LARGEST_SCALE)
        return cls(scale, math.floor(scale / Fraction(noise)), clip * noise / scale)

    @classmethod
    def fine(cls, clip: float, noise: float) -> Grid:
        """The finest grid of 64-bit integers, for values whose rounding error is not sent later."""
        scale = 2 ** min(LARGEST_SCALE.bit_length() - 1, 30 + math.floor(math.log2(noise)))
        return cls(scale, math.floor(scale / Fraction(noise)), clip * noise / scale)

    def integers(self, new: np.ndarray) -> np.ndarray:
        """(entries,) a finite difference, clipped and rounded to the grid, in int64: of squared norm at most limit²."""
        new = new.astype(np.float64)
        top = float(np.abs(new).max(initial=0.0))
        if top == 0:
            return np.zeros(new.shape, np.int64)
        shape = new / top
        factor = min(top / self.step, self.limit / math.sqrt(float(np.dot(shape, shape))))
        less = 2.0**-40
        while True:
            steps = np.trunc(shape * factor).astype(np.int64)
            if int(np.dot(steps, steps)) <= self.limit**2:  # below 2^62, rounding included
                return steps
            factor, less = factor * (1 - less), 2 * less


class Noisy(Code):
    clip: float = eqx.field(static=True)
    noise: float = eqx.field(static=True)
    mixing: float = eqx.field(static=True)

    def bytes(self, entries: int, dtype: DTypeLike) -> int:
        return 4 * entries

    def float_bytes(self, entries: int, dtype: DTypeLike) -> int:
        return 0

    def grid(self, entries: int) -> Grid:
        return Grid.of(self.clip, self.noise, entries)

    def release(self, new: np.ndarray, source: RandomBytes = os.urandom) -> np.ndarray:
        """(entries,) of a finite difference → (bytes,) to send: exact, and private as `privacy.epsilon` says."""
        grid = self.grid(new.size)
        steps = grid.integers(new) + discrete_gaussian(grid.scale, new.size, source)
        return np.clip(steps, -(2**31) + 1, 2**31 - 1).astype(np.int32).view(np.uint8)

    def encode(self, new: Array, key: Array, secret: Array) -> Array:
        """Simulates `release` up to rounding, with a normal float32 number for each entry."""
        grid = self.grid(new.size)
        top = max_or_nan(jnp.abs(new))
        shape = new / jnp.where(top > 0, top, 1)
        norm = jnp.where(top > 0, jnp.linalg.norm(shape), 1)
        factor = jnp.minimum(top / jnp.asarray(grid.step, new.dtype), jnp.asarray(grid.limit, new.dtype) / norm)
        chance = jax.random.normal(secret, new.shape, jnp.float32) * jnp.float32(grid.scale)
        steps = jnp.trunc(shape * factor).astype(jnp.int32) + jnp.round(chance).astype(jnp.int32)
        return to_bytes(jnp.where(jnp.isfinite(new).all(), steps, NOT_FINITE))

    def decode(self, row: Array, key: Array, entries: int, dtype: DTypeLike) -> Array:
        steps = from_bytes(row, jnp.int32)
        return jnp.where(
            steps == NOT_FINITE, jnp.nan, steps.astype(dtype) * jnp.asarray(self.grid(entries).step, dtype)
        )
