"""Constraints and non-smooth terms of the upper level: `Problem(..., prox_x=db.prox.simplex())`.

A term h enters by its proximal map prox_ρ(v) = argmin_u h(u) + ‖u − v‖² / (2ρ), which is a projection if h is a
constraint. It applies to one node's pytree. It is the same at every node, or each has its own h_i by `per_node`, and
then Φ has the term 1/N Σ_i h_i.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Int

from ..core._numbers import is_number
from ..core._types import PyTree, Scalar

__all__ = ["Prox", "ball", "box", "group_l2", "l1", "nonnegative", "per_node", "simplex"]


class Prox(eqx.Module):
    """Base class of proximal maps.

    Attributes:
        is_projection: whether it projects onto a convex set, so that it is the same for any step size.
        is_box: whether it projects every entry by itself, so that it is the same under any scaling of the entries.
    """

    is_projection: ClassVar[bool] = False
    is_box: ClassVar[bool] = False

    @abstractmethod
    def __call__(self, tree: PyTree, rate: Scalar) -> PyTree:
        """prox_ρ of one node's variable.

        Args:
            tree: v, a pytree.
            rate: ρ, the step size; a projection does not depend on it.
        """

    @property
    def nodes(self) -> int | None:
        """How many nodes have a term of their own; None if it is the same at all nodes."""
        return None

    def at(self, node_ids: Int[Array, " nodes"]) -> Prox:
        """The maps of the nodes with these ids."""
        return self

    def over_nodes(self, tree: PyTree, rate: Scalar) -> PyTree:
        """prox_ρ of every node's variable, with leaves (nodes, ...); ρ is a number, or one for each node."""
        return jax.vmap(self, (0, None if jnp.ndim(rate) == 0 else 0))(tree, rate)

    def average(self) -> Prox | None:
        """The map of 1/N Σ_i h_i, where this one's parameters have a leading axis of nodes; None if not known."""
        return None


class Box(Prox):
    """low ≤ x ≤ high, entry by entry."""

    low: Array | float
    high: Array | float
    is_projection: ClassVar[bool] = True
    is_box: ClassVar[bool] = True

    def __call__(self, tree: PyTree, rate: Scalar) -> PyTree:
        def clip(leaf: Array) -> Array:
            return jnp.clip(leaf, jnp.asarray(self.low, leaf.dtype), jnp.asarray(self.high, leaf.dtype))

        return jax.tree.map(clip, tree)

    def average(self) -> Box:
        """What all boxes have in common."""
        return Box(jnp.max(jnp.asarray(self.low), 0), jnp.min(jnp.asarray(self.high), 0))


class Simplex(Prox):
    """x ≥ `floor` with sum `total` over all entries."""

    total: Array | float
    floor: Array | float = 0.0
    is_projection: ClassVar[bool] = True

    def __call__(self, tree: PyTree, rate: Scalar) -> PyTree:
        entries = sum(leaf.size for leaf in jax.tree.leaves(tree))
        if isinstance(self.floor, float) and isinstance(self.total, float) and entries * self.floor > self.total:
            raise ValueError(
                f"floor={self.floor:g} is too high for {entries} entries of sum {self.total:g}: give at most "
                f"{self.total / entries:g}."
            )
        from optax.projections import projection_simplex  # takes a tenth of a second

        with jax.numpy_dtype_promotion("standard"):
            if isinstance(self.floor, float) and self.floor == 0:
                return _like(tree, projection_simplex(tree, self.total))
            above = jax.tree.map(lambda leaf: leaf - self.floor, tree)
            above = projection_simplex(above, self.total - entries * self.floor)
            return _like(tree, jax.tree.map(lambda leaf: jnp.maximum(leaf, 0) + self.floor, above))

    def average(self) -> Simplex:
        """The simplex itself, above the highest floor: those of other sums have no point in common with it."""
        return Simplex(jnp.asarray(self.total)[0], jnp.max(jnp.asarray(self.floor)))


class Ball(Prox):
    """‖x‖₂ ≤ radius."""

    radius: Array | float
    is_projection: ClassVar[bool] = True

    def __call__(self, tree: PyTree, rate: Scalar) -> PyTree:
        from optax.projections import projection_l2_ball

        with jax.numpy_dtype_promotion("standard"):
            return _like(tree, projection_l2_ball(tree, self.radius))

    def average(self) -> Ball:
        """The smallest ball."""
        return Ball(jnp.min(jnp.asarray(self.radius), 0))


class Norm(Prox):
    """strength times a norm, whose map shrinks."""

    strength: Array | float

    @abstractmethod
    def shrunk(self, leaf: Array, cut: Array) -> Array:
        """A leaf, shortened by `cut` in its norm."""

    def __call__(self, tree: PyTree, rate: Scalar) -> PyTree:
        def shrink(leaf: Array) -> Array:
            return self.shrunk(leaf, jnp.asarray(rate, leaf.dtype) * jnp.asarray(self.strength, leaf.dtype))

        return jax.tree.map(shrink, tree)

    def average(self) -> Norm:
        """The term of the average strength."""
        return type(self)(jnp.mean(jnp.asarray(self.strength), 0))


class L1(Norm):
    """strength · ‖x‖₁."""

    def shrunk(self, leaf: Array, cut: Array) -> Array:
        return jnp.sign(leaf) * jnp.maximum(jnp.abs(leaf) - cut, 0)


class GroupL2(Norm):
    """strength · Σ over groups of ‖x_g‖₂; a group is a row, the last axis of a leaf."""

    def shrunk(self, leaf: Array, cut: Array) -> Array:
        norm = jnp.sqrt(jnp.sum(jnp.square(leaf), -1, keepdims=True))
        return leaf * jnp.maximum(1 - cut / jnp.maximum(norm, jnp.finfo(leaf.dtype).tiny), 0)


class PerNode(Prox):
    """A term for each node, of one kind or several. Every node computes all kinds and takes its own."""

    kinds: tuple[Prox, ...]  # one of each kind, whose parameters have the node axis first
    which: Int[Array, " nodes"]  # the kind of each node

    def __call__(self, tree: PyTree, rate: Scalar) -> PyTree:
        """prox_ρ of one node's variable, where these are one node's parameters (see `over_nodes`)."""
        results = [kind(tree, rate) for kind in self.kinds]
        return jax.tree.map(lambda *leaves: jnp.stack(leaves)[self.which], *results)

    @property
    def nodes(self) -> int:
        return self.which.shape[0]

    def at(self, node_ids: Int[Array, " nodes"]) -> PerNode:
        return jax.tree.map(lambda leaf: leaf[node_ids], self)

    def over_nodes(self, tree: PyTree, rate: Scalar) -> PyTree:
        axes = (0, 0, None if jnp.ndim(rate) == 0 else 0)
        return jax.vmap(PerNode.__call__, axes)(self, tree, rate)

    def average(self) -> Prox | None:
        """None where there are terms of several kinds."""
        return self.kinds[0].average() if len(self.kinds) == 1 else None


def nonnegative() -> Prox:
    """x ≥ 0, entry by entry."""
    return Box(0.0, float("inf"))


def box(low: float | Array | np.ndarray = -float("inf"), high: float | Array | np.ndarray = float("inf")) -> Prox:
    """low ≤ x ≤ high, entry by entry.

    Args:
        low: a number, or an array of the shape of x if x is a single array.
        high: likewise.
    """
    if isinstance(low, float | int) and isinstance(high, float | int) and not low <= high:
        raise ValueError(f"low={low!r} is above high={high!r}: give low ≤ high.")
    return Box(*(float(end) if isinstance(end, float | int) else jnp.asarray(end) for end in (low, high)))


def simplex(total: float = 1.0, *, floor: float = 0.0) -> Prox:
    """x ≥ 0 with a given sum over all entries, such as mixture weights.

    Args:
        total: the sum.
        floor: the least value of an entry, instead of 0.
    """
    return Simplex(_positive("total", total), _positive("floor", floor) if floor else 0.0)


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


def per_node(terms: Sequence[Prox | None]) -> Prox:
    """A term h_i for each node, so that Φ has the term 1/N Σ_i h_i; of constraints, all must hold.

    Level x then needs the strategy `"extra"` or `"nids"`: others do not end at a solution. Every device and every site
    holds all terms.

    Args:
        terms: one for each node, in the order of nodes; None is no term. Constraints need a point in common.
    """
    for node, term in enumerate(terms):
        if term is not None and (not isinstance(term, Prox) or term.nodes is not None):
            raise TypeError(
                f"terms[{node}] is a {type(term).__name__}: give one of db.prox for a single node, or None."
            )
    every = [Box(-float("inf"), float("inf")) if term is None else term for term in terms]
    if not every:
        raise ValueError("terms is empty: give one for each node.")
    structures = list(dict.fromkeys(map(jax.tree.structure, every)))
    kind_of = [structures.index(jax.tree.structure(term)) for term in every]
    kinds = []
    for kind in range(len(structures)):
        filler = every[kind_of.index(kind)]  # for nodes whose term is of another kind
        kinds.append(_stacked([term if k == kind else filler for term, k in zip(every, kind_of, strict=True)]))
    if any(map(_is_infeasible, kinds)):
        raise ValueError("terms has constraints that have no point in common: give sets that overlap.")
    return PerNode(tuple(kinds), jnp.asarray(kind_of, jnp.int32))


def _stacked(terms: list[Prox]) -> Prox:
    """Terms of one kind as one, whose parameters have the node axis first."""

    def stack(*leaves: Array | float) -> Array:
        try:
            return jnp.asarray(np.stack(np.broadcast_arrays(*leaves)))
        except ValueError:
            shapes = sorted({np.shape(leaf) for leaf in leaves})
            raise ValueError(f"terms has parameters of shapes {shapes}: give all nodes the same shape.") from None

    return jax.tree.map(stack, *terms)


def _is_infeasible(kind: Prox) -> bool:
    """Whether boxes or simplices of all nodes have no point in common."""
    if isinstance(kind, Box):
        common = kind.average()
        return bool(jnp.any(jnp.asarray(common.low) > jnp.asarray(common.high)))
    return isinstance(kind, Simplex) and bool(jnp.ptp(jnp.asarray(kind.total)) > 0)


def _like(tree: PyTree, result: PyTree) -> PyTree:
    """The result in the precision of the variable, which parameters and integers may have raised."""
    return jax.tree.map(lambda leaf, new: new.astype(leaf.dtype), tree, result)


def _positive(name: str, value: float) -> float:
    if not is_number(value) or not 0 < value < float("inf"):
        raise ValueError(f"{name}={value!r} must be a positive number.")
    return float(value)
