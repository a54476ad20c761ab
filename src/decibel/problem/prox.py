"""Constraints and non-smooth terms of the upper level: `Problem(..., prox_x=db.prox.simplex())`.

A term h that is the same at every node enters by its proximal map prox_ρ(v) = argmin_u h(u) + ‖u − v‖² / (2ρ), which
is a projection where h is a constraint. It applies to one node's pytree.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import optax.projections
from jax import Array

from ..core._types import PyTree, Scalar

__all__ = ["Prox", "ball", "box", "group_l2", "l1", "nonnegative", "simplex"]


class Prox(eqx.Module):
    """Base class of proximal maps.

    Attributes:
        is_box: whether it projects every entry by itself, so that it is the same under any scaling of the entries.
    """

    is_box: ClassVar[bool] = False

    @abstractmethod
    def __call__(self, tree: PyTree, rate: Scalar) -> PyTree:
        """prox_ρ of one node's variable.

        Args:
            tree: v, a pytree.
            rate: ρ, the step size; a projection does not depend on it.
        """


class Box(Prox):
    """low ≤ x ≤ high, entry by entry."""

    low: Array | float
    high: Array | float
    is_box: ClassVar[bool] = True

    def __call__(self, tree: PyTree, rate: Scalar) -> PyTree:
        clip = lambda leaf: jnp.clip(leaf, jnp.asarray(self.low, leaf.dtype), jnp.asarray(self.high, leaf.dtype))  # noqa: E731
        return jax.tree.map(clip, tree)


class Simplex(Prox):
    """x ≥ 0 with sum `total` over all entries."""

    total: float

    def __call__(self, tree: PyTree, rate: Scalar) -> PyTree:
        with jax.numpy_dtype_promotion("standard"):
            return optax.projections.projection_simplex(tree, self.total)


class Ball(Prox):
    """‖x‖₂ ≤ radius."""

    radius: float

    def __call__(self, tree: PyTree, rate: Scalar) -> PyTree:
        with jax.numpy_dtype_promotion("standard"):
            return optax.projections.projection_l2_ball(tree, self.radius)


class L1(Prox):
    """strength · ‖x‖₁."""

    strength: float

    def __call__(self, tree: PyTree, rate: Scalar) -> PyTree:
        def shrink(leaf: Array) -> Array:
            cut = jnp.asarray(rate, leaf.dtype) * jnp.asarray(self.strength, leaf.dtype)
            return jnp.sign(leaf) * jnp.maximum(jnp.abs(leaf) - cut, 0)

        return jax.tree.map(shrink, tree)


class GroupL2(Prox):
    """strength · Σ over groups of ‖x_g‖₂; a group is a row, the last axis of a leaf."""

    strength: float

    def __call__(self, tree: PyTree, rate: Scalar) -> PyTree:
        def shrink(leaf: Array) -> Array:
            cut = jnp.asarray(rate, leaf.dtype) * jnp.asarray(self.strength, leaf.dtype)
            norm = jnp.sqrt(jnp.sum(jnp.square(leaf), -1, keepdims=True))
            return leaf * jnp.maximum(1 - cut / jnp.maximum(norm, jnp.finfo(leaf.dtype).tiny), 0)

        return jax.tree.map(shrink, tree)


def nonnegative() -> Prox:
    """x ≥ 0, entry by entry."""
    return Box(0.0, float("inf"))


def box(low: float | Array = -float("inf"), high: float | Array = float("inf")) -> Prox:
    """low ≤ x ≤ high, entry by entry.

    Args:
        low: a number, or an array of the shape of x if x is a single array.
        high: likewise.
    """
    if isinstance(low, float | int) and isinstance(high, float | int) and not low <= high:
        raise ValueError(f"low={low!r} is above high={high!r}: give low ≤ high.")
    return Box(*(float(end) if isinstance(end, float | int) else jnp.asarray(end) for end in (low, high)))


def simplex(total: float = 1.0) -> Prox:
    """x ≥ 0 with a given sum over all entries, such as mixture weights.

    Args:
        total: the sum.
    """
    return Simplex(_positive("total", total))


def ball(radius: float = 1.0) -> Prox:
    """‖x‖₂ ≤ radius, over all entries.

    Args:
        radius: of the ball around zero.
    """
    return Ball(_positive("radius", radius))


def l1(strength: float) -> Prox:
    """The term strength · ‖x‖₁, which makes entries exactly zero.

    Args:
        strength: the factor.
    """
    return L1(_positive("strength", strength))


def group_l2(strength: float) -> Prox:
    """The term strength · Σ ‖row‖₂ over the rows (the last axis) of every leaf, which makes rows exactly zero.

    Args:
        strength: the factor.
    """
    return GroupL2(_positive("strength", strength))


def _positive(name: str, value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise ValueError(f"{name}={value!r} must be a positive number.")
    return float(value)
