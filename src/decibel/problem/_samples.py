"""Every node's private samples, and the batches drawn from them, in which padding never occurs.

Nodes may hold different numbers of samples. They are stored side by side, a short node repeating its *own* samples, so
that whatever index is drawn names a real sample of the right node. The exact mean over n_i samples is a weighted sum
of means over chunks whose sizes are common to all nodes: the smallest n, then powers of two for the binary digits of
n_i minus that. A chunk that a node does not need gets weight zero. So one program serves all nodes, exactly.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float, Int, Key, Shaped, UInt32

from ..core._arrays import on_device
from ..core._types import PyTree
from ._batch import Batch


class NodeData(eqx.Module):
    """Samples of all nodes: leaves (nodes, most samples of any node, ...)."""

    tree: PyTree
    counts: Int[Array, " nodes"]  # samples of each node
    offsets: Int[Array, "nodes parts"] | None  # where each part of the full batch begins
    weights: Float[Array, "nodes parts"] | None  # its share of the mean; None where all nodes hold equally many
    part_sizes: tuple[int, ...] = eqx.field(static=True)
    samples_per_node: float = eqx.field(static=True)  # the average, for the ledger

    @property
    def nodes(self) -> int:
        return self.counts.shape[0]

    @property
    def sample(self) -> PyTree:
        """The shapes and types of a batch of one sample."""
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((1, *leaf.shape[2:]), leaf.dtype), self.tree)

    def full(self, *, lazy: bool = False) -> Batch:
        """All samples; with `lazy`, rows are gathered node by node, which needs less memory."""
        if self.offsets is None:
            return Batch((self.tree,))
        spans = [self.offsets[:, k, None] + jnp.arange(size, dtype=jnp.int32) for k, size in enumerate(self.part_sizes)]
        return self._batch(spans, lazy, self.weights)

    def repeated(self) -> NodeData:
        """The same samples, of which short nodes repeat theirs up to the number of the longest: a single part."""
        most = jax.tree.leaves(self.tree)[0].shape[1]
        return NodeData(self.tree, jnp.full_like(self.counts, most), None, None, (most,), float(most))

    def draw(self, bits: UInt32[Array, "nodes batch"], *, lazy: bool = False) -> Batch:
        """A batch drawn with replacement by uniform `bits`."""
        return self._batch([index_below(bits, self.counts[:, None])], lazy)

    def in_order(self, position: Int[Array, ""] | int, size: int, *, lazy: bool = False) -> Batch:
        """The batch at that position of the samples' order, which repeats: consecutive rows, so nothing is gathered
        where nodes hold equally many."""
        if self.offsets is None and not lazy:
            start = size * (position % max(1, self.part_sizes[0] // size))

            def take(leaf: Array) -> Array:
                return jax.lax.dynamic_slice_in_dim(leaf, start, size, axis=1)

            return Batch((jax.tree.map(take, self.tree),))
        starts = size * (position % jnp.maximum(1, self.counts // size))
        return self._batch([starts[:, None] + jnp.arange(size, dtype=jnp.int32)], lazy)

    def shuffled(self, key: Key[Array, ""], node_ids: Int[Array, " nodes"]) -> NodeData:
        """Every node's samples in an order of its own, and repeated as before where it holds fewer than others."""
        indices = random_order(key, node_ids, self.counts, jax.tree.leaves(self.tree)[0].shape[1])
        return eqx.tree_at(lambda data: data.tree, self, self._take(indices))

    def _batch(
        self, rows: list[Int[Array, "nodes _"]], lazy: bool, weights: Float[Array, "nodes parts"] | None = None
    ) -> Batch:
        if lazy:
            return Batch((self.tree,) * len(rows), weights, tuple(rows))
        return Batch(tuple(map(self._take, rows)), weights)

    def _take(self, indices: Int[Array, "nodes samples"]) -> PyTree:
        pick = jax.vmap(lambda leaf, index: leaf.at[index].get(mode="promise_in_bounds"))
        return jax.tree.map(lambda leaf: pick(leaf, indices), self.tree)


def random_order(
    key: Key[Array, ""], node_ids: Int[Array, " nodes"], counts: Int[Array, " nodes"], most: int
) -> Int[Array, "nodes most"]:
    """An order of every node's samples, which begins again where a node holds fewer than `most`."""
    places = jnp.arange(most, dtype=jnp.int32)

    def order(node: Int[Array, ""], count: Int[Array, ""]) -> Int[Array, " most"]:
        chance = jax.random.uniform(jax.random.fold_in(key, node), (most,), jnp.float32)
        return jnp.argsort(jnp.where(places < count, chance, 2.0))[places % count]

    return jax.vmap(order)(node_ids, counts)


def index_below(bits: UInt32[Array, "*shape"], count: Int[Array, ...]) -> Int[Array, "*shape"]:
    """floor(bits · count / 2³²): a uniform index below `count`, in 32-bit arithmetic (count < 2³¹)."""
    low, high = jnp.uint32(0xFFFF), jnp.uint32(16)
    count = count.astype(jnp.uint32)
    a = bits >> high
    b = bits & low
    c = count >> high
    d = count & low
    middle = a * d + ((b * d) >> high)
    carry = (middle & low) + b * c
    return (a * c + (middle >> high) + (carry >> high)).astype(jnp.int32)


def node_data(source: PyTree, argument: str, dtype: DTypeLike) -> NodeData:
    """Samples from arrays (nodes, samples, ...) or from a list with one pytree per node."""
    if isinstance(source, list):
        per_node, counts = count_nodes(source, argument)
        tree = stack_nodes(per_node, counts, int(counts.max()))
    else:
        tree = as_numpy(source, argument)
        leaves = jax.tree.leaves(tree)
        if not leaves:
            raise ValueError(f"{argument} holds no arrays: give leaves of shape (nodes, samples, ...).")
        shapes = {leaf.shape[:2] for leaf in leaves}
        if len(shapes) != 1 or len(next(iter(shapes))) != 2:
            raise ValueError(
                f"{argument} must have leaves of shape (nodes, samples, ...) with equal nodes and samples, but they "
                f"begin with {sorted(shapes)}; for nodes of unequal size give a list with one pytree per node."
            )
        nodes, samples = next(iter(shapes))
        counts = np.full(nodes, samples)
        _validate_not_empty(counts, argument)
    validate_numeric(tree, argument)
    validate_finite(tree, argument)
    return lay_out(jax.tree.map(lambda leaf: on_device(as_float(leaf, dtype)), tree), counts)


def count_nodes(source: list[PyTree], argument: str) -> tuple[list[PyTree], Int[np.ndarray, " nodes"]]:
    """Every node's samples as NumPy arrays, and how many there are."""
    if not source:
        raise ValueError(f"{argument} is an empty list: give one pytree of samples per node.")
    per_node = [as_numpy(node, argument) for node in source]
    structures = {jax.tree.structure(node) for node in per_node}
    if len(structures) != 1:
        raise ValueError(f"{argument} has nodes of different structure: give every node the same pytree.")
    counts = np.array([_samples(node, f"{argument}[{i}]") for i, node in enumerate(per_node)])
    _validate_not_empty(counts, argument)
    return per_node, counts


def as_numpy(tree: PyTree, argument: str) -> PyTree:
    """The tree with NumPy arrays; raises with a fix if PyTorch does not give them."""
    try:
        return jax.tree.map(np.asarray, tree)
    except (RuntimeError, TypeError) as error:
        kinds = {type(leaf).__module__.partition(".")[0] for leaf in jax.tree.leaves(tree)}
        if "torch" not in kinds:
            raise
        fix = "give tensor.detach().cpu().numpy()"
        raise TypeError(f"{argument} holds tensors of PyTorch that NumPy cannot read: {fix}.") from error


def stack_nodes(per_node: list[PyTree], counts: Int[np.ndarray, " nodes"], most: int) -> PyTree:
    """Leaves (nodes, most, ...), a short node repeating its own samples."""
    repeat = [np.arange(most) % n for n in counts]
    return jax.tree.map(lambda *leaves: np.stack([leaf[i] for leaf, i in zip(leaves, repeat, strict=True)]), *per_node)


def lay_out(tree: PyTree, counts: Int[np.ndarray, " nodes"]) -> NodeData:
    """The plan of the exact mean over nodes of these counts."""
    least = int(counts.min())
    rest = counts - least
    mean, counts_on_device = float(counts.mean()), on_device(counts, np.int32)
    if not rest.any():
        return NodeData(tree, counts_on_device, None, None, (least,), mean)
    powers = 2 ** np.arange(int(rest.max()).bit_length())
    used = (rest[:, None] // powers) % 2  # (nodes, powers) binary digits
    before = least + np.cumsum(used * powers, axis=1) - used * powers
    offsets = np.concatenate([np.zeros_like(counts)[:, None], np.where(used, before, 0)], axis=1)
    weights = np.concatenate([np.full_like(counts, least)[:, None], used * powers], axis=1) / counts[:, None]
    sizes = (least, *powers.tolist())
    return NodeData(tree, counts_on_device, on_device(offsets, np.int32), on_device(weights), sizes, mean)


def _samples(node: PyTree, argument: str) -> int:
    if any(leaf.ndim == 0 for leaf in jax.tree.leaves(node)):
        raise TypeError(f"{argument} holds single numbers: give arrays, such as np.array({argument}).")
    lengths = {leaf.shape[0] for leaf in jax.tree.leaves(node)}
    if not lengths:
        raise ValueError(f"{argument} holds no arrays: give every node leaves of shape (samples, ...).")
    if len(lengths) != 1:
        raise ValueError(f"{argument} has leaves with {sorted(lengths)} samples: give all leaves equally many.")
    return lengths.pop()


def _validate_not_empty(counts: Int[np.ndarray, " nodes"], argument: str) -> None:
    empty = np.flatnonzero(counts == 0)
    if empty.size:
        raise ValueError(f"{argument} has no samples at node {empty[0]}: leave that node out or give it data.")


def validate_numeric(tree: PyTree, argument: str) -> None:
    for leaf in jax.tree.leaves(tree):
        if leaf.dtype.kind not in "fiubcV":  # V: JAX's own small floats
            raise TypeError(f"{argument} holds {leaf.dtype} instead of numbers: encode words and labels as integers.")


def validate_finite(tree: PyTree, argument: str) -> None:
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if jnp.issubdtype(leaf.dtype, jnp.inexact) and not np.isfinite(leaf).all():
            bad = np.argwhere(~np.isfinite(leaf))[0]
            raise ValueError(
                f"{argument}{jax.tree_util.keystr(path)} holds a NaN or infinity at node {bad[0]}, sample {bad[1]}: "
                "clean or drop it."
            )


def as_float(leaf: Shaped[np.ndarray, "*shape"], dtype: DTypeLike) -> Shaped[np.ndarray, "*shape"]:
    """Floating-point samples take the run's dtype; labels stay what they are."""
    return leaf.astype(dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf
