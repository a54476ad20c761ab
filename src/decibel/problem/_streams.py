"""Samples that are read from sources. A batch has the same indices as if the data were in memory.

It is read during the step (`Host`) or, if its indices are known in advance, before it (`decibel.engines._prefetch`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from typing import TypeAlias, TypeGuard

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.experimental import io_callback
from jax.sharding import NamedSharding, PartitionSpec
from jax.typing import DTypeLike
from jaxtyping import Float, Int, Key, UInt32

from ..core._types import Loss, PyTree
from ._batch import Batch
from ._samples import NodeData, index_below, node_data, random_order
from ._stream_backends import Host, Iterators, Sources
from .sources import BatchIterator, Source, is_source

PASS_BYTES = 64 * 2**20  # of the samples of all nodes that a pass over a stream takes at a time


Reader: TypeAlias = Callable[..., tuple[Array, ...]]  # of data and rows (nodes, batch): leaves (nodes, batch, ...)


def read_by_callback(data: StreamData, rows: Int[Array, "nodes batch"]) -> tuple[Array, ...]:
    """Reads on the host, in the middle of a step."""
    shapes = data.shapes(rows.shape)
    if data.host.ordered:
        return tuple(io_callback(data.host.call, shapes, data.node_ids, rows, ordered=True))
    return tuple(jax.pure_callback(data.host.call, shapes, data.node_ids, rows, vmap_method="broadcast_all"))


class StreamData(eqx.Module):
    """Samples of all nodes, read from a host; the counterpart of `NodeData`."""

    node_ids: Int[Array, " nodes"]  # for the host, which reads by node
    counts: Int[Array, " nodes"]  # samples of each node; of iterators 1
    order: Int[Array, "nodes most"] | None  # where samples are taken in a shuffled order
    host: Host = eqx.field(static=True)
    most: int = eqx.field(static=True)  # samples of any node
    part_sizes: tuple[int, ...] = eqx.field(static=True)  # the fewest of any node
    samples_per_node: float = eqx.field(static=True)
    reader: Reader | None = eqx.field(static=True, default=None)  # None is `read_by_callback`
    sharding: NamedSharding | None = eqx.field(static=True, default=None)  # where nodes are spread over devices

    @property
    def nodes(self) -> int:
        return self.counts.shape[0]

    @property
    def sample(self) -> PyTree:
        """The shapes and types of a batch of one sample."""
        return jax.tree.unflatten(self.host.structure, self.shapes((1,)))

    def shapes(self, before: tuple[int, ...]) -> tuple[jax.ShapeDtypeStruct, ...]:
        """The leaves of samples with these axes before their own."""
        return tuple(jax.ShapeDtypeStruct((*before, *kind.shape), kind.dtype) for kind in self.host.kinds)

    def full(self, *, lazy: bool = False) -> Batch:
        raise ValueError(
            f"{self.host.argument} is a stream, and the method uses all samples of a node at once: choose one that "
            "takes batches only, or give arrays."
        )

    def draw(self, bits: UInt32[Array, "nodes batch"], *, lazy: bool = False) -> Batch:
        """A batch drawn with replacement by uniform `bits`; of all nodes, also with `lazy`."""
        return self.at(index_below(bits, self.counts[:, None]))

    def in_order(self, position: Int[Array, ""] | int, size: int, *, lazy: bool = False) -> Batch:
        """The batch at that position of the shuffled order, which repeats."""
        assert self.order is not None
        starts = size * (position % jnp.maximum(1, self.counts // size))
        rows = starts[:, None] + jnp.arange(size, dtype=jnp.int32)
        return self.at(jax.vmap(lambda order, row: order.at[row].get(mode="clip"))(self.order, rows))

    def shuffled(self, key: Key[Array, ""], node_ids: Int[Array, " nodes"]) -> StreamData:
        """Every node's samples in an order of its own."""
        return replace(self, order=random_order(key, node_ids, self.counts, self.most))

    def at(self, rows: Int[Array, "nodes batch"]) -> Batch:
        """The samples of these indices."""
        leaves = (self.reader or read_by_callback)(self, rows)
        return Batch((jax.tree.unflatten(self.host.structure, leaves),))

    def select_nodes(self, nodes: Sequence[int], *, keep_longest: bool = True) -> StreamData:
        """The given nodes; shuffled orders keep the length of the largest node of all, or of these nodes only."""
        counts = np.asarray(self.counts)[list(nodes)]
        return stream_data(
            self.host, np.asarray(self.node_ids)[list(nodes)], counts, most=self.most if keep_longest else None
        )

    def digests(self) -> UInt32[np.ndarray, " nodes"]:
        """A number for the samples of each node that is read here; zero for the others."""
        assert isinstance(self.host, Sources)
        if isinstance(self.node_ids, jax.Array) and not self.node_ids.is_fully_addressable:
            return np.asarray([self.host.digest(node) for node in range(self.nodes)], np.uint32)
        return np.asarray([self.host.digest(node) for node in np.asarray(self.node_ids).tolist()], np.uint32)

    def read_by(self, reader: Reader) -> StreamData:
        return replace(self, reader=reader)

    def spread_by(self, sharding: NamedSharding) -> StreamData:
        """The same, for arrays that are spread over devices."""
        return replace(self, sharding=sharding)

    def means(self, loss: Loss, in_axes: tuple[int | None, int | None], *point: PyTree) -> Float[Array, " nodes"]:
        """Every node's mean over all its samples of `loss(*point, batch)`, itself a mean, in passes of limited size."""
        if self.sharding is None:
            return self._means(loss, in_axes, *point)
        mesh, by_node = self.sharding.mesh, self.sharding.spec
        specs = tuple(PartitionSpec() if axis is None else by_node for axis in in_axes)

        def local(data: StreamData, *point: PyTree) -> Float[Array, " nodes"]:
            return data._means(loss, in_axes, *point)

        spread = jax.shard_map(local, mesh=mesh, in_specs=(by_node, *specs), out_specs=by_node, check_vma=False)
        return spread(self, *point)

    def _means(self, loss: Loss, in_axes: tuple[int | None, int | None], *point: PyTree) -> Float[Array, " nodes"]:
        """Of the nodes on one device."""
        size = max(1, min(self.most, PASS_BYTES // max(1, self.nodes * self.host.sample_bytes)))
        places = jnp.arange(size, dtype=jnp.int32)

        def node(*arguments: PyTree) -> Float[Array, " size"]:
            *point, batch = arguments
            (singles,) = batch.singles()
            return jax.vmap(lambda sample: loss(*point, sample))(singles)

        def part(total: Float[Array, " nodes"], start: Int[Array, ""]) -> tuple[Float[Array, " nodes"], None]:
            rows = jnp.broadcast_to(start + places, (self.nodes, size))
            values = jax.vmap(node, (*in_axes, 0))(*point, self.at(jnp.minimum(rows, self.counts[:, None] - 1)))
            return total + jnp.where(rows < self.counts[:, None], values, 0).sum(1), None

        like = jax.eval_shape(lambda: part(jnp.zeros(self.nodes), jnp.int32(0))[0])
        starts = jnp.arange(0, self.most, size, dtype=jnp.int32)
        total, _ = jax.lax.scan(part, jnp.zeros(like.shape, like.dtype), starts)
        return total / self.counts.astype(total.dtype)


Samples: TypeAlias = NodeData | StreamData


def stream_data(
    host: Host, node_ids: Int[np.ndarray, " nodes"], counts: Int[np.ndarray, " nodes"], *, most: int | None = None
) -> StreamData:
    """The data of the nodes with these ids, and the number of samples of each."""
    on_device = (jnp.asarray(node_ids, jnp.int32), jnp.asarray(counts, jnp.int32))
    sizes = (int(counts.max()) if most is None else most, (int(counts.min()),), float(counts.mean()))
    return StreamData(*on_device, None, host, *sizes)


def validate_kind(source: object, argument: str) -> None:
    """Raises TypeError, with a fix, if data are neither arrays nor one pytree or source per node."""
    kind = type(source).__name__
    per_node = "a list with one source for each node"
    if isinstance(source, Iterator):
        raise TypeError(f"{argument} is a {kind}, which can be read only once: give a list with one pytree per node.")
    if isinstance(source, str | PathLike):
        raise TypeError(f"{argument} is the name of a file: read it, such as by np.load({argument}), and give arrays.")
    if isinstance(source, BatchIterator) or is_source(source):
        raise TypeError(
            f"{argument} is one {kind}: give {per_node}, such as [db.sources.items(part) for part in parts], or arrays."
        )
    if _is_loader(source):
        raise TypeError(
            f"{argument} is a {kind}: give {per_node}, such as [db.sources.iterator(loader) for loader in loaders]."
        )
    if isinstance(source, list) and any(map(_is_loader, source)):
        raise TypeError(
            f"{argument} holds a {type(source[0]).__name__}: wrap each, as in [db.sources.iterator(loader) for loader "
            f"in {argument}]."
        )


def _is_loader(thing: object) -> bool:
    """Whether this yields batches in order only, as PyTorch's `DataLoader` does."""
    plain = isinstance(thing, str | bytes | set) or hasattr(thing, "__array__") or isinstance(thing, type)
    iterable = isinstance(thing, Iterable) and not hasattr(thing, "__getitem__")
    return iterable and not plain and jax.tree_util.all_leaves([thing])


def are_sources(source: PyTree, argument: str) -> TypeGuard[list[Source | BatchIterator]]:
    """Whether this is a list of sources; raises if only some of its items are."""
    are_items_sources = [is_source(item) for item in source] if isinstance(source, list) else []
    if any(are_items_sources) and not all(are_items_sources):
        other = type(source[are_items_sources.index(False)]).__name__
        raise TypeError(f"{argument} holds sources and a {other}: give a source for every node; see db.sources.arrays.")
    return any(are_items_sources)


def host_of(of_node: Mapping[int, Source | BatchIterator], argument: str, dtype: DTypeLike) -> Host:
    """What the nodes that live here read from."""
    iterators = {node: source for node, source in of_node.items() if isinstance(source, BatchIterator)}
    indexed = {node: source for node, source in of_node.items() if not isinstance(source, BatchIterator)}
    if iterators and indexed:
        raise TypeError(f"{argument} holds iterators and sources: give every node the same kind.")
    return Iterators(iterators, argument, dtype) if iterators else Sources(indexed, argument, dtype)


def samples_of(source: PyTree, argument: str, dtype: DTypeLike, *, number: int = 0) -> Samples:
    """Samples from arrays (nodes, samples, ...), or from a list with one pytree or one source per node, the first of
    which is the node of that number."""
    validate_kind(source, argument)
    if not are_sources(source, argument):
        return node_data(source, argument, dtype)
    host = host_of(dict(enumerate(source, number)), argument, dtype)
    return stream_data(host, number + np.arange(len(source)), host_counts(host, len(source), number))


def host_counts(host: Host, nodes: int, first: int = 0) -> Int[np.ndarray, " nodes"]:
    """The samples of the nodes from `first` on; zero of those that live elsewhere, and 1 of iterators."""
    if isinstance(host, Sources):
        return np.asarray([host.counts.get(first + node, 0) for node in range(nodes)], np.int32)
    return np.ones(nodes, np.int32)


def validate_in_memory(samples: Sequence[Samples], use: str) -> None:
    """Raises where some are streams."""
    for data in samples:
        if isinstance(data, StreamData):
            raise ValueError(
                f"{use} needs all samples at once, and {data.host.argument} is a stream: make a problem of arrays, "
                "such as a part of the samples."
            )
