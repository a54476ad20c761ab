"""Step sizes that change with the step, and compare equal when they are, so that arms share what is compiled."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
from jax import Array


@dataclass(frozen=True)
class InverseRoot:
    """rate / √(1 + k/decay)"""

    rate: float
    decay: float

    def __call__(self, k: Array) -> Array:
        return self.rate / jnp.sqrt(1 + jnp.asarray(k, float) / self.decay)


@dataclass(frozen=True)
class Hyperbolic:
    """scale / (offset + k)"""

    scale: float
    offset: float

    def __call__(self, k: Array) -> Array:
        return self.scale / (self.offset + jnp.asarray(k, float))


@dataclass(frozen=True)
class Linear:
    """To `rate` within `warm_up` steps, and from there to zero after `steps`."""

    rate: float
    steps: int
    warm_up: int = 0

    def __call__(self, k: Array) -> Array:
        step = jnp.asarray(k, float)
        rising = jnp.minimum((step + 1) / self.warm_up, 1) if self.warm_up else 1.0
        falling = jnp.clip((self.steps - step) / max(self.steps - self.warm_up, 1), 0, 1)
        return self.rate * rising * falling


@dataclass(frozen=True)
class Annealed:
    """`rate`, and from step `after` on `factor` times that."""

    rate: float
    after: int
    factor: float

    def __call__(self, k: Array) -> Array:
        return self.rate * jnp.where(jnp.asarray(k) < self.after, 1.0, self.factor)
