"""The network of a silo without a common clock: messages are sent before a step, and used after what it computes."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from decibel import State
from decibel.core import PyTree
from decibel.network import (
    ASYNC_HEADER_BYTES,
    Fanout,
    LinkMemory,
    Message,
    NoiseKeys,
    Received,
    Transport,
    Wave,
    by_kind,
)

from ..protocol._async_site import AsyncSite
from ._host_callback import call_site
from ._site_network import SiteNetwork, shapes_received

WavesPerExchange = list[dict[str, Wave]]  # the messages of a step, by level in each exchange, without contents


class AsyncSiteNetwork(SiteNetwork):
    """A network whose exchanges only take what has arrived; `waves` are what a site sends for them before the step."""

    def transport(
        self, step: Array, exchange_index: int, graph: int, wait_for: PyTree = None, phase: Array | None = None
    ) -> Transport:
        incarnation = self.site.incarnation % (2**31 - 1) + 1
        collect = partial(self._collect, step, exchange_index, graph, wait_for)
        transport = super().transport(step, exchange_index, graph, phase=phase)
        return transport._replace(exchange_link_rows=collect, incarnation=incarnation)

    def fanout_on(self, graph: int) -> Fanout:
        return super().fanout_on(graph)._replace(header_bytes=ASYNC_HEADER_BYTES)

    def _collect(self, step: Array, number: int, graph: int, wait_for: PyTree, q: Array) -> Received:
        """The newest messages, as late as possible: the call takes `wait_for` as arguments, and so follows it."""
        self.privacy.expect_plain_message()
        self.site.expect(q.dtype, q.shape[-1:])
        slots = len(self.neighbour_of_slot[graph])
        shapes = shapes_received(slots, q)
        parts = call_site(
            self.site, partial(self._collect_on_host, (number, graph)), shapes, step, *jax.tree.leaves(wait_for)
        )
        return Received(*(part[None] for part in parts))

    def _collect_on_host(
        self, key: tuple[int, int], out: tuple[np.ndarray, np.ndarray, np.ndarray], *_: np.ndarray
    ) -> None:
        assert isinstance(self.site, AsyncSite)
        self.site.collect(self.site.exchange_keys.index(key), out)

    def post_waves(self, step: Array, state: State, waves: WavesPerExchange) -> tuple[list[Array], State]:
        """For each exchange of a step, (slots, entries) what goes to every neighbour before the step; and the state
        with what links remember of it."""
        draws = NoiseKeys()
        rows = []
        links = [[list(memories) for memories in by_graph] for by_graph in state.link_memory]
        for number, graph, message, memory in self._links(state, waves):
            channel = self._channel(step, number, graph)._replace(noise_keys=draws)
            row, links[number][graph][0] = message.post(channel, memory)
            rows.append(row[0])
        kept = tuple(tuple(tuple(memories) for memories in by_graph) for by_graph in links)
        return rows, state._replace(link_memory=kept)

    def exchange_keys(self, state: State, waves: WavesPerExchange) -> list[tuple[int, int]]:
        """For each message of a step, the number of its exchange and of its graph."""
        keys = [(number, graph) for number, graph, _, _ in self._links(state, waves)]
        if len(set(keys)) < len(keys):
            raise ValueError("asynchronous sites send one message for all levels: give every level the same code.")
        return keys

    def held(self, state: State, waves: WavesPerExchange) -> list[Array]:
        """For each exchange, (slots, entries) what the links hold."""
        return [memory.per_link.z[0] for _, _, _, memory in self._links(state, waves)]

    def link_changes(self, before: State, after: State, waves: WavesPerExchange) -> list[Array]:
        """For each exchange, (slots,) the largest change in a step of any entry that the link holds."""
        both = zip(self.held(before, waves), self.held(after, waves), strict=True)
        return [jnp.abs(new - old).max(-1, initial=0).astype(jnp.float32) for old, new in both]

    def _links(self, state: State, waves: WavesPerExchange) -> list[tuple[int, int, Wave, LinkMemory]]:
        links: list[tuple[int, int, Wave, LinkMemory]] = []
        for number, empty in enumerate(waves):
            messages: dict[str, Message] = {
                level: replace(placeholder, content=getattr(state, level).s) for level, placeholder in empty.items()
            }
            for graph, of_graph in enumerate(self._by_graph(messages)):
                for message in by_kind(of_graph):
                    assert isinstance(message, Wave)
                    links.append((number, graph, message, state.link_memory[number][graph][0]))
        return links
