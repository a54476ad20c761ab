"""Gradient tracking whose tracker has the units of gradients, so that the displacement may be any function of it.

The rows of the table track displacements, the direction times the step size, and move by what they track. Here h
tracks the direction itself,

    h⁺ = W h + Δdirection,   s⁺ = W s − d(s, h⁺),

combine then adapt as `non-gt`, which it is with d = α h. A displacement that vanishes where h does, at a common s,
leaves the fixed point of gradient tracking exact.
"""

from __future__ import annotations

import jax.numpy as jnp

from ..core._vector import Scalar, Vector, nonzero_divisor, scale_nodes
from ..network._communicator import Move
from ._table import Level, Strategy


class Tracking(Strategy):
    """s⁺ = W s − α h⁺."""

    def update(self, level: Level, direction: Vector, rate: Scalar) -> Move:
        s, (c, h) = level.s, level.carry
        δh, δs = yield h, s
        c = c + δh
        h = direction + c
        return s + δs - self.displacement(s, h, rate), (c, h)

    def displacement(self, s: Vector, h: Vector, rate: Scalar) -> Vector:
        """What is subtracted from s, given the tracker h."""
        return rate * h


class NormalizedTracking(Tracking):
    """s⁺ = W s − α h⁺/‖h⁺‖, with the norm of each node."""

    def displacement(self, s: Vector, h: Vector, rate: Scalar) -> Vector:
        return rate * scale_nodes(1 / nonzero_divisor(jnp.sqrt(h.squared_norms())), h)


class ProximalTracking(Tracking):
    """s⁺ = W s + ν (prox_α(s − α h⁺) − s).

    Attributes:
        part: ν.
    """

    part: Scalar = 1.0

    def displacement(self, s: Vector, h: Vector, rate: Scalar) -> Vector:
        return self.part * (s - self.apply_prox(s - rate * h, rate))


class LocalTracking(Strategy):
    """The move after local steps: with `direction` their average z, c⁺ = c + (W − I) z and s⁺ = W (s − rate z)."""

    def update(self, level: Level, direction: Vector, rate: Scalar) -> Move:
        (c,), φ = level.carry, level.s - rate * direction
        δc, δ = yield direction, φ
        return φ + δ, (c + δc,)


def normalized() -> NormalizedTracking:
    """Gradient tracking with steps of equal length."""
    return NormalizedTracking("normalized-gt", carries=2)


def proximal() -> ProximalTracking:
    """Gradient tracking that goes part of the way to a proximal point."""
    return ProximalTracking("proximal-gt", carries=2, proximal="inside")


def local_tracking() -> LocalTracking:
    """K-GT's correction and mixing after local steps."""
    return LocalTracking("k-gt", carries=1)
