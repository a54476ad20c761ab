"""Messages for one-way links: a node passes on shares of what it holds, and none may be lost.

A node splits its vector p among itself and those that it sends to, by the columns of C. Columns sum to one, so the sum
over nodes stays. Where a message may be lost, a node sends the running total of all that it has pushed. The receiver
takes the growth of the total since the last one that arrived: what a lost message held comes with the next one. Such
totals are those of Vaidya, Hadjicostis and Domínguez-García (2011) and of Hadjicostis, Vaidya and Domínguez-García
(2016), for push-sum over links that lose messages.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from ..core._types import PyTree
from ..core._vector import flatten
from ._in_flight import InFlight, arrivals, numbers_sent
from ._links import Answers, Channel, LinkMemory
from ._messages import Stateless, zeros
from ._mixing import Mixer


class Heard(NamedTuple):
    """(*slots, entries) the newest total that has arrived over each link, and, where messages are late, what is under
    way and (*slots, 1) the number of that newest one."""

    totals: Array
    in_flight: InFlight | None
    used: Array | None


class Push(Stateless):
    """Vectors p of which nodes keep a share and pass on the others: the answer is (C − I) p.

    A node that takes no part in a step pushes nothing in it.
    """

    def mixed(self, mixer: Mixer, phase: Array) -> PyTree:
        return jax.tree.map(lambda leaf: mixer.pushed(phase, leaf), self.content)

    def link_memory(self, channel: Channel) -> LinkMemory:
        """The totals that were heard, by link, and the node's own; nothing where all messages arrive."""
        if not channel.faults.schedule.faults:
            return LinkMemory()
        heard = zeros(self.content, *channel.links.neighbours.shape)
        in_flight = InFlight.empty(heard, channel)
        used = None if in_flight is None else jnp.zeros((*heard.shape[:-1], 1), jnp.int32)
        return LinkMemory(Heard(heard, in_flight, used), zeros(self.content, len(channel.faults.nodes)))

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
    none = jnp.zeros(heard.totals.shape[:-1], bool)
    rows, number, in_flight = arrivals(channel, received, numbers_sent(channel), heard.in_flight, none)
    last_used = 0 if heard.used is None else heard.used[..., 0]
    newest = jnp.where((number > last_used)[..., None], rows, heard.totals)
    used = None if heard.used is None else jnp.maximum(number, last_used)[..., None]
    # A total is rounded; what leaves a node is what its total grew by, so that the sum over nodes stays.
    return total - before, newest - heard.totals, LinkMemory(Heard(newest, in_flight, used), total)
