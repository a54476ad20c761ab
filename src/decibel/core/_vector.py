"""A pytree with the arithmetic of a vector, so that a step reads like its equation."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Shaped

from ._types import PyTree, Scalar

T = TypeVar("T")  # a pytree, given back in the same structure


@jax.tree_util.register_pytree_node_class
class Vector:
    """The variable of one level at every node: a pytree whose leaves have the node axis first.

    Vectors can be added, subtracted, negated, and multiplied by a number from the left.

    Args:
        tree: the pytree, with leaves (nodes, ...).
    """

    __slots__ = ("tree",)

    def __init__(self, tree: PyTree) -> None:
        self.tree = tree

    def tree_flatten(self) -> tuple[tuple[PyTree], None]:
        return (self.tree,), None

    @classmethod
    def tree_unflatten(cls, _: None, children: tuple[PyTree]) -> Vector:
        return cls(children[0])

    def _zip(self, other: Vector, op: Callable[[Array, Array], Array]) -> Vector:
        return Vector(jax.tree.map(op, self.tree, other.tree))

    def __add__(self, other: Vector) -> Vector:
        return self._zip(other, operator.add)

    def __sub__(self, other: Vector) -> Vector:
        return self._zip(other, operator.sub)

    def __neg__(self) -> Vector:
        return Vector(jax.tree.map(operator.neg, self.tree))

    def __rmul__(self, factor: Scalar) -> Vector:
        # The factor takes the leaf's dtype: a schedule's float32 must neither promote nor demote a state.
        return Vector(jax.tree.map(lambda leaf: jnp.asarray(factor, leaf.dtype) * leaf, self.tree))

    def zeros(self) -> Vector:
        """Zeros of the same shape."""
        return Vector(jax.tree.map(jnp.zeros_like, self.tree))

    def mean(self) -> PyTree:
        """The average over nodes, as the user's own pytree."""
        return jax.tree.map(lambda leaf: leaf.mean(0), self.tree)

    def centred(self) -> Vector:
        """The difference from the average over nodes."""
        return Vector(jax.tree.map(lambda leaf: leaf - leaf.mean(0, keepdims=True), self.tree))

    def squared_norms(self, axes: int = 1) -> Float[Array, " nodes *axes"]:
        """(nodes,) squared Euclidean norms; with more `axes`, over the remaining axes."""
        flat = [leaf.reshape(*leaf.shape[:axes], -1) for leaf in jax.tree.leaves(self.tree)]
        return functools.reduce(operator.add, [jnp.sum(jnp.square(leaf), -1) for leaf in flat])

    def __repr__(self) -> str:
        return f"Vector({self.tree!r})"


def replicate(tree: PyTree, nodes: int) -> Vector:
    """Every node's copy of a common start."""
    return Vector(jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (nodes, *jnp.shape(leaf))), tree))


def dots(a: Vector, b: Vector) -> Float[Array, " nodes"]:
    """(nodes,) inner products."""

    def flat(leaf: Array) -> Array:
        return leaf.reshape(leaf.shape[0], -1)

    parts = jax.tree.map(lambda x, y: jnp.sum(flat(x) * flat(y), 1), a.tree, b.tree)
    return jax.tree.reduce(jnp.add, parts)


def scale_nodes(factors: Float[Array, "*axes"], vector: Vector) -> Vector:
    """Every node's vector times its own factor (or a common one)."""

    def shaped(leaf: Array) -> Array:
        return expand_to(factors, leaf).astype(leaf.dtype)

    return Vector(jax.tree.map(lambda leaf: shaped(leaf) * leaf, vector.tree))


def choose(which: Bool[Array, "*axes"], a: T, b: T) -> T:
    """Leaf by leaf, a at the nodes for which `which` is true and b at the others."""
    return jax.tree.map(lambda x, y: jnp.where(expand_to(which, x), x, y), a, b)


def expand_to(values: Shaped[Array, "*axes"], leaf: Shaped[Array, ...]) -> Shaped[Array, ...]:
    """`values` with trailing axes of length 1, so that it broadcasts against `leaf`."""
    return jnp.reshape(values, (*jnp.shape(values), *(1,) * (leaf.ndim - jnp.ndim(values))))


def nonzero_divisor(values: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """The values, at least the smallest normal number: safe to divide by where a node has nothing left to solve."""
    return jnp.maximum(values, jnp.finfo(values.dtype).tiny)


def max_or_nan(values: Float[Array, "*shape"]) -> Float[Array, ""]:
    """The largest entry, or NaN if any is NaN: on a CPU, XLA's reduction drops NaN from arrays of a few thousand."""
    return jnp.where(jnp.isnan(values).any(), jnp.nan, values.max())


def min_or_nan(values: Float[Array, "*shape"]) -> Float[Array, ""]:
    return -max_or_nan(-values)


def flatten(
    tree: T,
) -> tuple[Shaped[Array, "nodes entries"], Callable[[Shaped[Array, "nodes entries"]], T]]:
    """All leaves (nodes, ...) of a vector, or of several, as one (nodes, entries) array; and the way back."""
    leaves, structure = jax.tree.flatten(tree)
    flat = [leaf.reshape(leaf.shape[0], -1) for leaf in leaves]
    ends = np.cumsum([part.shape[1] for part in flat])[:-1].tolist()

    def unflatten(flat: Shaped[Array, "nodes entries"]) -> T:
        parts = jnp.split(flat, ends, axis=1)
        shaped = [part.reshape(leaf.shape) for part, leaf in zip(parts, leaves, strict=True)]
        return jax.tree.unflatten(structure, shaped)

    return jnp.concatenate(flat, axis=1), unflatten
