"""Flows that are summed over the steps, and never grow beyond a limit (`_cut`).

The norm of −F is that of F, so that both ends of an honest link cut alike, and flows still cancel.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import numpy as np
from jax import Array

from ..core._types import PyTree
from ..core._vector import flatten
from ._cut import Sizes, clamped, cut_levels, no_sizes
from ._links import Channel, LinkMemory, LinkStates, Received
from ._messages import Cumulative, LateFlows, accumulate
from ._wave import WaveLinks


class LimitedFlows(NamedTuple):
    """What a link remembers: (*slots, entries) its flows, with what is under way where links are late, and their
    sizes."""

    flows: Array | LateFlows
    sizes: Sizes


class Limited(Cumulative):
    """`Cumulative`, with every level's flow cut to the limit times the step size."""

    splits: ClassVar[bool] = False

    def link_memory(self, channel: Channel) -> LinkMemory:
        flows = super().link_memory(channel).by_link
        F = flows.flows if isinstance(flows, LateFlows) else flows
        return LinkMemory(LimitedFlows(flows, no_sizes(self.content, F)))

    def receive(self, channel: Channel, memory: LinkMemory) -> tuple[dict[str, PyTree], LinkMemory]:
        φ, unflatten = flatten(self.content)
        transport = channel.transport
        finite = channel._replace(transport=transport._replace(links=lambda rows: _finite(transport.links(rows))))
        after = accumulate(finite, φ, memory.by_link.flows)
        F = after.flows if isinstance(after, LateFlows) else after
        F, sizes = cut_levels(F, self.content, self.within, memory.by_link.sizes)
        flows = after._replace(flows=F) if isinstance(after, LateFlows) else F
        return unflatten(channel.links.sums.at_nodes(F)), LinkMemory(LimitedFlows(flows, sizes))


def _finite(received: Received) -> Received:
    return received._replace(rows=clamped(received.rows))


def sizes_by_graph(links: tuple[LinkStates, ...]) -> list[tuple[int, str, np.ndarray]]:
    """(the number of the graph, the level, (*slots, 2) the sizes) of every level with a limit."""
    return [
        (graph, level, np.asarray(sizes))
        for exchange in links
        for graph, memories in enumerate(exchange)
        for memory in memories
        if isinstance(memory.by_link, LimitedFlows | WaveLinks)
        for level, sizes in (memory.by_link.sizes or {}).items()
    ]
