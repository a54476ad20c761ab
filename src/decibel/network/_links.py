"""The links of a graph in one exchange: who sends to whom, what arrives, and the state at both ends.

Every node has a slot per neighbour (`_incidence`). Faults and the network decide what arrives in a slot. The state of a
link is kept at both its ends, by slot.
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
    """The state of a link in one exchange, seen from one end."""

    TIED = 0  # both have exchanged messages before
    KEEPS = 1  # the other end has returned, and takes its flow from this one
    RESTORE = 2  # this end has returned: F_ij := −F_ji
    RESET = 3  # both start at zero
    DROPPED = 4  # the other end is gone, and its flow is dropped


class Received(NamedTuple):
    """(*slots, entries) the received rows, (*slots,) where anything arrived, and the `LinkState` of each slot.

    None stands for everywhere, and for all tied.
    """

    rows: Array
    arrived: Array | None = None
    states: Array | None = None


class Links(eqx.Module):
    """The links of one graph, for the local nodes."""

    neighbours: Array  # (*slots,) their numbers
    weights: Array  # (*slots, phases)
    sums: Sums

    def weights_at(self, phase: Array, dtype: DTypeLike) -> Array:
        phases = self.weights.shape[-1]
        return self.weights[..., phase % phases if phases > 1 else 0].astype(dtype)


class LinkFaults(eqx.Module):
    """The local nodes, the faults, and a key for draws that other nodes must not know (except in simulations)."""

    nodes: Array
    schedule: FaultSchedule
    secret: Array

    def active(self, step: Array) -> Array | None:
        """(nodes,) the nodes that move in the step; None if all always do."""
        if not self.schedule.stops_nodes:
            return None
        return ~self.schedule.idle(step, self.nodes) & self.finished(step)

    def finished(self, step: Array) -> Array:
        """(nodes,) the nodes that end a computation in the step."""
        return ~self.schedule.busy(step, self.nodes)

    def ends(self, links: Links) -> tuple[Array, Array]:
        """(*slots,) the numbers of the receiver and of the sender."""
        return links.sums.at_slots(self.nodes), links.neighbours

    def either_end(self, occurs: Callable[[Array, Array], Array], step: Array, links: Links) -> Array:
        """(*slots,) whether a fault of nodes occurs at one of a link's ends."""
        neighbours = links.neighbours
        nodes = len(self.nodes)
        affected = occurs(step, jnp.concatenate([self.nodes, neighbours.ravel()]))
        return links.sums.at_slots(affected[:nodes]) | affected[nodes:].reshape(neighbours.shape)


class Draws:
    """The places of the random draws in a step: every message has its own place, which is folded into its keys."""

    def __init__(self, before: Draws | None = None) -> None:
        self._taken: set[tuple[int, ...]] = set() if before is None else set(before._taken)

    def claim(self, *place: int) -> tuple[int, ...]:
        """The place; raises, when a step is traced, if it is taken.

        Whoever receives two messages with the same noise could subtract them and remove the noise.
        """
        if place in self._taken:
            raise ValueError(
                f"two messages of one step would draw the same noise, at place {place}: give each its "
                "own exchange, graph or level."
            )
        self._taken.add(place)
        return place


class Turn(NamedTuple):
    """In how many steps the levels of an exchange exchanged messages before: it decides the phase of a changing graph.

    Levels that rest in some steps have fewer turns than there are steps.
    """

    done: Array


class Transport(NamedTuple):
    """How rows reach the slots of one graph in one step; the network's own functions."""

    rows: Callable[[Array], Received]  # (nodes, entries): every neighbour's row
    links: Callable[[Array], Received]  # (*slots, entries): what each neighbour holds for this node
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
    turn: Turn | None = None  # of the levels; None where each step is one
    phase: Array | None = None  # of the graph; None is that of the step

    @property
    def turns(self) -> Array:
        """In how many steps these levels exchanged messages before."""
        return self.step if self.turn is None else self.turn.done

    def weights(self, dtype: DTypeLike) -> Array:
        """(*slots,) the weights of the links in this phase."""
        return self.links.weights_at(self.step if self.phase is None else self.phase, dtype)

    def claim(self, part: int) -> tuple[int, ...]:
        """The place in the step of what a part of the message draws."""
        assert self.draws is not None
        return self.draws.claim(*self.place_of(part))

    def place_of(self, part: int) -> tuple[int, ...]:
        """The same place, for the receiver."""
        return (self.number, *self.place, part)

    @property
    def arrives(self) -> Array:
        """(*slots,) where a message arrives: the link is up, both its ends take part, and it is not lost."""
        schedule = self.faults.schedule
        receiver, sender = self.faults.ends(self.links)
        idle = self.faults.either_end(schedule.idle, self.step, self.links)
        up = ~(schedule.down(self.step, receiver, sender) | idle)
        return up & ~schedule.lost(self.step, self.number, receiver, sender)

    @property
    def delay(self) -> Array:
        """(*slots,) the number of steps by which a message is late."""
        return self.faults.schedule.delay(self.step, *self.faults.ends(self.links))

    @property
    def forgotten(self) -> Array:
        """(*slots,) where one end has left, so that the other drops the link's state."""
        return self.faults.either_end(self.faults.schedule.gone, self.step, self.links)


class LinkMemory(NamedTuple):
    """The state of links for one kind of message over one graph: (*slots, ...) by link, and (nodes, ...) by node."""

    by_link: PyTree = None
    by_node: PyTree = None

    def moved(self, before: np.ndarray, now: np.ndarray, slots: int) -> LinkMemory:
        """The same state with links moved from the slots `before` to the slots `now`, of `slots` in total."""

        def move(leaf: Array) -> Array:
            return jnp.zeros((slots, *leaf.shape[1:]), leaf.dtype).at[now].set(leaf[before])

        return LinkMemory(jax.tree.map(move, self.by_link), self.by_node)


LinkStates = tuple[tuple[LinkMemory, ...], ...]  # of one exchange: by graph, and by kind of message


def moved(link_state: tuple[LinkStates, ...], graphs: Levels, before: int, now: int) -> tuple[LinkStates, ...]:
    """The link state of a step's exchanges after nodes move from `before` devices to `now` devices."""
    places = [(slots(graph, before), slots(graph, now)) for graph in graphs.distinct()[0]]

    def move(memories: tuple[LinkMemory, ...], old: Slots, new: Slots) -> tuple[LinkMemory, ...]:
        if new.rest is None:
            return memories
        return tuple(memory.moved(old.places, new.places, len(new.neighbours)) for memory in memories)

    return tuple(
        tuple(move(memories, old, new) for memories, (old, new) in zip(exchange, places, strict=True))
        for exchange in link_state
    )
