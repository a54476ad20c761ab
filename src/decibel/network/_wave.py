"""Messages that need no common clock: a wave on every link, which is exact whatever comes late, or never.

Each end of a link keeps one vector z_ij, and ρ_ij = ρ_ji is twice the link's weight. A node sends q_ij = 2 ρ_ij s_i −
z_ij. When it has finished computing, it takes the newest q_ji that it has not used, z_ij ← ½ (z_ij + q_ji), and adds
the flows z_ij − ρ_ij s_i to its step. Where nothing moves any more, z_ij + z_ji = 2 ρ_ij s, so that flows cancel over
the link; no end has to know what the other has received.

Messages are numbered by the step in which they are sent, and each is used once: what is older than the last one used is
dropped. A changing graph is one whose links are silent in the phases that lack them.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import jax.numpy as jnp
from jax import Array

from ..core._types import PyTree
from ..core._vector import flatten
from ._in_flight import InFlight, arrivals, number_of_message
from ._links import Channel, LinkMemory, LinkState
from ._messages import Copies, Message, size, zeros


class Mail(NamedTuple):
    """(*slots, entries) the newest message that has come over each link, and (*slots, 1) its number; 0 is none."""

    rows: Array
    numbers: Array


class WaveLinks(NamedTuple):
    """What a link remembers: (*slots, entries) z; (*slots, 2) whether z has begun, and the number of the last message
    used; the mail of nodes that compute for several steps; and messages that are under way, where faults delay any."""

    z: Array
    numbers: Array
    mail: Mail | None
    in_flight: InFlight | None


class Wave(Message):
    """Vectors s that are sent as one wave for each link; the answer is Σ_j (z_ij − ρ_ij s_i)."""

    splits: ClassVar[bool] = True

    def bytes(self, copies: Copies) -> float:
        return copies.by_link * size(self.content)

    def link_memory(self, channel: Channel) -> LinkMemory:
        slots, schedule = channel.links.neighbours.shape, channel.faults.schedule
        mail = Mail(zeros(self.content, *slots), jnp.zeros((*slots, 1), jnp.int32)) if schedule.slows_nodes else None
        in_flight = InFlight.empty(zeros(self.content, *slots, steps)) if (steps := schedule.longest_delay) else None
        return LinkMemory(WaveLinks(zeros(self.content, *slots), jnp.zeros((*slots, 2), jnp.int32), mail, in_flight))

    def receive(self, channel: Channel, memory: LinkMemory) -> tuple[dict[str, PyTree], LinkMemory]:
        s, unflatten = flatten(self.content)
        links, half = channel.links, jnp.asarray(0.5, s.dtype)
        z, numbers, mail, in_flight = memory.by_link
        ρ = 2 * links.weights.mean(-1).astype(s.dtype)[..., None]
        mine = ρ * links.sums.at_slots(s)
        forgotten = channel.forgotten
        z = jnp.where((numbers[..., :1] == 0) | forgotten[..., None], mine, z)
        received = channel.transport.links(2 * mine - z)
        if received.states is not None:
            anew = (received.states == LinkState.RESET) | (received.states == LinkState.DROPPED)
            forgotten, z = forgotten | anew, jnp.where(anew[..., None], mine, z)
        rows, came, in_flight = arrivals(channel, received, number_of_message(channel), in_flight, forgotten)
        used = jnp.where(forgotten, 0, numbers[..., 1])
        if mail is None:
            newest, ready = rows, came
        else:
            held = jnp.where(forgotten, 0, mail.numbers[..., 0])
            newest = jnp.where((came > held)[..., None], rows, mail.rows)
            held = jnp.maximum(came, held)
            mail = Mail(newest, held[..., None])
            ready = jnp.where(links.sums.at_slots(channel.faults.finished(channel.step)), held, 0)
        z = jnp.where((ready > used)[..., None], half * (z + newest), z)
        numbers = jnp.stack([(~forgotten).astype(jnp.int32), jnp.maximum(used, ready)], -1)
        flows = unflatten(links.sums.at_nodes(z - mine))
        return flows, LinkMemory(WaveLinks(z, numbers, mail, in_flight))
