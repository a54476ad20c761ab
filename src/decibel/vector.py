"""A pytree with the arithmetic of a vector, so that a step reads like its equation."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

Scalar = float | Array


@jax.tree_util.register_pytree_node_class
class Vector:
    """One level's variable at every node: any pytree whose leaves have the node axis first."""

    __slots__ = ("tree",)

    def __init__(self, tree: Any) -> None:
        self.tree = tree

    def tree_flatten(self) -> tuple[tuple[Any], None]:
        return (self.tree,), None

    @classmethod
    def tree_unflatten(cls, _: None, children: tuple[Any]) -> Vector:
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
        return Vector(jax.tree.map(jnp.zeros_like, self.tree))

    def mean(self) -> Any:
        """The average over nodes, as the user's own pytree."""
        return jax.tree.map(lambda leaf: leaf.mean(0), self.tree)

    def centred(self) -> Vector:
        """Less its average over nodes."""
        return Vector(jax.tree.map(lambda leaf: leaf - leaf.mean(0, keepdims=True), self.tree))

    def squared_norms(self) -> Array:
        """(nodes,) squared Euclidean norms."""
        squares = [jnp.sum(jnp.square(leaf.reshape(leaf.shape[0], -1)), 1) for leaf in jax.tree.leaves(self.tree)]
        return functools.reduce(operator.add, squares)

    def bytes_per_node(self) -> int:
        return sum(leaf[0].size * leaf.dtype.itemsize for leaf in jax.tree.leaves(self.tree))

    def __repr__(self) -> str:
        return f"Vector({self.tree!r})"


def replicate(tree: Any, nodes: int) -> Vector:
    """Every node's copy of a common start."""
    return Vector(jax.tree.map(lambda leaf: jnp.repeat(jnp.asarray(leaf)[None], nodes, 0), tree))


def flatten(vector: Vector) -> tuple[Array, Callable[[Array], Vector]]:
    """(nodes, size) and the way back."""
    leaves, structure = jax.tree.flatten(vector.tree)
    sizes = [leaf[0].size for leaf in leaves]
    flat = jnp.concatenate([leaf.reshape(leaf.shape[0], -1) for leaf in leaves], axis=1)

    def unflatten(flat: Array) -> Vector:
        ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
        parts = jnp.split(flat, ends[:-1], axis=1)
        shaped = [part.reshape(leaf.shape) for part, leaf in zip(parts, leaves, strict=True)]
        return Vector(jax.tree.unflatten(structure, shaped))

    return flat, unflatten
