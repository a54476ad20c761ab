"""The network of the simulator: neighbours are rows of the same arrays."""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..core._types import PyTree
from ..graphs._graph import Graph, GraphSequence, Levels
from ._incidence import Sums, slots
from ._links import LinkFaults, Links, Received
from ._messages import Copies, Message, Stateless
from ._mixing import Mixer, mixer
from ._network import Network


class Places(NamedTuple):
    """(*slots,) the row of each neighbour, and the slot of the same link at the neighbour."""

    neighbours: Array
    back: Array


class InMemory(Network):
    """The network of nodes on one device.

    Graphs are mixed in the cheapest exact form, or link by link if messages may be lost or links keep a state.
    """

    mixers: tuple[Mixer, ...]
    places: tuple[Places, ...]
    copies_by_graph: tuple[Copies, ...] = eqx.field(static=True)

    @classmethod
    def of(cls, graphs: Levels) -> InMemory:
        """A network for messages that all arrive, over links without a state."""
        distinct, graph_of = graphs.distinct()
        degrees = [float(np.mean(graph.degrees)) for graph in distinct]
        return cls(graph_of, (), None, tuple(map(mixer, distinct)), (), tuple(Copies(d, d, d) for d in degrees))

    @classmethod
    def by_link(cls, graphs: Levels, faults: LinkFaults) -> InMemory:
        """A network for messages that may be lost or late, or over links with a state."""
        distinct, graph_of = graphs.distinct()
        built = [_links(graph, faults.nodes) for graph in distinct]
        links = tuple(links for links, _, _ in built)
        places = tuple(places for _, places, _ in built)
        return cls(graph_of, links, faults, (), places, tuple(copies for _, _, copies in built))

    def copies_on(self, graph: int) -> Copies:
        return self.copies_by_graph[graph]

    def mixes(self, message: Message) -> bool:
        return isinstance(message, Stateless)

    def mix(self, phase: Array, graph: int, messages: dict[str, Message]) -> dict[str, PyTree]:
        sent = {level: message for level, message in messages.items() if isinstance(message, Stateless)}
        return {level: message.mixed(self.mixers[graph], phase) for level, message in sent.items()}

    def rows(self, phase: Array, graph: int, buffer: Array) -> Received:
        return Received(buffer[self.places[graph].neighbours])

    def link_rows(self, phase: Array, graph: int, buffer: Array) -> Received:
        return Received(buffer.reshape(-1, buffer.shape[-1])[self.places[graph].back])


def _links(graph: Graph | GraphSequence, numbers: Array) -> tuple[Links, Places, Copies]:
    table = slots(graph)
    degree = float(np.mean(graph.degrees))
    neighbours = jnp.asarray(table.shaped(table.neighbours), jnp.int32)
    back = jnp.asarray(table.shaped(table.back), jnp.int32)
    sums = Sums(table.width, jax.tree.map(lambda array: jnp.asarray(array, jnp.int32), table.rest))
    links = Links(numbers[neighbours], jnp.asarray(table.shaped(table.weights)), sums)
    return links, Places(neighbours, back), Copies(degree, degree, len(table.places) / graph.nodes)
