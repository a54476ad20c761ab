"""How messages are exchanged. Only this part knows where nodes run."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from ..core._types import PyTree
from ..graphs._graph import Accelerated, Gossip, Topology
from ._codecs import ConcatCodec
from ._links import Channel, ExchangeMemory, LinkFaults, LinkMemory, Links, NoiseKeys, Received, Transport
from ._messages import Fanout, Message, Plain, by_kind

LEVELS = ("x", "y", "z")
PHASE_STREAM = 2**31 + 4  # a stream of keys that no other use shares; it lies beyond every step


class Changes(NamedTuple):
    """How a graph changes from step to step, and how messages travel over it.

    Attributes:
        phases: how many phases it has.
        random_order: whether each exchange takes a random phase instead of the next one.
        damping: κ of Exact Diffusion on it.
        gossip: the rounds of an exchange; None for a single round.
    """

    phases: int
    random_order: bool
    damping: float
    gossip: Gossip | None = None

    @classmethod
    def of(cls, graph: Topology) -> Changes:
        gossip = graph.gossip if isinstance(graph, Accelerated) else None
        return cls(graph.period, graph.order == "random", graph.damping, gossip)


class Network(eqx.Module):
    """Base class of networks: how messages are exchanged between nodes.

    Every engine has one: in the memory of one device, by collectives between devices, and by gRPC between sites. A
    subclass implements `mix`, for messages that are plain and all arrive; `rows` and `link_rows`, which send rows and
    fill the slots of neighbours if messages may be lost or links keep a state; and `fanout_on`. Arrays of a network
    are arguments of the compiled step.

    Args:
        graph_of: the index of the graph of each of the levels x, y, z.
        links: the links of each graph; empty if messages are plain and all arrive.
        faults: the faults of nodes and links; None if there are no `links`.
        changes: how each graph changes; empty if none has random phases, damping or several rounds.
    """

    graph_of: tuple[int, int, int] = eqx.field(static=True)
    links: tuple[Links, ...]
    faults: LinkFaults | None
    changes: tuple[Changes, ...] = eqx.field(static=True, default=(), kw_only=True)

    def gossip_of(self, level: str) -> Gossip | None:
        """The rounds of an exchange of that level; None for a single one."""
        return self.changes[self.graph_of[LEVELS.index(level)]].gossip if self.changes else None

    def exchange(
        self,
        step: Array,
        exchange_index: int,
        messages: dict[str, Message],
        link_memories: ExchangeMemory | None,
        noise_keys: NoiseKeys | None = None,
        exchange_count: Array | None = None,
        phases: tuple[Array, ...] = (),
    ) -> tuple[dict[str, PyTree], ExchangeMemory]:
        """Sends every level's message to the neighbours, levels on the same graph together.

        Args:
            step: the iteration.
            exchange_index: of this exchange in the step, from 0.
            messages: by level.
            link_memories: what links remembered after the same exchange of the previous step; None if they remember
                nothing.
            noise_keys: the keys of the step's messages so far, so that no two share one; None for this exchange alone.
            exchange_count: how often these levels have exchanged so far; None if they do so once per step.
            phases: the phase of each graph, from `self.phases`; empty if phases follow in cyclic order.

        Returns:
            What each level receives, and what links remember of this exchange.
        """
        noise_keys = noise_keys or NoiseKeys()
        phase_count = step if exchange_count is None else exchange_count
        received: dict[str, PyTree] = {}
        new_memories: list[tuple[LinkMemory, ...]] = []
        for graph, messages_on_graph in enumerate(self._by_graph(messages)):
            if not messages_on_graph:
                new_memories.append(())
                continue
            phase = phases[graph] if phases else phase_count
            if not self.links and not all(map(self.needs_no_links, messages_on_graph.values())):
                raise ValueError(
                    f"{type(self).__name__} has no links, which such messages need: build it with with_links(graphs, "
                    "config.link_faults(node_ids)) where links remember method.messages."
                )
            if not self.links:
                received |= self.mix(phase, graph, messages_on_graph)
                continue
            memories_on_graph: list[LinkMemory] = []
            for kind_index, message in enumerate(by_kind(messages_on_graph)):
                channel = self._channel(step, exchange_index, graph)._replace(
                    kind_index=kind_index,
                    transport=self.transport(step, exchange_index, graph, message.wait_for, phase),
                    noise_keys=noise_keys,
                    exchange_count=exchange_count,
                    phase=phase,
                )
                memory = message.link_memory(channel) if link_memories is None else link_memories[graph][kind_index]
                contents, memory = message.receive(channel, memory)
                received |= contents
                memories_on_graph.append(memory)
            new_memories.append(tuple(memories_on_graph))
        return received, tuple(new_memories)

    def phases(self, count: Array, key: Array) -> tuple[Array, ...]:
        """The phase of each graph in an exchange, plus whole periods.

        Args:
            count: how many exchanges of these levels came before.
            key: the run's key, for phases in random order.
        """

        def phase(graph: int, changes: Changes) -> Array:
            if not changes.random_order:
                return count
            phase_key = jax.random.fold_in(jax.random.fold_in(jax.random.fold_in(key, PHASE_STREAM), graph), count)
            return jax.random.randint(phase_key, (), 0, changes.phases, jnp.int32)

        return tuple(phase(graph, changes) for graph, changes in enumerate(self.changes))

    def damping(self, level: str) -> float:
        """κ of Exact Diffusion on the graph of a level: 1 where it never changes."""
        return self.changes[self.graph_of[LEVELS.index(level)]].damping if self.changes else 1.0

    def first_link_memory(self, step: Array, exchange_index: int, messages: dict[str, Message]) -> ExchangeMemory:
        """What links remember before the first exchange of such messages; nothing is sent."""
        if not self.links:
            return ()
        return tuple(
            tuple(
                message.link_memory(self._channel(step, exchange_index, graph))
                for message in by_kind(messages_on_graph)
            )
            for graph, messages_on_graph in enumerate(self._by_graph(messages))
        )

    def _by_graph(self, messages: dict[str, Message]) -> list[dict[str, Message]]:
        by_graph: list[dict[str, Message]] = [{} for _ in range(max(self.graph_of) + 1)]
        for level, message in messages.items():
            by_graph[self.graph_of[LEVELS.index(level)]][level] = message
        return by_graph

    def active(self, step: Array) -> Array | None:
        """(nodes,) whether each node moves in the step; None if all always do."""
        return None if self.faults is None else self.faults.active(step)

    def fanout(self, level: str) -> Fanout:
        """How many rows a node sends in an exchange of that level."""
        return self.fanout_on(self.graph_of[LEVELS.index(level)])

    def _channel(self, step: Array, exchange_index: int, graph: int) -> Channel:
        assert self.faults is not None
        transport = self.transport(step, exchange_index, graph)
        return Channel(self.links[graph], step, exchange_index, self.faults, transport, graph_index=graph)

    def transport(
        self, step: Array, exchange_index: int, graph: int, wait_for: PyTree = None, phase: Array | None = None
    ) -> Transport:
        """The functions that send and receive rows over a graph in an exchange; `wait_for` is computed before rows
        are used."""
        phase = step if phase is None else phase
        return Transport(
            partial(self.rows, phase, graph),
            partial(self.link_rows, phase, graph),
            partial(self.coded_rows, phase, graph),
            partial(self.encode_rows, step),
        )

    @abstractmethod
    def fanout_on(self, graph: int) -> Fanout:
        """How many rows a node sends over that graph in an exchange."""

    def needs_no_links(self, message: Message) -> bool:
        """Whether such messages need no links, if all of them arrive."""
        return isinstance(message, Plain)

    @abstractmethod
    def mix(self, phase: Array, graph: int, messages: dict[str, Message]) -> dict[str, PyTree]:
        """Exchanges messages that all arrive: what every level receives, δ = Σ_j w_ij (m_j − m_i) for plain vectors."""

    @abstractmethod
    def rows(self, phase: Array, graph: int, buffer: Array) -> Received:
        """Sends each node's row of a (nodes, entries) buffer to its neighbours, and returns the neighbours' rows."""

    @abstractmethod
    def link_rows(self, phase: Array, graph: int, buffer: Array) -> Received:
        """Sends each row of a (*slots, entries) buffer to the neighbour of its slot, and returns the rows that
        neighbours send to the node."""

    def encode_rows(self, step: Array, codec: ConcatCodec, new: Array, keys: Array, secrets: Array) -> Array:
        """(nodes, bytes): every node's row of a (nodes, entries) buffer, encoded with a shared and a private key."""
        return jax.vmap(codec.encode)(new, keys, secrets)

    def coded_rows(
        self, phase: Array, graph: int, sent: Array, own: Array, codec: ConcatCodec, decode: Callable[[Array], Array]
    ) -> Array:
        """Sends each node's encoded row to its neighbours, and returns theirs, (*slots, entries) decoded by `decode`;
        `own` are the nodes' own rows, decoded."""
        return decode(self.rows(phase, graph, sent).rows)
