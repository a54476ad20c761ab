"""The network of the simulator: neighbours are rows of the same arrays."""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import numpy as np
from jax import Array

from ..core._arrays import on_device
from ..core._types import PyTree
from ..graphs._graph import Graph, GraphSequence, Levels
from ._incidence import Sums, shares_sent, slots
from ._links import LinkFaults, Links, Received
from ._messages import Fanout, LinkFree, Message
from ._mixing import Mixer, mixer
from ._network import Changes, Network


class NeighbourRows(NamedTuple):
    """(*slots,) the row of each neighbour, and the slot of the same link at the neighbour."""

    neighbours: Array
    reverse: Array


class InMemory(Network):
    """The network of nodes on one device.

    Graphs are mixed in the cheapest exact form. If messages may be lost or links keep a state, they are mixed link by
    link.
    """

    mixers: tuple[Mixer, ...]
    neighbour_rows: tuple[NeighbourRows, ...]
    fanouts: tuple[Fanout, ...] = eqx.field(static=True)

    @classmethod
    def of(cls, graphs: Levels) -> InMemory:
        """A network for messages that all arrive, over links without a state."""
        distinct, graph_of = graphs.distinct()
        degrees = [float(np.mean(graph.degrees)) for graph in distinct]
        fanouts, changes = tuple(Fanout(d, d, d) for d in degrees), tuple(map(Changes.of, distinct))
        return cls(graph_of, (), None, tuple(map(mixer, distinct)), (), fanouts, changes=changes)

    @classmethod
    def with_links(cls, graphs: Levels, faults: LinkFaults) -> InMemory:
        """A network for messages that may be lost or late, or over links with a state."""
        distinct, graph_of = graphs.distinct()
        built = [_links(graph, faults.node_ids) for graph in distinct]
        links = tuple(links for links, _, _ in built)
        rows = tuple(rows for _, rows, _ in built)
        fanouts, changes = tuple(fanout for _, _, fanout in built), tuple(map(Changes.of, distinct))
        return cls(graph_of, links, faults, (), rows, fanouts, changes=changes)

    def fanout_on(self, graph: int) -> Fanout:
        return self.fanouts[graph]

    def needs_no_links(self, message: Message) -> bool:
        return isinstance(message, LinkFree)

    def mix(self, phase: Array, graph: int, messages: dict[str, Message]) -> dict[str, PyTree]:
        sent = {level: message for level, message in messages.items() if isinstance(message, LinkFree)}
        return {level: message.mix(self.mixers[graph], phase) for level, message in sent.items()}

    def rows(self, phase: Array, graph: int, buffer: Array) -> Received:
        return Received(buffer[self.neighbour_rows[graph].neighbours])

    def link_rows(self, phase: Array, graph: int, buffer: Array) -> Received:
        return Received(buffer.reshape(-1, buffer.shape[-1])[self.neighbour_rows[graph].reverse])


def _links(graph: Graph | GraphSequence, node_ids: Array) -> tuple[Links, NeighbourRows, Fanout]:
    table = slots(graph)
    degree = float(np.mean(graph.degrees))
    neighbours = on_device(table.shaped(table.neighbours), np.int32)
    reverse = on_device(table.shaped(table.reverse), np.int32)
    sums = Sums(table.width, jax.tree.map(lambda array: on_device(array, np.int32), table.overflow))
    links = Links(
        node_ids[neighbours],
        on_device(table.shaped(table.weights)),
        sums,
        on_device(table.shaped(table.pushes)),
        on_device(shares_sent(graph)),
    )
    return links, NeighbourRows(neighbours, reverse), Fanout(degree, degree, len(table.slot_of_link) / graph.nodes)
