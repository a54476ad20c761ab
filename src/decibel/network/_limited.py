"""Clipped flows (`_clip`): flows accumulated over the steps, and flows of one step.

−F has the norm of F, so both ends of an honest link clip alike, and flows still cancel.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import numpy as np
from jax import Array

from ..core._vector import flatten
from ._clip import Sizes, clamped, clip_levels, no_sizes
from ._in_flight import LinkVectors
from ._links import Answers, Channel, ExchangeMemory, LinkMemory, Received
from ._messages import Cumulative, Fanout, Message, Plain, accumulate, weighted_differences, zeros
from ._wave import WaveLinks


class LimitedFlows(NamedTuple):
    """The state of links: their flows, and the sizes of these."""

    flows: LinkVectors
    sizes: Sizes


class Limited(Cumulative):
    """`Cumulative`, with every level's flow clipped to the limit times the step size."""

    is_separable: ClassVar[bool] = False

    def link_memory(self, channel: Channel) -> LinkMemory:
        flows = super().link_memory(channel).per_link
        return LinkMemory(LimitedFlows(flows, no_sizes(self.content, flows.vectors)))

    def receive(self, channel: Channel, memory: LinkMemory) -> Answers:
        φ, unflatten = flatten(self.content)
        transport = channel.transport

        def clamped_links(rows: Array) -> Received:
            return _clamped(transport.exchange_link_rows(rows))

        clamped_channel = channel._replace(transport=transport._replace(exchange_link_rows=clamped_links))
        after = accumulate(clamped_channel, φ, memory.per_link.flows)
        F, sizes = clip_levels(after.vectors, self.content, self.flow_bound, memory.per_link.sizes)
        return unflatten(channel.links.sums.at_nodes(F)), LinkMemory(LimitedFlows(after._replace(vectors=F), sizes))


class LimitedDifferences(NamedTuple):
    """The state of links for flows of one step: late differences, where faults delay any, and sizes."""

    late: Array | None
    sizes: Sizes


class LimitedPlain(Message):
    """`Plain`, with every level's flow w_ij (φ_j − φ_i) clipped to the limit times the step size; it needs links."""

    def bytes(self, fanout: Fanout) -> float:
        return Plain(self.content).bytes(fanout)

    def link_memory(self, channel: Channel) -> LinkMemory:
        flows = zeros(self.content, *channel.links.neighbours.shape)
        late = Plain(self.content).link_memory(channel).per_link
        return LinkMemory(LimitedDifferences(late, no_sizes(self.content, flows)))

    def receive(self, channel: Channel, memory: LinkMemory) -> Answers:
        φ, unflatten = flatten(self.content)
        received = _clamped(channel.transport.exchange_rows(φ))
        late, sizes = memory.per_link
        F, late = weighted_differences(channel, received, received.rows - channel.links.sums.at_slots(φ), late)
        F, sizes = clip_levels(F, self.content, self.flow_bound, sizes)
        return unflatten(channel.links.sums.at_nodes(F)), LinkMemory(LimitedDifferences(late, sizes))


def _clamped(received: Received) -> Received:
    return received._replace(rows=clamped(received.rows))


def sizes_by_graph(links: tuple[ExchangeMemory, ...]) -> list[tuple[int, str, np.ndarray]]:
    """For every level with a limit: the index of its graph, its name, and its `Sizes`, (*slots, 2)."""
    return [
        (graph, level, np.asarray(sizes))
        for exchange in links
        for graph, memories in enumerate(exchange)
        for memory in memories
        if isinstance(memory.per_link, LimitedDifferences | LimitedFlows | WaveLinks)
        for level, sizes in (memory.per_link.sizes or {}).items()
    ]
