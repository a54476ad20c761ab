"""Falling step sizes that compare equal when they are, so that arms share what is compiled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax.numpy as jnp
from jax import Array


@dataclass(frozen=True)
class Falling:
    """rate / √(1 + k/decay)"""

    rate: float
    decay: float

    def __call__(self, k: Array) -> Array:
        return self.rate / jnp.sqrt(1 + jnp.asarray(k, float) / self.decay)


@dataclass(frozen=True)
class Scaled:
    """A schedule times a factor."""

    schedule: Callable[[Array], Array]
    factor: float

    def __call__(self, k: Array) -> Array:
        return self.factor * self.schedule(k)


@dataclass(frozen=True)
class Linear:
    """From `rate` at the start to zero after `steps`."""

    rate: float
    steps: int

    def __call__(self, k: Array) -> Array:
        return self.rate * jnp.maximum(1 - jnp.asarray(k, float) / self.steps, 0)


@dataclass(frozen=True)
class Annealed:
    """`rate`, and from step `after` on `factor` times that."""

    rate: float
    after: int
    factor: float

    def __call__(self, k: Array) -> Array:
        return self.rate * jnp.where(jnp.asarray(k) < self.after, 1.0, self.factor)
