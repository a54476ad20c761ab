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
from ._messages import Stateless, zeros
from ._mixing import Mixer


class Push(Stateless):
    """Vectors p of which nodes keep a share and pass on the others: the answer is (C − I) p.

    A node that takes no part in a step pushes nothing in it.
    """

    def mixed(self, mixer: Mixer, phase: Array) -> PyTree:
        return jax.tree.map(lambda leaf: mixer.pushed(phase, leaf), self.content)

    def link_memory(self, channel: Channel) -> LinkMemory:
        """The newest totals that have arrived, by link, and the node's own; nothing where all messages arrive."""
        if not channel.faults.schedule.faults:
            return LinkMemory()
        heard = zeros(self.content, *channel.links.neighbours.shape)
        own = zeros(self.content, len(channel.faults.nodes))
        return LinkMemory(LinkVectors.start(heard, heard, channel), own)

    def receive(self, channel: Channel, memory: LinkMemory) -> Answers:
        p, unflatten = flatten(self.content)
        shares, leaving = channel.shares(p.dtype)
        if memory.per_node is None:
            grown = channel.transport.rows(p).rows
        else:
            p, grown, memory = _by_totals(channel, p, memory)
        arriving = channel.links.sums.at_nodes(shares[..., None] * grown)
        return unflatten(arriving - leaving[:, None] * p), memory


def _by_totals(channel: Channel, p: Array, memory: LinkMemory) -> tuple[Array, Array, LinkMemory]:
    """(nodes, entries) what each node's total grows by, (*slots, entries) by how much the totals heard have grown, and
    what links remember."""
    heard, before = memory.per_link, memory.per_node
    active = channel.faults.active(channel.step)
    total = before + (p if active is None else jnp.where(active[:, None], p, 0))
    received = channel.transport.rows(total)
    forgotten = jnp.zeros(heard.vectors.shape[:-1], bool)
    rows, new, after = heard.newest(channel, received, forgotten)
    newest = jnp.where(new[..., None], rows, heard.vectors)
    # A total is rounded; what leaves a node is what its total grew by, so that the sum over nodes stays.
    return total - before, newest - heard.vectors, LinkMemory(after._replace(vectors=newest), total)
