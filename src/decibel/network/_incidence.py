"""The links of a graph in flat arrays, which grow with the number of links whatever the largest degree is.

Every directed link has a slot at its receiver. On every device the nodes come first, in order, with equally many slots
each, so that what arrives at a node is a sum along an axis. Links that a node has beyond these lie behind, and are
summed in a tree of fixed shape: the same order in every run and on every backend. Where degrees are alike every link
finds place in front, and slots without a link have weight zero; arrays of slots then have the shape (nodes, width),
and (slots,) otherwise.
"""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Int
from scipy import sparse

from ..graphs._graph import Graph, GraphSequence

ROOM = 2.0  # slots per link, at most, so that few links lie behind
BRANCHES = 8  # of the tree


class Rest(NamedTuple):
    """The slots behind, by numbers that count on each device: the node of each slot; tables (parts, branches) of what
    every part of the next level adds, one beyond the last for nothing; and the nodes that the last parts belong to."""

    receivers: Int[Array | np.ndarray, " slots"]
    tables: tuple[Int[Array | np.ndarray, "parts branches"], ...]
    nodes: Int[Array | np.ndarray, " parts"]


class Slots(NamedTuple):
    """Of all devices, one after the other: (slots,) the receiver and the sender of each, which is the receiver where
    there is no link; the slot of the same link the other way; weights (slots, phases), zero where a phase lacks the
    link; and (links,) the slot of every link, in an order that does not depend on devices. All of them flat."""

    width: int
    receivers: np.ndarray
    neighbours: np.ndarray
    back: np.ndarray
    weights: np.ndarray
    places: np.ndarray
    rest: Rest | None

    def shaped(self, table: np.ndarray) -> np.ndarray:
        """(slots, ...) as a run has it."""
        return table if self.rest is not None else table.reshape(-1, self.width, *table.shape[1:])


class Sums(eqx.Module):
    """From the local nodes to their slots, and back."""

    width: int = eqx.field(static=True)
    rest: Rest | None

    def at_slots(self, values: Array) -> Array:
        """(nodes, ...) → (*slots, ...): what the receiver has."""
        nodes, *entries = values.shape
        front = jnp.broadcast_to(values[:, None], (nodes, self.width, *entries))
        if self.rest is None:
            return front
        return jnp.concatenate([front.reshape(-1, *entries), values[self.rest.receivers]])

    def at_nodes(self, values: Array) -> Array:
        """(*slots, ...) → (nodes, ...): the sum of what arrives at each node."""
        if self.rest is None:
            return values.sum(1)
        front, behind = self.parts(values)
        return self.add_rest(front.sum(1), behind)

    def parts(self, values: Array) -> tuple[Array, Array]:
        """(*slots, ...) → (nodes, width, ...) in front, and what lies behind."""
        if self.rest is None:
            return values, values[:0, 0]
        behind = len(values) - len(self.rest.receivers)
        return values[:behind].reshape(-1, self.width, *values.shape[1:]), values[behind:]

    def add_rest(self, total: Array, behind: Array) -> Array:
        """Adds what lies in the slots behind to the nodes' sums of what lies in front."""
        if self.rest is None:
            return total
        for table in self.rest.tables:
            behind = jnp.concatenate([behind, jnp.zeros_like(behind[:1])])[table].sum(1)
        return total.at[self.rest.nodes].add(behind, mode="drop", indices_are_sorted=True, unique_indices=True)


def slots(graph: Graph | GraphSequence, devices: int = 1) -> Slots:
    """For nodes that are spread evenly over devices, in order."""
    union = sparse.csr_array(sum(abs(phase.matrix) for phase in graph.phases))
    union.setdiag(0)
    union.eliminate_zeros()
    union.sort_indices()
    nodes, degrees = graph.nodes, np.diff(union.indptr)
    receivers, senders = np.repeat(np.arange(nodes), degrees), union.indices
    number = np.arange(union.nnz) - np.repeat(union.indptr[:-1], degrees)  # of each link at its receiver
    width, each = _width(degrees), nodes // devices

    beyond = np.maximum(degrees - width, 0).reshape(devices, each)
    behind, before = int(beyond.sum(1).max()), (np.cumsum(beyond, 1) - beyond).ravel()
    per_device = each * width + behind
    begin = receivers // each * per_device
    places = begin + np.where(
        number < width, receivers % each * width + number, each * width + before[receivers] + number - width
    )

    own = np.concatenate([np.repeat(np.arange(each), width), np.zeros(behind, int)])
    owners = (np.arange(devices)[:, None] * each + own).ravel()
    owners[places] = receivers
    neighbours, back = owners.copy(), np.arange(devices * per_device)
    neighbours[places] = senders
    if graph.symmetric:
        # Sorted by (column, row), the entries of a symmetric pattern are their own mirror images.
        mirror = np.lexsort((senders, receivers))[np.argsort(np.lexsort((receivers, senders)))]
        back[places] = places[mirror]
    weights = np.zeros((devices * per_device, graph.period))
    for phase, one in enumerate(graph.phases):
        weights[places, phase] = np.asarray(one.matrix[receivers, senders]).ravel()
    here = owners.reshape(devices, per_device)[:, each * width :] - np.arange(devices)[:, None] * each
    rest = _rest(beyond, here) if behind else None
    return Slots(width, owners, neighbours, back, weights, places, rest)


def of_node(graph: Graph | GraphSequence, node: int) -> Slots:
    """The slots of one node alone: its links, or one without a link where it has none."""
    every = slots(graph)
    mine = every.places[every.receivers[every.places] == node]
    mine = mine if mine.size else np.array([node * every.width])
    none = np.zeros(0, int)
    return Slots(
        len(mine), every.receivers[mine], every.neighbours[mine], np.arange(len(mine)), every.weights[mine], none, None
    )


def _width(degrees: np.ndarray) -> int:
    """The most slots that every node can have with no more than ROOM for each link."""
    low, high = 1, max(1, int(degrees.max(initial=0)))
    while low < high:
        middle = (low + high + 1) // 2
        size = len(degrees) * middle + np.maximum(degrees - middle, 0).sum()
        low, high = (middle, high) if size <= ROOM * degrees.sum() else (low, middle - 1)
    return low


def _rest(beyond: np.ndarray, receivers: np.ndarray) -> Rest:
    """`beyond` (devices, nodes) counts the slots behind of each node; devices with fewer are filled up."""
    owners = [np.flatnonzero(counts) for counts in beyond]
    counts = [one[at] for one, at in zip(beyond, owners, strict=True)]
    tables, length = [], receivers.shape[1]
    while max(one.max(initial=1) for one in counts) > 1:
        parts = [_parts(one) for one in counts]
        most = max(map(len, parts))
        table = np.full((len(parts), most, BRANCHES), length)
        for device, one in enumerate(parts):
            table[device, : len(one)] = np.where(one < 0, length, one)
        tables.append(table.reshape(-1, BRANCHES))
        counts, length = [-(-one // BRANCHES) for one in counts], most
    # Beyond all nodes there is nothing to add to.
    nodes = beyond.shape[1] + np.tile(np.arange(length), (len(owners), 1))
    for device, at in enumerate(owners):
        nodes[device, : len(at)] = at
    return Rest(receivers.ravel(), tuple(tables), nodes.ravel())


def _parts(counts: np.ndarray) -> np.ndarray:
    """(parts, branches): numbers of consecutive entries, as many of each owner as it counts; −1 for none."""
    begin, parts = np.cumsum(counts) - counts, -(-counts // BRANCHES)
    owner = np.repeat(np.arange(len(counts)), parts)
    number = np.arange(len(owner)) - np.repeat(np.cumsum(parts) - parts, parts)
    entries = (begin[owner] + number * BRANCHES)[:, None] + np.arange(BRANCHES)
    return np.where(entries < (begin + counts)[owner, None], entries, -1)
