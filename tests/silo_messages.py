"""Messages between silos, and a user's own code for them."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from decibel.network._codecs import Code
from decibel.silo.protocol._frames import Data, Position


class Exponents(Code):
    """A user's code: signs and powers of two in integers, without a float; the largest power is infinity."""

    mixing: float = 0.3
    largest: int = eqx.field(static=True, default=255)  # of what decodes

    def bytes(self, entries, dtype):
        return 2 * entries

    def float_bytes(self, entries, dtype):
        return 0

    def encode(self, new, key, secret):
        powers = jnp.where(new == 0, 0, jnp.clip(jnp.floor(jnp.log2(jnp.abs(new))) + 200, 1, 254))
        powers = jnp.where(jnp.isfinite(new), powers, 255)
        return jnp.concatenate([powers.astype(jnp.uint8), (new < 0).astype(jnp.uint8)])

    def decode(self, row, key, entries, dtype):
        powers, signs = (part.astype(dtype) for part in jnp.split(row, 2))
        powers = jnp.minimum(powers, self.largest)
        sizes = jnp.where(powers == 0, 0, jnp.where(powers == 255, jnp.inf, 2 ** (powers - 200)))
        return (1 - 2 * signs) * sizes


class Poisoned(Exponents):
    """What it sends is infinite to all but itself."""

    def encode(self, new, key, secret):
        return super().encode(new, key, secret).at[0].set(255)


def message(step, exchange, *, epoch=1, tensor=None):
    return Data(epoch, Position(step, exchange), np.ones(3) if tensor is None else tensor)
