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
    """All nodes on one device; graphs are mixed in the cheapest exact form, or link by link if messages may be lost or
    links keep a state."""

    mixers: tuple[Mixer, ...]
    places: tuple[Places, ...]
    copies_by_graph: tuple[Copies, ...] = eqx.field(static=True)

    @classmethod
    def of(cls, graphs: Levels) -> InMemory:
        """For messages that all arrive and of which links remember nothing."""
        distinct, graph_of = graphs.distinct()
        degrees = [float(np.mean(graph.degrees)) for graph in distinct]
        return cls(graph_of, (), None, tuple(map(mixer, distinct)), (), tuple(Copies(d, d, d) for d in degrees))

    @classmethod
    def by_link(cls, graphs: Levels, faults: LinkFaults) -> InMemory:
        """For messages that may be lost or late, or that links remember."""
        distinct, graph_of = graphs.distinct()
        made = [_links(graph, faults.nodes) for graph in distinct]
        return cls(
            graph_of, tuple(links for links, _, _ in made), faults, (), tuple(places for _, places, _ in made),
            tuple(copies for _, _, copies in made),
        )  # fmt: skip

    def copies_on(self, graph: int) -> Copies:
        return self.copies_by_graph[graph]

    def mixes(self, message: Message) -> bool:
        return isinstance(message, Stateless)

    def mix(self, step: Array, graph: int, messages: dict[str, Message]) -> dict[str, PyTree]:
        sent = {level: message for level, message in messages.items() if isinstance(message, Stateless)}
        return {level: message.mixed(self.mixers[graph], step) for level, message in sent.items()}

    def rows(self, step: Array, graph: int, buffer: Array) -> Received:
        return Received(buffer[self.places[graph].neighbours])

    def link_rows(self, step: Array, graph: int, buffer: Array) -> Received:
        return Received(buffer.reshape(-1, buffer.shape[-1])[self.places[graph].back])


def _links(graph: Graph | GraphSequence, numbers: Array) -> tuple[Links, Places, Copies]:
    made, degree = slots(graph), float(np.mean(graph.degrees))
    places = Places(*(jnp.asarray(made.shaped(table), jnp.int32) for table in (made.neighbours, made.back)))
    sums = Sums(made.width, jax.tree.map(lambda table: jnp.asarray(table, jnp.int32), made.rest))
    links = Links(numbers[places.neighbours], jnp.asarray(made.shaped(made.weights)), sums)
    return links, places, Copies(degree, degree, len(made.places) / graph.nodes)
