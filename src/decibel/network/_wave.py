"""Messages that need no common clock: a wave on every link, which is exact whatever comes late, or never.

Each end of a link keeps one vector z_ij, and ρ_ij = ρ_ji is twice the link's weight. A node sends q_ij = 2 ρ_ij s_i −
z_ij. When it has finished computing, it takes the newest q_ji that it has not used, z_ij ← ½ (z_ij + q_ji), and adds
the flows z_ij − ρ_ij s_i to its step. Where nothing moves any more, z_ij + z_ji = 2 ρ_ij s, so that flows cancel over
the link; no end has to know what the other has received.

With a limit (`_cut`) the flow F_ij = z_ij − ρ_ij s_i is cut before it is used, z_ij ← ρ_ij s_i + clip(F_ij). In step
it is ½ (F_ij − F_ji) + w_ij (s_j − s_i) of the flows before the exchange, so that both ends of an honest link cut
alike, and flows still cancel.

Messages are numbered by the step in which they are sent, and each is used once: what is older than the last one used is
dropped. A changing graph is one whose links are silent in the phases that lack them.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import jax.numpy as jnp
from jax import Array

from ..core._types import PyTree
from ..core._vector import flatten
from ._cut import Sizes, clamped, cut_levels, no_sizes
from ._in_flight import InFlight, arrivals, numbers_sent
from ._links import Channel, LinkMemory, LinkState, Received
from ._messages import Copies, Message, size, zeros


class Mail(NamedTuple):
    """(*slots, entries) the newest message that has come over each link, and (*slots, 1) its number; 0 is none."""

    rows: Array
    numbers: Array


class WaveLinks(NamedTuple):
    """What a link remembers: (*slots, entries) z; (*slots, 2) whether z has begun, and the number of the last message
    used; the mail of nodes that compute for several steps; what is needed to carry messages; and, with a limit, the
    sizes of flows."""

    z: Array
    numbers: Array
    mail: Mail | None
    transit: PyTree
    sizes: Sizes | None = None


class Carried(NamedTuple):
    """(*slots, entries) what has come over each link in a step, (*slots,) its number (0 is nothing), where a link has
    begun anew, and what is needed to carry the next messages."""

    rows: Array
    numbers: Array
    forgotten: Array
    transit: PyTree


class Wave(Message):
    """Vectors s that are sent as one wave for each link; the answer is Σ_j (z_ij − ρ_ij s_i)."""

    splits: ClassVar[bool] = True

    @property
    def weight(self) -> float:
        """Of a new message in z."""
        return 0.5

    def bytes(self, copies: Copies) -> float:
        return copies.by_link * size(self.content)

    def link_memory(self, channel: Channel) -> LinkMemory:
        slots = channel.links.neighbours.shape
        z, numbers = zeros(self.content, *slots), jnp.zeros((*slots, 2), jnp.int32)
        slow = channel.faults.schedule.slows_nodes
        mail = Mail(zeros(self.content, *slots), jnp.zeros((*slots, 1), jnp.int32)) if slow else None
        sizes = None if self.within is None else no_sizes(self.content, z)
        return LinkMemory(WaveLinks(z, numbers, mail, self.transit(channel, z), sizes))

    def reflected(self, channel: Channel, memory: LinkMemory) -> tuple[Array, Array, Array]:
        """(*slots, entries) ρ s, z, and the waves q = 2 ρ s − z to send; they need nothing but the state."""
        s, _ = flatten(self.content)
        links, z, numbers = channel.links, memory.by_link.z, memory.by_link.numbers
        ρ = 2 * links.weights.mean(-1).astype(s.dtype)[..., None]
        mine = ρ * links.sums.at_slots(s)
        z = jnp.where((numbers[..., :1] == 0) | channel.forgotten[..., None], mine, z)
        return mine, z, 2 * mine - z

    def post(self, channel: Channel, memory: LinkMemory) -> tuple[Array, LinkMemory]:
        """What is sent before a step, where messages are not sent in it, and what links remember of that."""
        return self.reflected(channel, memory)[2], memory

    def receive(self, channel: Channel, memory: LinkMemory) -> tuple[dict[str, PyTree], LinkMemory]:
        s, unflatten = flatten(self.content)
        links, (_, numbers, mail, transit, sizes) = channel.links, memory.by_link
        mine, z, q = self.reflected(channel, memory)
        rows, came, forgotten, transit = self.carried(channel, q, transit)
        rows = rows if sizes is None else clamped(rows)
        z = jnp.where(forgotten[..., None], mine, z)
        used = jnp.where(forgotten, 0, numbers[..., 1])
        if mail is not None:  # which waits until the node has finished
            held = jnp.where(forgotten, 0, mail.numbers[..., 0])
            rows, held = jnp.where((came > held)[..., None], rows, mail.rows), jnp.maximum(came, held)
            mail = Mail(rows, held[..., None])
            came = jnp.where(links.sums.at_slots(channel.faults.finished(channel.step)), held, 0)
        weight = jnp.asarray(self.weight, s.dtype)
        new = came > used
        z = jnp.where(new[..., None], (1 - weight) * z + weight * rows, z)
        numbers = jnp.stack([(~forgotten).astype(jnp.int32), jnp.maximum(used, came)], -1)
        F = z - mine
        if sizes is not None:
            z, F, sizes = self._cut(channel, z, mine, sizes, new | forgotten)
        return unflatten(links.sums.at_nodes(F)), LinkMemory(WaveLinks(z, numbers, mail, transit, sizes))

    def _cut(self, channel: Channel, z: Array, mine: Array, sizes: Sizes, new: Array) -> tuple[Array, Array, Sizes]:
        """z and its flow within the limit at nodes that move in this step; both as they are, to the last bit, below.
        How large a flow is now is as of the last message used: between messages z follows no neighbour."""
        F, active = z - mine, channel.faults.active(channel.step)
        within, after = cut_levels(F, self.content, self.within, sizes)
        keeps = ~new[..., None] & jnp.asarray([True, False])
        after = {level: jnp.where(keeps, sizes[level], size) for level, size in after.items()}
        if active is not None:
            here = channel.links.sums.at_slots(active)[..., None]
            within = jnp.where(here, within, F)
            after = {level: jnp.where(here, size, sizes[level]) for level, size in after.items()}
        return jnp.where(within == F, z, mine + within), within, after

    def transit(self, channel: Channel, like: Array) -> PyTree:
        """What is needed to carry the first messages: those under way, where faults delay any."""
        return InFlight.empty(like, channel)

    def carried(self, channel: Channel, q: Array, transit: PyTree) -> Carried:
        """Sends the rows q over the links."""
        received = channel.transport.links(q)
        forgotten = channel.forgotten | begins_anew(received)
        rows, numbers, transit = arrivals(channel, received, numbers_sent(channel), transit, forgotten)
        return Carried(rows, numbers, forgotten, transit)


def begins_anew(received: Received) -> Array:
    """(*slots,) where an end is gone or new to the other; one that only comes back goes on with what it has."""
    if received.states is None:
        return jnp.zeros(received.rows.shape[:-1], bool)
    return (received.states == LinkState.RESET) | (received.states == LinkState.DROPPED)
