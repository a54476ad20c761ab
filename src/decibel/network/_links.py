"""The links of a graph in one exchange: which nodes send to which, what arrives, and the state at both ends.

Every node has a slot per neighbour (`_incidence`). Faults and the network decide what arrives in a slot. The state of a
link is kept at both its ends, by slot.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple, TypeAlias

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


class LinkStatus(IntEnum):
    """What one end of a link does with its flow in an exchange."""

    CONTINUE = 0  # both ends have the flow
    GIVE_FLOW = 1  # the other end has returned and adopts this end's flow
    TAKE_FLOW = 2  # this end has returned: F_ij := −F_ji
    START_AT_ZERO = 3  # neither end has the flow
    DROP_FLOW = 4  # the other end has left


class Received(NamedTuple):
    """What came by the slots.

    Attributes:
        rows: (*slots, entries).
        has_arrived: (*slots,) where a row arrived; None if all did.
        link_statuses: (*slots,) a `LinkStatus` for each slot; None if every link is `CONTINUE`.
    """

    rows: Array
    has_arrived: Array | None = None
    link_statuses: Array | None = None


class Links(eqx.Module):
    """The links of one graph, for the local nodes."""

    neighbours: Array  # (*slots,) their ids
    weights: Array  # (*slots, phases)
    sums: Sums
    pushes: Array | None = None  # (*slots, phases) the sender's share for the link; None where nothing is pushed
    leaving: Array | None = None  # (nodes, phases) the share that a node pushes to others

    def weights_at(self, phase: Array, dtype: DTypeLike) -> Array:
        return _in_phase(self.weights, phase, dtype)

    def shares_at(self, phase: Array, dtype: DTypeLike) -> tuple[Array, Array]:
        """(*slots,) what share of a neighbour's vector is pushed here, and (nodes,) of a node's own to others."""
        assert self.pushes is not None and self.leaving is not None
        return _in_phase(self.pushes, phase, dtype), _in_phase(self.leaving, phase, dtype)


def _in_phase(weights: Array, phase: Array, dtype: DTypeLike) -> Array:
    phases = weights.shape[-1]
    return weights[..., phase % phases if phases > 1 else 0].astype(dtype)


class LinkFaults(eqx.Module):
    """What every link uses, with faults or without: the local nodes, their faults, and random keys.

    Attributes:
        node_ids: those of the local nodes.
        schedule: the faults; its key is also the one that both ends of a link use to encode and decode.
        secret: the key for draws that other nodes must not know (in simulations they do).
    """

    node_ids: Array
    schedule: FaultSchedule
    secret: Array

    def active(self, step: Array) -> Array | None:
        """(nodes,) the nodes that move in the step; None if all always do."""
        if not self.schedule.stops_nodes:
            return None
        return ~self.schedule.is_idle(step, self.node_ids) & self.finished(step)

    def finished(self, step: Array) -> Array:
        """(nodes,) the nodes that end a computation in the step."""
        return ~self.schedule.is_busy(step, self.node_ids)

    def begins(self, step: Array) -> Array:
        """(nodes,) the nodes that begin a computation in the step."""
        return self.schedule.begins(step, self.node_ids)

    def ends(self, links: Links) -> tuple[Array, Array]:
        """(*slots,) the ids of the receiver and of the sender."""
        return links.sums.at_slots(self.node_ids), links.neighbours

    def either_end(self, occurs: Callable[[Array, Array], Array], step: Array, links: Links) -> Array:
        """(*slots,) whether a fault of nodes occurs at one of a link's ends."""
        neighbours = links.neighbours
        num_nodes = len(self.node_ids)
        affected = occurs(step, jnp.concatenate([self.node_ids, neighbours.ravel()]))
        return links.sums.at_slots(affected[:num_nodes]) | affected[num_nodes:].reshape(neighbours.shape)


class NoiseKeys:
    """The paths of a step's random keys: every message has its own path, which is folded into its keys."""

    def __init__(self, earlier: NoiseKeys | None = None) -> None:
        self._reserved: set[tuple[int, ...]] = set() if earlier is None else set(earlier._reserved)

    def reserve(self, *path: int) -> tuple[int, ...]:
        """Returns the path; raises ValueError, when a step is traced, if another message has it.

        A receiver of two messages with the same noise could subtract them and remove the noise.
        """
        if path in self._reserved:
            raise ValueError(
                f"two messages of one step would draw the same noise, at place {path}: give each its "
                "own exchange, graph or level."
            )
        self._reserved.add(path)
        return path


class Transport(NamedTuple):
    """How rows reach the slots of one graph in one step; the network's own functions."""

    exchange_rows: Callable[[Array], Received]  # (nodes, entries), one row to all neighbours → their rows
    exchange_link_rows: Callable[[Array], Received]  # (*slots, entries), a row for each neighbour → theirs for the node
    exchange_coded_rows: Callable[..., Array]  # (nodes, bytes) → (*slots, entries), the neighbours' rows, decoded
    encode_rows: Callable[..., Array] | None = None  # (nodes, entries) → (nodes, bytes); None if no codes are sent
    incarnation: Scalar | None = None  # of this process, where messages are sent before a step (`Wave.post`)


class Channel(NamedTuple):
    """One graph's links in one exchange of one step: what a message uses to reach the neighbours."""

    links: Links
    step: Array
    exchange_index: int  # of this exchange in the step, from 0
    faults: LinkFaults
    transport: Transport
    graph_index: int = 0
    kind_index: int = 0  # of the kind of message, among those on the graph
    noise_keys: NoiseKeys | None = None  # of the step; None where nothing is sent
    exchange_count: Array | None = None  # how often these levels have exchanged so far; None: once per step
    phase: Array | None = None  # of the graph; None is that of the step

    @property
    def exchanges_so_far(self) -> Array:
        """How often these levels have exchanged messages before this exchange."""
        return self.step if self.exchange_count is None else self.exchange_count

    def weights(self, dtype: DTypeLike) -> Array:
        """(*slots,) the weights of the links in this phase."""
        return self.links.weights_at(self.step if self.phase is None else self.phase, dtype)

    def shares(self, dtype: DTypeLike) -> tuple[Array, Array]:
        """(*slots,) what share of a neighbour's vector is pushed here in this phase, and (nodes,) of a node's own."""
        return self.links.shares_at(self.step if self.phase is None else self.phase, dtype)

    def reserve(self, part: int) -> tuple[int, ...]:
        """Reserves the key path of a part of the message."""
        assert self.noise_keys is not None
        return self.noise_keys.reserve(*self.key_path(part))

    def key_path(self, part: int) -> tuple[int, ...]:
        """The key path of a part of the message, also for the receiver."""
        return (self.exchange_index, self.graph_index, self.kind_index, part)

    @property
    def arrives(self) -> Array:
        """(*slots,) where a message arrives: the link is up, both its ends take part, and it is not lost."""
        schedule = self.faults.schedule
        receiver, sender = self.faults.ends(self.links)
        is_idle = self.faults.either_end(schedule.is_idle, self.step, self.links)
        is_up = ~(schedule.is_down(self.step, receiver, sender) | is_idle)
        return is_up & ~schedule.is_lost(self.step, self.exchange_index, receiver, sender)

    @property
    def delay(self) -> Array:
        """(*slots,) the number of steps by which a message is late."""
        return self.faults.schedule.delay(self.step, *self.faults.ends(self.links))

    @property
    def is_reset(self) -> Array:
        """(*slots,) where one end has left, so that the other drops the link's state."""
        return self.faults.either_end(self.faults.schedule.has_left, self.step, self.links)


class LinkMemory(NamedTuple):
    """The state of links for one kind of message over one graph: (*slots, ...) by link, and (nodes, ...) by node."""

    per_link: PyTree = None
    per_node: PyTree = None

    def reslotted(self, before: np.ndarray, now: np.ndarray, slots: int) -> LinkMemory:
        """The same state with links moved from the slots `before` to the slots `now`, of `slots` in total."""

        def move(leaf: Array) -> Array:
            return jnp.zeros((slots, *leaf.shape[1:]), leaf.dtype).at[now].set(leaf[before])

        return LinkMemory(jax.tree.map(move, self.per_link), self.per_node)


Answers: TypeAlias = tuple[dict[str, PyTree], LinkMemory]  # what each level receives, and what links then remember
ExchangeMemory = tuple[tuple[LinkMemory, ...], ...]  # of one exchange: by graph, and by kind of message


def migrate_links(
    link_memories: tuple[ExchangeMemory, ...], graphs: Levels, before: int, now: int
) -> tuple[ExchangeMemory, ...]:
    """What links remember, by exchange, after nodes move from `before` devices to `now` devices."""
    old_and_new_slots = [(slots(graph, before), slots(graph, now)) for graph in graphs.distinct()[0]]

    def move(memories: tuple[LinkMemory, ...], old: Slots, new: Slots) -> tuple[LinkMemory, ...]:
        if new.overflow is None:
            return memories
        return tuple(memory.reslotted(old.slot_of_link, new.slot_of_link, len(new.neighbours)) for memory in memories)

    return tuple(
        tuple(move(memories, old, new) for memories, (old, new) in zip(exchange, old_and_new_slots, strict=True))
        for exchange in link_memories
    )
