"""How messages are exchanged: the only part that knows where nodes run."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from functools import partial

import equinox as eqx
import jax
from jax import Array

from ..core._types import PyTree
from ._codecs import ConcatCodec
from ._links import Channel, Draws, LinkFaults, LinkMemory, Links, LinkStates, Received, Transport, Turn
from ._messages import Copies, Message, Plain, by_kind

LEVELS = ("x", "y", "z")


class Network(eqx.Module):
    """Base class of networks: how messages are exchanged between nodes.

    Every engine has one: in the memory of one device, by collectives between devices, and by gRPC between sites. A
    subclass implements `mix`, for messages that are plain and all arrive; `rows` and `link_rows`, which fill the slots
    of neighbours if messages may be lost or links keep a state; and `copies_on`. Arrays of a network are arguments of
    the compiled step.

    Args:
        graph_of: the index of the graph of each of the levels x, y, z.
        links: the links of each graph; empty if messages are plain and all arrive.
        faults: the faults of nodes and links; None if there are no `links`.
    """

    graph_of: tuple[int, int, int] = eqx.field(static=True)
    links: tuple[Links, ...]
    faults: LinkFaults | None

    def exchange(
        self,
        step: Array,
        number: int,
        messages: dict[str, Message],
        link_state: LinkStates | None,
        draws: Draws | None = None,
        turn: Turn | None = None,
    ) -> tuple[dict[str, PyTree], LinkStates]:
        """Sends every level's message to the neighbours, levels on the same graph together.

        Args:
            step: the iteration.
            number: of this exchange in the step, from 0.
            messages: by level.
            link_state: of the same exchange in the previous step; None where links remember nothing.
            draws: what the step's messages have drawn so far, so that no two draw alike; None for this exchange's own.
            turn: which turn of these levels it is; None where they exchange messages in every step.

        Returns:
            What each level receives, and the new link state.
        """
        draws = draws or Draws()
        phase = step if turn is None else turn.done
        received: dict[str, PyTree] = {}
        after: list[tuple[LinkMemory, ...]] = []
        for graph, here in enumerate(self._by_graph(messages)):
            if not here:
                after.append(())
                continue
            if not self.links and not all(map(self.mixes, here.values())):
                raise ValueError(
                    f"{type(self).__name__} has no links, which such messages need: build it with by_link(graphs, "
                    "config.link_faults(numbers)) where links remember method.messages."
                )
            if not self.links:
                received |= self.mix(phase, graph, here)
                continue
            memories: list[LinkMemory] = []
            channel = self._channel(step, number, graph)._replace(draws=draws, turn=turn, phase=phase)
            for place, message in enumerate(by_kind(here)):
                transport = self.transport(step, number, graph, message.after, phase)
                channel = channel._replace(place=(graph, place), transport=transport)
                memory = message.link_memory(channel) if link_state is None else link_state[graph][place]
                contents, memory = message.receive(channel, memory)
                received |= contents
                memories.append(memory)
            after.append(tuple(memories))
        return received, tuple(after)

    def first_link_state(self, step: Array, number: int, messages: dict[str, Message]) -> LinkStates:
        """What links remember before the first exchange of such messages; nothing is sent."""
        if not self.links:
            return ()
        return tuple(
            tuple(message.link_memory(self._channel(step, number, graph)) for message in by_kind(here))
            for graph, here in enumerate(self._by_graph(messages))
        )

    def _by_graph(self, messages: dict[str, Message]) -> list[dict[str, Message]]:
        graphs = range(max(self.graph_of) + 1)
        return [{at: m for at, m in messages.items() if self.graph_of[LEVELS.index(at)] == graph} for graph in graphs]

    def active(self, step: Array) -> Array | None:
        """(nodes,) which move in the step; None if all always do."""
        return None if self.faults is None else self.faults.active(step)

    def copies(self, level: str) -> Copies:
        """How many rows a node sends in an exchange of that level."""
        return self.copies_on(self.graph_of[LEVELS.index(level)])

    def _channel(self, step: Array, number: int, graph: int) -> Channel:
        assert self.faults is not None
        return Channel(self.links[graph], step, number, self.faults, self.transport(step, number, graph))

    def transport(
        self, step: Array, number: int, graph: int, after: PyTree = None, phase: Array | None = None
    ) -> Transport:
        """How rows reach the slots of a graph in an exchange; `after` is what is computed before they are used."""
        phase = step if phase is None else phase
        return Transport(
            partial(self.rows, phase, graph),
            partial(self.link_rows, phase, graph),
            partial(self.coded_rows, phase, graph),
            partial(self.encoded, step),
        )

    @abstractmethod
    def copies_on(self, graph: int) -> Copies:
        """How many rows a node sends over that graph in an exchange."""

    def mixes(self, message: Message) -> bool:
        """Whether such messages can go without links, if all of them arrive."""
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
        """(nodes, bytes): every node's row of a (nodes, entries) buffer in code, by keys that all know and own ones."""
        return jax.vmap(codec.encode)(new, keys, secrets)

    def coded_rows(
        self, phase: Array, graph: int, sent: Array, own: Array, codec: ConcatCodec, decode: Callable[[Array], Array]
    ) -> Array:
        """(*slots, entries): neighbours' encoded rows, decoded by `decode`; `own` are this node's decoded rows."""
        return decode(self.rows(phase, graph, sent).rows)
