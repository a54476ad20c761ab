"""Batches of samples, on which a loss is evaluated: the one place that calls a loss."""

from __future__ import annotations

import operator
from dataclasses import replace
from functools import partial, reduce

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int, Key

from ..core._convolutions import rewritten_loss
from ..core._types import Loss, PyTree
from ._keyed import takes_key


class Batch(eqx.Module):
    """Parts of a batch, leaves (nodes, samples, ...), and each part's share of the mean, (nodes, parts) or None.

    Where `rows` are given, (nodes, samples) for each part, nothing was taken yet: the parts are all samples there are.
    """

    parts: tuple[PyTree, ...]
    weights: Float[Array, "*nodes parts"] | None = None
    rows: tuple[Int[Array, "*nodes _"], ...] | None = None
    keys: Key[Array, "*nodes"] | None = None  # of a loss that takes one; None is evaluation mode
    micro_batch: int | None = eqx.field(static=True, default=None)  # how many samples are evaluated at once
    narrow: bool = eqx.field(static=True, default=False)  # evaluated in bfloat16

    def mean(self, loss: Loss, *point: PyTree) -> Array:
        """A loss, itself a mean over its batch, at one node of a vmapped batch."""
        keys = [self._key(k) for k in range(len(self.parts))]
        values = [self._in_pieces(loss, point, part, key) for part, key in zip(self.parts, keys, strict=True)]
        if self.weights is None:
            return values[0]
        shares = [self.weights[k].astype(value.dtype) * value for k, value in enumerate(values)]
        return reduce(operator.add, shares)

    def _key(self, part: int) -> Key[Array, ""] | None:
        return self.keys if self.keys is None or len(self.parts) == 1 else jax.random.fold_in(self.keys, part)

    def _in_pieces(self, loss: Loss, point: tuple[PyTree, ...], part: PyTree, key: Key[Array, ""] | None) -> Array:
        """The mean over a part, `micro_batch` samples at a time; a derivative computes each piece's activations again
        instead of keeping those of all."""
        samples, size = jax.tree.leaves(part)[0].shape[0], self.micro_batch
        if size is None or samples <= size:
            return self._value(loss, point, part, key)
        count = samples // size
        value = jax.checkpoint(partial(self._value, loss))

        def split(leaf: Array) -> Array:
            return leaf[: count * size].reshape(count, size, *leaf.shape[1:])

        numbers = jnp.arange(count, dtype=jnp.int32)

        def add(total: Array, piece: tuple[Array, PyTree]) -> tuple[Array, None]:
            number, samples = piece
            return total + value(point, samples, None if key is None else jax.random.fold_in(key, number)), None

        start = jnp.zeros((), jax.eval_shape(value, point, jax.tree.map(lambda leaf: leaf[:size], part), key).dtype)
        total, _ = jax.lax.scan(add, start, (numbers, jax.tree.map(split, part)))
        if samples == count * size:
            return total / count
        rest = jax.tree.map(lambda leaf: leaf[count * size :], part)
        last = value(point, rest, None if key is None else jax.random.fold_in(key, count))
        return (size * total + (samples - count * size) * last) / samples

    def _value(self, loss: Loss, point: tuple[PyTree, ...], samples: PyTree, key: Key[Array, ""] | None) -> Array:
        options = {"key": key} if takes_key(loss) else {}
        loss = rewritten_loss(loss)
        if not self.narrow:
            return loss(*point, samples, **options)
        wide = jnp.result_type(*jax.tree.leaves(point[0]))
        return loss(*_narrowed(point), _narrowed(samples), **options).astype(wide)

    def singles(self) -> tuple[Batch, ...]:
        """One node's parts, each as a batch for every sample: leaves (samples, 1, ...)."""

        def of_part(number: int, part: PyTree) -> Batch:
            key, samples = self._key(number), jax.tree.leaves(part)[0].shape[0]
            keys = None if key is None else jax.random.split(key, samples)
            return Batch((jax.tree.map(lambda leaf: leaf[:, None], part),), keys=keys, narrow=self.narrow)

        return tuple(of_part(number, part) for number, part in enumerate(self.parts))

    @property
    def samples(self) -> int:
        """Of one node's batch, which was drawn."""
        return jax.tree.leaves(self.parts[0])[0].shape[0]

    @property
    def per_node(self) -> PyTree:
        """What has a row for every node, to be mapped over and given to `of_node`."""
        return self if self.rows is None else (jnp.arange(len(self.rows[0])), self.rows, self.weights, self.keys)

    def of_node(self, mapped: PyTree) -> Batch:
        """One node's batch, taken now."""
        if self.rows is None:
            return mapped
        node, rows, weights, keys = mapped

        def take(leaf: Array, row: Array) -> Array:
            return leaf.at[node, row].get(mode="promise_in_bounds")

        parts = [jax.tree.map(partial(take, row=row), part) for part, row in zip(self.parts, rows, strict=True)]
        return replace(self, parts=tuple(parts), weights=weights, rows=None, keys=keys)


def _narrowed(tree: PyTree) -> PyTree:
    def cast(leaf: Array) -> Array:
        return leaf.astype(jnp.bfloat16) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf

    return jax.tree.map(cast, tree)
