"""The links of a graph as one exchange sees them: who sends to whom, what arrives, and what both ends remember.

Every node has a slot per neighbour (`_incidence`). What arrives in a slot counts or not, by the faults and by what the
network received; what a link has carried so far is remembered at both its ends, by slot.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike

from ..core._types import PyTree, Scalar
from ..graphs._graph import Levels
from ._incidence import Slots, Sums, slots
from .faults import FaultSchedule


class LinkState(IntEnum):
    """How a link's two ends stand to each other in one exchange, seen from one of them."""

    TIED = 0  # both have exchanged messages before
    KEEPS = 1  # the other end has come back, and takes its flow from this one
    RESTORE = 2  # this end has come back: F_ij := −F_ji
    RESET = 3  # both begin at zero
    DROPPED = 4  # the other end is gone, and its flow is dropped


class Received(NamedTuple):
    """(*slots, entries) what came into the slots, (*slots,) where anything did, and the `LinkState` of each; None is
    everywhere, and all tied."""

    rows: Array
    arrived: Array | None = None
    states: Array | None = None


class Links(eqx.Module):
    """The links of one graph, for the local nodes."""

    neighbours: Array  # (*slots,) their numbers
    weights: Array  # (*slots, phases)
    sums: Sums

    def weights_at(self, step: Array, dtype: DTypeLike) -> Array:
        phases = self.weights.shape[-1]
        return self.weights[..., step % phases if phases > 1 else 0].astype(dtype)


class LinkFaults(eqx.Module):
    """What messages over links depend on beside the graph: the local nodes, the faults, and a key of chances
    that others must not know (where this is no simulation)."""

    nodes: Array
    schedule: FaultSchedule
    secret: Array

    def active(self, step: Array) -> Array | None:
        """(nodes,) which move in the step; None if all always do."""
        if not self.schedule.stops_nodes:
            return None
        return ~self.schedule.idle(step, self.nodes) & self.finished(step)

    def finished(self, step: Array) -> Array:
        """(nodes,) which end a computation in the step."""
        return ~self.schedule.busy(step, self.nodes)

    def ends(self, links: Links) -> tuple[Array, Array]:
        """(*slots,) the numbers of the receiver and of the sender."""
        return links.sums.at_slots(self.nodes), links.neighbours

    def either_end(self, occurs: Callable[[Array, Array], Array], step: Array, links: Links) -> Array:
        """(*slots,) whether a fault of nodes occurs at one of a link's ends."""
        there = links.neighbours
        found, nodes = occurs(step, jnp.concatenate([self.nodes, there.ravel()])), len(self.nodes)
        return links.sums.at_slots(found[:nodes]) | found[nodes:].reshape(there.shape)


class Draws:
    """Who has drawn at random in a step: what a message draws has a place of its own in the step, and keys by it."""

    def __init__(self) -> None:
        self._taken: set[tuple[int, ...]] = set()

    def claim(self, *place: int) -> tuple[int, ...]:
        """The place, whose numbers are folded into the keys; raises, when a step is traced, if it is taken: whoever
        receives two messages with the same noise subtracts them, and the noise is gone."""
        if place in self._taken:
            raise ValueError(
                f"two messages of one step would draw the same noise, at place {place}: give each an exchange, a graph "
                "or a level of its own."
            )
        self._taken.add(place)
        return place


class Transport(NamedTuple):
    """How rows reach the slots of one graph in one step; the network's own functions."""

    rows: Callable[[Array], Received]  # (nodes, entries): every neighbour's row
    links: Callable[[Array], Received]  # (*slots, entries): what each neighbour keeps for this node
    coded: Callable[..., Array]  # (*slots, entries) of neighbours' rows in code, decoded
    encode: Callable[..., Array] | None = None  # (nodes, entries) → (nodes, bytes); None where no codes are sent
    incarnation: Scalar | None = None  # of this process, where messages are sent before a step (`Wave.post`)


class Channel(NamedTuple):
    """One graph's links in one exchange of one step: what a message uses to reach the neighbours."""

    links: Links
    step: Array
    number: int  # of the exchange in the step
    faults: LinkFaults
    transport: Transport
    place: tuple[int, int] = (0, 0)  # the number of the graph, and of the kind of message on it
    draws: Draws | None = None  # of the step; None where nothing is sent

    def claim(self, part: int) -> tuple[int, ...]:
        """The place in the step of what a part of the message draws."""
        assert self.draws is not None
        return self.draws.claim(*self.place_of(part))

    def place_of(self, part: int) -> tuple[int, ...]:
        """The same, where it is only read."""
        return (self.number, *self.place, part)

    @property
    def arrives(self) -> Array:
        """(*slots,) where a message arrives: the link is up, both its ends take part, and it is not lost."""
        schedule, (here, there) = self.faults.schedule, self.faults.ends(self.links)
        idle = self.faults.either_end(schedule.idle, self.step, self.links)
        up = ~(schedule.down(self.step, here, there) | idle)
        return up & ~schedule.lost(self.step, self.number, here, there)

    @property
    def delay(self) -> Array:
        """(*slots,) by how many steps a message is late."""
        return self.faults.schedule.delay(self.step, *self.faults.ends(self.links))

    @property
    def forgotten(self) -> Array:
        """(*slots,) where one end has left, so that the other forgets what it remembers of it."""
        return self.faults.either_end(self.faults.schedule.gone, self.step, self.links)


class LinkMemory(NamedTuple):
    """What one kind of message over one graph needs remembered: (*slots, ...) by link, and (nodes, ...) by node."""

    by_link: PyTree = None
    by_node: PyTree = None

    def moved(self, before: np.ndarray, now: np.ndarray, slots: int) -> LinkMemory:
        """With every link in its slot `now` of so many, where it was in the slot `before`."""
        move = lambda leaf: jnp.zeros((slots, *leaf.shape[1:]), leaf.dtype).at[now].set(leaf[before])  # noqa: E731
        return LinkMemory(jax.tree.map(move, self.by_link), self.by_node)


LinkStates = tuple[tuple[LinkMemory, ...], ...]  # of one exchange: by graph, and by kind of message


def moved(link_state: tuple[LinkStates, ...], graphs: Levels, before: int, now: int) -> tuple[LinkStates, ...]:
    """The link state of a step's exchanges, when nodes move from so many devices to others."""
    places = [(slots(graph, before), slots(graph, now)) for graph in graphs.distinct()[0]]

    def move(memories: tuple[LinkMemory, ...], old: Slots, new: Slots) -> tuple[LinkMemory, ...]:
        if new.rest is None:
            return memories
        return tuple(memory.moved(old.places, new.places, len(new.neighbours)) for memory in memories)

    return tuple(tuple(move(one, *both) for one, both in zip(every, places, strict=True)) for every in link_state)
