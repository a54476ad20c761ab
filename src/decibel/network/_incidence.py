"""The links of a graph in flat arrays, whose size depends on the number of links and not on the largest degree.

Every directed link has a slot at its receiver. On every device the first slots belong to the nodes in order, the same
number for each, so what arrives at a node is a sum along an axis. Further links of a node have overflow slots behind
these. They are summed in a tree of fixed shape: the same order in every run and on every backend. If degrees are
similar, there is no overflow, slots without a link have weight zero, and arrays of slots have the shape (nodes, width).
Otherwise it is (slots,).
"""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Int
from scipy import sparse

from ..graphs._graph import Graph, GraphSequence

MAX_PADDING = 2.0  # regular slots per link, at most
BRANCHES = 8  # of the tree


class Overflow(NamedTuple):
    """The overflow slots, numbered on each device.

    Attributes:
        receivers: the node of each slot.
        tables: for each level of the tree, (parts, branches) the entries that a part adds; one beyond the last is none.
        nodes: the nodes of the last level's parts.
    """

    receivers: Int[Array | np.ndarray, " slots"]
    tables: tuple[Int[Array | np.ndarray, "parts branches"], ...]
    nodes: Int[Array | np.ndarray, " parts"]


class Slots(NamedTuple):
    """The slots of all devices, one after the other, in flat arrays.

    Attributes:
        width: regular slots per node.
        receivers: (slots,) the node of each slot.
        neighbours: (slots,) the sender; the receiver itself where there is no link.
        reverse: (slots,) the slot of the same link in the other direction.
        weights: (slots, phases), zero where a phase lacks the link.
        pushes: (slots, phases), the share of the sender's vector that it pushes over the link.
        slot_of_link: (links,) the slot of every link, in an order that does not depend on devices.
        overflow: the overflow slots.
    """

    width: int
    receivers: np.ndarray
    neighbours: np.ndarray
    reverse: np.ndarray
    weights: np.ndarray
    pushes: np.ndarray
    slot_of_link: np.ndarray
    overflow: Overflow | None

    def shaped(self, table: np.ndarray) -> np.ndarray:
        """A table in the shape that a run uses."""
        return table if self.overflow is not None else table.reshape(-1, self.width, *table.shape[1:])


class Sums(eqx.Module):
    """Fanout values of the local nodes to their slots, and sums slots at nodes."""

    width: int = eqx.field(static=True)
    overflow: Overflow | None

    def at_slots(self, values: Array) -> Array:
        """(nodes, ...) → (*slots, ...): the values of the receiver."""
        nodes, *entries = values.shape
        front = jnp.broadcast_to(values[:, None], (nodes, self.width, *entries))
        if self.overflow is None:
            return front
        return jnp.concatenate([front.reshape(-1, *entries), values[self.overflow.receivers]])

    def at_nodes(self, values: Array) -> Array:
        """(*slots, ...) → (nodes, ...): the sum of what arrives at each node."""
        if self.overflow is None:
            return values.sum(1)
        front, behind = self.parts(values)
        return self.add_overflow(front.sum(1), behind)

    def parts(self, values: Array) -> tuple[Array, Array]:
        """(*slots, ...) → (nodes, width, ...) in front, and the overflow slots."""
        if self.overflow is None:
            return values, values[:0, 0]
        behind = len(values) - len(self.overflow.receivers)
        return values[:behind].reshape(-1, self.width, *values.shape[1:]), values[behind:]

    def add_overflow(self, total: Array, behind: Array) -> Array:
        """Adds the overflow slots to the nodes' sums of those in front."""
        if self.overflow is None:
            return total
        for table in self.overflow.tables:
            behind = jnp.concatenate([behind, jnp.zeros_like(behind[:1])])[table].sum(1)
        return total.at[self.overflow.nodes].add(behind, mode="drop", indices_are_sorted=True, unique_indices=True)


def slots(graph: Graph | GraphSequence, devices: int = 1) -> Slots:
    """The slots of a graph whose nodes are spread evenly over devices, in order."""
    union = sparse.csr_array(sum(abs(phase.matrix) for phase in graph.phases))
    union.setdiag(0)
    union.eliminate_zeros()
    union.sort_indices()
    degrees = np.diff(union.indptr)
    receivers = np.repeat(np.arange(graph.nodes), degrees)
    senders = union.indices
    number = np.arange(union.nnz) - np.repeat(union.indptr[:-1], degrees)  # of each link at its receiver
    width = _width(degrees)
    each = graph.nodes // devices

    beyond = np.maximum(degrees - width, 0).reshape(devices, each)
    behind = int(beyond.sum(1).max())
    before = (np.cumsum(beyond, 1) - beyond).ravel()
    per_device = each * width + behind
    begin = receivers // each * per_device
    places = begin + np.where(
        number < width, receivers % each * width + number, each * width + before[receivers] + number - width
    )

    on_device = np.concatenate([np.repeat(np.arange(each), width), np.zeros(behind, int)])
    owners = (np.arange(devices)[:, None] * each + on_device).ravel()
    owners[places] = receivers
    neighbours = owners.copy()
    reverse = np.arange(devices * per_device)
    neighbours[places] = senders
    if graph.symmetric:
        # Sorted by (column, row), the entries of a symmetric pattern are their own mirror images.
        mirror = np.lexsort((senders, receivers))[np.argsort(np.lexsort((receivers, senders)))]
        reverse[places] = places[mirror]
    weights, pushes = np.zeros((2, devices * per_device, graph.period))
    for number, phase in enumerate(graph.phases):
        weights[places, number] = np.asarray(phase.matrix[receivers, senders]).ravel()
        pushes[places, number] = np.asarray(phase.pushing[receivers, senders]).ravel()
    receivers_behind = owners.reshape(devices, per_device)[:, each * width :] - np.arange(devices)[:, None] * each
    overflow = _overflow(beyond, receivers_behind) if behind else None
    return Slots(width, owners, neighbours, reverse, weights, pushes, places, overflow)


def shares_sent(graph: Graph | GraphSequence) -> np.ndarray:
    """(nodes, phases) the share of its vector that a node pushes to others."""
    return np.stack([1.0 - phase.pushing.diagonal() for phase in graph.phases], axis=1)


def slots_of_node(graph: Graph | GraphSequence, node: int) -> Slots:
    """The slots of one node alone: its links, or one without a link where it has none."""
    table = slots(graph)
    places = table.slot_of_link[table.receivers[table.slot_of_link] == node]
    if not places.size:
        places = np.array([node * table.width])
    return Slots(
        width=len(places),
        receivers=table.receivers[places],
        neighbours=table.neighbours[places],
        reverse=np.arange(len(places)),
        weights=table.weights[places],
        pushes=table.pushes[places],
        slot_of_link=np.zeros(0, int),
        overflow=None,
    )


def _width(degrees: np.ndarray) -> int:
    """The largest number of slots per node with at most MAX_PADDING slots per link."""

    def slots(width: int) -> int:
        return len(degrees) * width + int(np.maximum(degrees - width, 0).sum())

    wider = range(2, int(degrees.max(initial=0)) + 1)
    return 1 + bisect_right(wider, MAX_PADDING * degrees.sum(), key=slots)


def _overflow(beyond: np.ndarray, receivers: np.ndarray) -> Overflow:
    """The tree of the overflow slots.

    `beyond` (devices, nodes) counts them for each node; devices with fewer are filled up.
    """
    owners = [np.flatnonzero(counts) for counts in beyond]
    counts = [on_device[nodes] for on_device, nodes in zip(beyond, owners, strict=True)]
    tables = []
    length = receivers.shape[1]
    while max(on_device.max(initial=1) for on_device in counts) > 1:
        parts = [_parts(on_device) for on_device in counts]
        most = max(map(len, parts))
        table = np.full((len(parts), most, BRANCHES), length)
        for device, entries in enumerate(parts):
            table[device, : len(entries)] = np.where(entries < 0, length, entries)
        tables.append(table.reshape(-1, BRANCHES))
        counts = [-(-on_device // BRANCHES) for on_device in counts]
        length = most
    # Filled-up parts have indices beyond all nodes, where additions are dropped.
    nodes = beyond.shape[1] + np.tile(np.arange(length), (len(owners), 1))
    for device, owner in enumerate(owners):
        nodes[device, : len(owner)] = owner
    return Overflow(receivers.ravel(), tuple(tables), nodes.ravel())


def _parts(counts: np.ndarray) -> np.ndarray:
    """(parts, branches): numbers of consecutive entries, as many of each owner as it counts; −1 for none."""
    begin = np.cumsum(counts) - counts
    parts = -(-counts // BRANCHES)
    owner = np.repeat(np.arange(len(counts)), parts)
    number = np.arange(len(owner)) - np.repeat(np.cumsum(parts) - parts, parts)
    entries = (begin[owner] + number * BRANCHES)[:, None] + np.arange(BRANCHES)
    return np.where(entries < (begin + counts)[owner, None], entries, -1)
