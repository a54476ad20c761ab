"""Flows that are summed over the steps, and never grow beyond a limit: a bound on what a lying neighbour can do.

A node adds what a link has carried so far, F_ij, to its own step, so whoever sends wrong numbers for long enough moves
it anywhere, and clipping each step's difference would not help: sums of small lies are large. Here F_ij itself is cut
to a Euclidean norm, at each end alone and before it is used. The norm of −F is that of F, so that both ends of an
honest link cut alike, and flows still cancel; below the limit nothing is changed, to the last bit.

A limit is in the units of directions: a flow is worth its norm divided by the level's step size, since s − d + Σ_j F_ij
stays where it is when Σ_j F_ij is the step d.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from ..core._types import PyTree, Scalar
from ..core._vector import flatten, positive
from ._links import Channel, LinkMemory, LinkStates, Received
from ._messages import Copies, Cumulative, LateFlows, accumulate

Limit = Scalar | Mapping[str, Scalar]  # for every level, or by level


class LimitedFlows(NamedTuple):
    """What a link remembers: (*slots, entries) its flows, with what is under way where links are late, and by level
    (*slots, 2) how large they are, before they are cut: in the last step, and at most so far."""

    flows: Array | LateFlows
    sizes: dict[str, Array]


class Limited(Cumulative):
    """`Cumulative` of (φ, the step size, the limit), with every level's flow cut to the limit times the step size."""

    splits: ClassVar[bool] = False

    def bytes(self, copies: Copies) -> float:
        return Cumulative(self.content[0]).bytes(copies)

    def placeholder(self) -> PyTree:
        return self.content[0]

    def link_memory(self, channel: Channel) -> LinkMemory:
        vectors = {level: φ for level, (φ, _, _) in self.content.items()}
        flows = Cumulative(vectors).link_memory(channel).by_link
        F = flows.flows if isinstance(flows, LateFlows) else flows
        return LinkMemory(LimitedFlows(flows, {level: jnp.zeros((*F.shape[:-1], 2), F.dtype) for level in vectors}))

    def receive(self, channel: Channel, memory: LinkMemory) -> tuple[dict[str, PyTree], LinkMemory]:
        φ, unflatten = flatten({level: φ for level, (φ, _, _) in self.content.items()})
        widths = [flatten(self.content[level][0])[0].shape[1] for level in sorted(self.content)]
        transport = channel.transport
        finite = channel._replace(transport=transport._replace(links=lambda rows: _clamped(transport.links(rows))))
        after = accumulate(finite, φ, memory.by_link.flows)
        F = after.flows if isinstance(after, LateFlows) else after
        parts, sizes = [], {}
        for level, part in zip(sorted(self.content), jnp.split(F, np.cumsum(widths)[:-1].tolist(), -1), strict=True):
            _, rate, limit = self.content[level]
            if isinstance(limit, Mapping):
                if level not in limit:
                    raise ValueError(f"limit of edge_ed lacks level {level}: add it, or give one number for all.")
                limit = limit[level]
            part, size = cut(part, jnp.asarray(rate, F.dtype), jnp.asarray(limit, F.dtype))
            parts.append(part)
            sizes[level] = jnp.stack([size, jnp.maximum(size, memory.by_link.sizes[level][..., 1])], -1)
        F = jnp.concatenate(parts, -1)
        flows = after._replace(flows=F) if isinstance(after, LateFlows) else F
        return unflatten(channel.links.sums.at_nodes(F)), LinkMemory(LimitedFlows(flows, sizes))


def cut(F: Array, rate: Array, limit: Array) -> tuple[Array, Array]:
    """F with no row's norm above rate · limit, and the norms divided by the rate. Up to an eighth of the largest number
    nothing overflows, nor does an inverse vanish."""
    most = jnp.finfo(F.dtype).max
    entry = jnp.abs(F).max(-1)
    shares = F / positive(entry)[..., None]
    norm = jnp.maximum(jnp.sqrt(jnp.square(shares).sum(-1)), 1)  # in units of the largest entry
    allowed = rate * limit / norm
    kept = jnp.where((entry > allowed)[..., None], shares * allowed[..., None], F)
    # With a step size of zero every flow is too large.
    size = jnp.where(rate > 0, entry * norm / positive(rate), jnp.where(entry > 0, most, 0))
    return kept, jnp.minimum(size, most)


def _clamped(received: Received) -> Received:
    """No flow that is made of what is received is too large to be `cut`."""
    most = float(jnp.finfo(received.rows.dtype).max) / 16
    return received._replace(rows=jnp.clip(received.rows, -most, most))


def sizes_by_graph(links: tuple[LinkStates, ...]) -> list[tuple[int, str, np.ndarray]]:
    """(the number of the graph, the level, (*slots, 2) the sizes) of every level with a limit."""
    return [
        (graph, level, np.asarray(sizes))
        for exchange in links
        for graph, memories in enumerate(exchange)
        for memory in memories
        if isinstance(memory.by_link, LimitedFlows)
        for level, sizes in memory.by_link.sizes.items()
    ]
