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
        tables: for each level of the tree, (parts, branches) the indices of the entries that a part adds; an index
            beyond the last entry adds nothing.
        nodes: the node to which each part of the last level belongs.
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
    """Copies values of the local nodes to their slots, and sums slots at nodes."""

    width: int = eqx.field(static=True)
    overflow: Overflow | None

    def at_slots(self, values: Array) -> Array:
        """(nodes, ...) → (*slots, ...): the values of the receiver."""
        nodes, *entries = values.shape
        regular = jnp.broadcast_to(values[:, None], (nodes, self.width, *entries))
        if self.overflow is None:
            return regular
        return jnp.concatenate([regular.reshape(-1, *entries), values[self.overflow.receivers]])

    def at_nodes(self, values: Array) -> Array:
        """(*slots, ...) → (nodes, ...): the sum of what arrives at each node."""
        if self.overflow is None:
            return values.sum(1)
        regular, overflow = self.parts(values)
        return self.add_overflow(regular.sum(1), overflow)

    def parts(self, values: Array) -> tuple[Array, Array]:
        """(*slots, ...) → (nodes, width, ...) the regular slots, and the overflow slots."""
        if self.overflow is None:
            return values, values[:0, 0]
        num_regular = len(values) - len(self.overflow.receivers)
        return values[:num_regular].reshape(-1, self.width, *values.shape[1:]), values[num_regular:]

    def add_overflow(self, total: Array, overflow: Array) -> Array:
        """Adds the overflow slots to the nodes' sums of regular slots."""
        if self.overflow is None:
            return total
        for table in self.overflow.tables:
            overflow = jnp.concatenate([overflow, jnp.zeros_like(overflow[:1])])[table].sum(1)
        return total.at[self.overflow.nodes].add(overflow, mode="drop", indices_are_sorted=True, unique_indices=True)


def slots(graph: Graph | GraphSequence, devices: int = 1) -> Slots:
    """The slots of a graph whose nodes are spread evenly over devices, in order."""
    union = sparse.csr_array(sum(abs(phase.matrix) for phase in graph.phases))
    union.setdiag(0)
    union.eliminate_zeros()
    union.sort_indices()
    degrees = np.diff(union.indptr)
    receivers = np.repeat(np.arange(graph.nodes), degrees)
    senders = union.indices
    # The rank of each link among those of its receiver.
    link_rank = np.arange(union.nnz) - np.repeat(union.indptr[:-1], degrees)
    width = _width(degrees)
    nodes_per_device = graph.nodes // devices
    regular_per_device = nodes_per_device * width

    overflow_counts = np.maximum(degrees - width, 0).reshape(devices, nodes_per_device)
    overflow_per_device = int(overflow_counts.sum(1).max())
    overflow_begin = (np.cumsum(overflow_counts, 1) - overflow_counts).ravel()  # of each node, on its device
    slots_per_device = regular_per_device + overflow_per_device
    device_begin = receivers // nodes_per_device * slots_per_device
    regular_slot = receivers % nodes_per_device * width + link_rank
    overflow_slot = regular_per_device + overflow_begin[receivers] + link_rank - width
    slot_of_link = device_begin + np.where(link_rank < width, regular_slot, overflow_slot)

    local_owners = np.concatenate([np.repeat(np.arange(nodes_per_device), width), np.zeros(overflow_per_device, int)])
    device_first_node = np.arange(devices)[:, None] * nodes_per_device
    owners = (device_first_node + local_owners).ravel()
    owners[slot_of_link] = receivers
    neighbours = owners.copy()
    neighbours[slot_of_link] = senders
    reverse = np.arange(devices * slots_per_device)
    if graph.symmetric:
        # Sorted by (column, row), the entries of a symmetric pattern are their own mirror images.
        reverse_link = np.lexsort((senders, receivers))[np.argsort(np.lexsort((receivers, senders)))]
        reverse[slot_of_link] = slot_of_link[reverse_link]
    weights, pushes = np.zeros((2, devices * slots_per_device, graph.period))
    for phase_index, phase in enumerate(graph.phases):
        weights[slot_of_link, phase_index] = np.asarray(phase.matrix[receivers, senders]).ravel()
        pushes[slot_of_link, phase_index] = np.asarray(phase.pushing[receivers, senders]).ravel()
    overflow_receivers = owners.reshape(devices, slots_per_device)[:, regular_per_device:] - device_first_node
    overflow = _overflow(overflow_counts, overflow_receivers) if overflow_per_device else None
    return Slots(width, owners, neighbours, reverse, weights, pushes, slot_of_link, overflow)


def shares_sent(graph: Graph | GraphSequence) -> np.ndarray:
    """(nodes, phases) the share of its vector that a node pushes to others."""
    return np.stack([1.0 - phase.pushing.diagonal() for phase in graph.phases], axis=1)


def slots_of_node(graph: Graph | GraphSequence, node: int) -> Slots:
    """The slots of one node alone: its links, or one without a link where it has none."""
    table = slots(graph)
    own_slots = table.slot_of_link[table.receivers[table.slot_of_link] == node]
    if not own_slots.size:
        own_slots = np.array([node * table.width])
    return Slots(
        width=len(own_slots),
        receivers=table.receivers[own_slots],
        neighbours=table.neighbours[own_slots],
        reverse=np.arange(len(own_slots)),
        weights=table.weights[own_slots],
        pushes=table.pushes[own_slots],
        slot_of_link=np.zeros(0, int),
        overflow=None,
    )


def _width(degrees: np.ndarray) -> int:
    """The largest number of slots per node with at most MAX_PADDING slots per link."""

    def num_slots(width: int) -> int:
        return len(degrees) * width + int(np.maximum(degrees - width, 0).sum())

    wider = range(2, int(degrees.max(initial=0)) + 1)
    return 1 + bisect_right(wider, MAX_PADDING * degrees.sum(), key=num_slots)


def _overflow(overflow_counts: np.ndarray, receivers: np.ndarray) -> Overflow:
    """The tree of the overflow slots.

    `overflow_counts` (devices, nodes) is how many each node has; devices with fewer in total are filled up.
    """
    owners = [np.flatnonzero(counts) for counts in overflow_counts]
    # By device, how many entries each owner still has on the present level of the tree.
    counts_by_device = [counts[nodes] for counts, nodes in zip(overflow_counts, owners, strict=True)]
    tables = []
    length = receivers.shape[1]
    while max(counts.max(initial=1) for counts in counts_by_device) > 1:
        parts_by_device = [_parts(counts) for counts in counts_by_device]
        most_parts = max(map(len, parts_by_device))
        table = np.full((len(parts_by_device), most_parts, BRANCHES), length)
        for device, parts in enumerate(parts_by_device):
            table[device, : len(parts)] = np.where(parts < 0, length, parts)
        tables.append(table.reshape(-1, BRANCHES))
        counts_by_device = [-(-counts // BRANCHES) for counts in counts_by_device]
        length = most_parts
    # Filled-up parts have indices beyond all nodes, where additions are dropped.
    nodes = overflow_counts.shape[1] + np.tile(np.arange(length), (len(owners), 1))
    for device, owner in enumerate(owners):
        nodes[device, : len(owner)] = owner
    return Overflow(receivers.ravel(), tuple(tables), nodes.ravel())


def _parts(counts: np.ndarray) -> np.ndarray:
    """(parts, branches) the indices of the entries that each part adds, −1 for none.

    Entries are ordered by owner, of whom each has as many as `counts` says. A part adds consecutive entries of one
    owner.
    """
    entries_begin = np.cumsum(counts) - counts
    num_parts = -(-counts // BRANCHES)
    owner = np.repeat(np.arange(len(counts)), num_parts)
    part_rank = np.arange(len(owner)) - np.repeat(np.cumsum(num_parts) - num_parts, num_parts)  # among its owner's
    entries = (entries_begin[owner] + part_rank * BRANCHES)[:, None] + np.arange(BRANCHES)
    return np.where(entries < (entries_begin + counts)[owner, None], entries, -1)
