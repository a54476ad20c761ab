"""Messages for one-way links: a node passes on shares of what it holds, and none may be lost.

A node splits its vector p among itself and those that it sends to, by the columns of C. Columns sum to one, so the sum
over nodes stays. Where a message may be lost, a node sends the running total of all that it has pushed. The receiver
takes the growth of the total since the last one that arrived: what a lost message held comes with the next one. Such
totals are those of Vaidya, Hadjicostis and Domínguez-García (2011) and of Hadjicostis, Vaidya and Domínguez-García
(2016), for push-sum over links that lose messages.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from ..core._types import PyTree
from ..core._vector import flatten
from ._in_flight import LinkVectors
from ._links import Answers, Channel, LinkMemory
from ._messages import LinkFree, zeros
from ._mixing import Mixer


class Push(LinkFree):
    """Vectors p of which nodes keep a share and pass on the others: the answer is (C − I) p.

    A node that takes no part in a step pushes nothing in it.
    """

    def mix(self, mixer: Mixer, phase: Array) -> PyTree:
        return jax.tree.map(lambda leaf: mixer.push(phase, leaf), self.content)

    def link_memory(self, channel: Channel) -> LinkMemory:
        """The newest totals that have arrived, by link, and the node's own total; nothing if all messages arrive."""
        if not channel.faults.schedule.faults:
            return LinkMemory()
        received_totals = zeros(self.content, *channel.links.neighbours.shape)
        own_totals = zeros(self.content, len(channel.faults.node_ids))
        return LinkMemory(LinkVectors.start(received_totals, received_totals, channel), own_totals)

    def receive(self, channel: Channel, memory: LinkMemory) -> Answers:
        p, unflatten = flatten(self.content)
        shares, leaving = channel.shares(p.dtype)
        if memory.per_node is None:
            grown = channel.transport.exchange_rows(p).rows
        else:
            p, grown, memory = _by_totals(channel, p, memory)
        arriving = channel.links.sums.at_nodes(shares[..., None] * grown)
        return unflatten(arriving - leaving[:, None] * p), memory


def _by_totals(channel: Channel, p: Array, memory: LinkMemory) -> tuple[Array, Array, LinkMemory]:
    """Returns (nodes, entries) by how much each node's total grows, (*slots, entries) by how much the received totals
    have grown, and what links then remember."""
    received_totals = memory.per_link
    old_total = memory.per_node
    active = channel.faults.active(channel.step)
    total = old_total + (p if active is None else jnp.where(active[:, None], p, 0))
    received = channel.transport.exchange_rows(total)
    is_reset = jnp.zeros(received_totals.vectors.shape[:-1], bool)
    rows, is_new, after = received_totals.newest(channel, received, is_reset)
    newest = jnp.where(is_new[..., None], rows, received_totals.vectors)
    # A total is rounded; what leaves a node is what its total grew by, so that the sum over nodes stays.
    return total - old_total, newest - received_totals.vectors, LinkMemory(after._replace(vectors=newest), total)
