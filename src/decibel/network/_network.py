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
PHASES = 2**31 + 4  # a stream of keys of its own, beyond every step


class Changes(NamedTuple):
    """How a graph changes: the number of its phases, whether they are drawn, and Exact Diffusion's damping on it; and
    the rounds of an exchange, None for a single one."""

    phases: int
    drawn: bool
    damping: float
    gossip: Gossip | None = None

    @classmethod
    def of(cls, graph: Topology) -> Changes:
        gossip = graph.gossip if isinstance(graph, Accelerated) else None
        return cls(graph.period, graph.order == "random", graph.damping, gossip)


class Network(eqx.Module):
    """Base class of networks: how messages are exchanged between nodes.

    Every engine has one: in the memory of one device, by collectives between devices, and by gRPC between sites. A
    subclass implements `mix`, for messages that are plain and all arrive; `rows` and `link_rows`, which fill the slots
    of neighbours if messages may be lost or links keep a state; and `fanout_on`. Arrays of a network are arguments of
    the compiled step.

    Args:
        graph_of: the index of the graph of each of the levels x, y, z.
        links: the links of each graph; empty if messages are plain and all arrive.
        faults: the faults of nodes and links; None if there are no `links`.
        changes: how each graph changes; empty if none draws its phases, damps or takes several rounds.
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
        number: int,
        messages: dict[str, Message],
        link_memories: ExchangeMemory | None,
        noise_keys: NoiseKeys | None = None,
        exchange_count: Array | None = None,
        phases: tuple[Array, ...] = (),
    ) -> tuple[dict[str, PyTree], ExchangeMemory]:
        """Sends every level's message to the neighbours, levels on the same graph together.

        Args:
            step: the iteration.
            number: of this exchange in the step, from 0.
            messages: by level.
            link_memories: of the same exchange in the previous step; None where links remember nothing.
            noise_keys: the keys of the step's messages so far, so that no two share one; None for this exchange alone.
            exchange_count: how often these levels have exchanged so far; None if they do so once per step.
            phases: of each graph, as `phases` gives them; where there are none, they are in cyclic order.

        Returns:
            What each level receives, and what links remember of this exchange.
        """
        noise_keys = noise_keys or NoiseKeys()
        count = step if exchange_count is None else exchange_count
        received: dict[str, PyTree] = {}
        after: list[tuple[LinkMemory, ...]] = []
        for graph, of_graph in enumerate(self._by_graph(messages)):
            if not of_graph:
                after.append(())
                continue
            phase = phases[graph] if phases else count
            if not self.links and not all(map(self.needs_no_links, of_graph.values())):
                raise ValueError(
                    f"{type(self).__name__} has no links, which such messages need: build it with with_links(graphs, "
                    "config.link_faults(node_ids)) where links remember method.messages."
                )
            if not self.links:
                received |= self.mix(phase, graph, of_graph)
                continue
            memories: list[LinkMemory] = []
            channel = self._channel(step, number, graph)._replace(
                noise_keys=noise_keys, exchange_count=exchange_count, phase=phase
            )
            for place, message in enumerate(by_kind(of_graph)):
                transport = self.transport(step, number, graph, message.wait_for, phase)
                channel = channel._replace(place=(graph, place), transport=transport)
                memory = message.link_memory(channel) if link_memories is None else link_memories[graph][place]
                contents, memory = message.receive(channel, memory)
                received |= contents
                memories.append(memory)
            after.append(tuple(memories))
        return received, tuple(after)

    def phases(self, count: Array, key: Array) -> tuple[Array, ...]:
        """The phase of each graph in the exchange with that number, given the run's key; whole periods may be added."""

        def phase(graph: int, changes: Changes) -> Array:
            if not changes.drawn:
                return count
            drawn = jax.random.fold_in(jax.random.fold_in(jax.random.fold_in(key, PHASES), graph), count)
            return jax.random.randint(drawn, (), 0, changes.phases, jnp.int32)

        return tuple(phase(graph, changes) for graph, changes in enumerate(self.changes))

    def damping(self, level: str) -> float:
        """κ of Exact Diffusion on the graph of a level: 1 where it never changes."""
        return self.changes[self.graph_of[LEVELS.index(level)]].damping if self.changes else 1.0

    def first_link_memory(self, step: Array, number: int, messages: dict[str, Message]) -> ExchangeMemory:
        """What links remember before the first exchange of such messages; nothing is sent."""
        if not self.links:
            return ()
        return tuple(
            tuple(message.link_memory(self._channel(step, number, graph)) for message in by_kind(of_graph))
            for graph, of_graph in enumerate(self._by_graph(messages))
        )

    def _by_graph(self, messages: dict[str, Message]) -> list[dict[str, Message]]:
        graphs = range(max(self.graph_of) + 1)
        return [{at: m for at, m in messages.items() if self.graph_of[LEVELS.index(at)] == graph} for graph in graphs]

    def active(self, step: Array) -> Array | None:
        """(nodes,) whether each node moves in the step; None if all always do."""
        return None if self.faults is None else self.faults.active(step)

    def fanout(self, level: str) -> Fanout:
        """How many rows a node sends in an exchange of that level."""
        return self.fanout_on(self.graph_of[LEVELS.index(level)])

    def _channel(self, step: Array, number: int, graph: int) -> Channel:
        assert self.faults is not None
        return Channel(self.links[graph], step, number, self.faults, self.transport(step, number, graph))

    def transport(
        self, step: Array, number: int, graph: int, wait_for: PyTree = None, phase: Array | None = None
    ) -> Transport:
        """How rows reach the slots of a graph in an exchange; `wait_for` is computed before they are used."""
        phase = step if phase is None else phase
        return Transport(
            partial(self.rows, phase, graph),
            partial(self.link_rows, phase, graph),
            partial(self.coded_rows, phase, graph),
            partial(self.encoded, step),
        )

    @abstractmethod
    def fanout_on(self, graph: int) -> Fanout:
        """How many rows a node sends over that graph in an exchange."""

    def needs_no_links(self, message: Message) -> bool:
        """Whether such messages need no links, if all of them arrive."""
        return isinstance(message, Plain)

    @abstractmethod
    def mix(self, phase: Array, graph: int, messages: dict[str, Message]) -> dict[str, PyTree]:
        """What every level receives, δ = Σ_j w_ij (m_j − m_i) for plain vectors, if all of them arrive."""

    @abstractmethod
    def rows(self, phase: Array, graph: int, buffer: Array) -> Received:
        """Every neighbour's row of a (nodes, entries) buffer."""

    @abstractmethod
    def link_rows(self, phase: Array, graph: int, buffer: Array) -> Received:
        """What each neighbour holds for this node in a (*slots, entries) buffer."""

    def encoded(self, step: Array, codec: ConcatCodec, new: Array, keys: Array, secrets: Array) -> Array:
        """(nodes, bytes): every node's row of a (nodes, entries) buffer, encoded with a shared and a private key."""
        return jax.vmap(codec.encode)(new, keys, secrets)

    def coded_rows(
        self, phase: Array, graph: int, sent: Array, own: Array, codec: ConcatCodec, decode: Callable[[Array], Array]
    ) -> Array:
        """(*slots, entries): neighbours' encoded rows, decoded by `decode`; `own` are this node's decoded rows."""
        return decode(self.rows(phase, graph, sent).rows)
