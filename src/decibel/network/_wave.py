"""Messages without a common clock: a wave on every link, which stays exact when messages are late or lost.

Each end of a link keeps one vector z_ij, and ρ_ij = ρ_ji is twice the link's weight. A node sends
q_ij = 2 ρ_ij s_i − z_ij. When it has finished computing, it takes the newest q_ji that it has not used,
z_ij ← ½ (z_ij + q_ji), and adds the flows z_ij − ρ_ij s_i to its step. At a fixed point z_ij + z_ji = 2 ρ_ij s, so the
flows cancel over the link; neither end has to know what the other has received.

The update of z is that of relaxed ADMM over lossy, asynchronous networks with relaxation ½ (Bastianello, Carli,
Schenato and Todescato, 2021), and with the gradient step it is LT-ADMM with one local step (Ren, Bastianello, Johansson
and Parisini, 2025). With relaxation 1 the variables are those of PDMM (Zhang and Heusdens, 2018). DLM (Ling, Shi, Wu
and Ribeiro, 2015) linearizes ADMM, too, with a carry for each node, and Wu, Yuan, Ling, Yin and Sayed (2018) have an
asynchronous PG-EXTRA with variables for each link. Waves in this sense, for links with delay, are those of the
scattering transformation in passivity-based control, as in PI consensus (Hatanaka, Chopra, Ishizaki and Li, 2018).

With τ local steps for each message (LT-ADMM's local training) a node uses messages before it computes, and adds the
same flows in each of them. ρ is then divided by τ: what a link moves in all of them is as with one step.

With a limit (`_clip`) the flow F_ij = z_ij − ρ_ij s_i is clipped before it is used, z_ij ← ρ_ij s_i + clip(F_ij). When
both ends move in every step, it is ½ (F_ij − F_ji) + w_ij (s_j − s_i) of the flows before the exchange. Both ends of an
honest link then clip alike, and flows still cancel.

Messages are numbered by the step in which they are sent. Each is used once, and messages older than the last one used
are dropped.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jax import Array

from ..core._types import PyTree
from ..core._vector import flatten
from ._clip import Sizes, clamped, clip_levels, no_sizes
from ._in_flight import InFlight, arrivals, numbers_sent
from ._links import Answers, Channel, LinkMemory, LinkStatus, Received
from ._messages import Fanout, Message, bytes_per_node, zeros


class Mail(NamedTuple):
    """(*slots, entries) the newest message that has arrived over each link, and (*slots, 1) its number; 0 is none."""

    rows: Array
    numbers: Array


class WaveLinks(NamedTuple):
    """The state of links.

    Attributes:
        z: (*slots, entries).
        numbers: (*slots, 2) whether z was initialized, and the number of the last message used.
        mail: of nodes that compute for several steps.
        transport_state: what the next delivery needs.
        sizes: of flows, with a limit.
    """

    z: Array
    numbers: Array
    mail: Mail | None
    transport_state: PyTree
    sizes: Sizes | None = None


class Delivered(NamedTuple):
    """What arrived in a step: (*slots, entries) the message of each link, (*slots,) its number (0: none), whether the
    link is reset, and what the next delivery needs."""

    rows: Array
    numbers: Array
    is_reset: Array
    transport_state: PyTree


class Wave(Message):
    """Vectors s that are sent as one wave for each link; the answer is Σ_j (z_ij − ρ_ij s_i).

    Attributes:
        local_steps: how often a node adds the answer before it sends again.
    """

    local_steps: int = eqx.field(static=True, default=1, kw_only=True)
    is_separable: ClassVar[bool] = True

    @property
    def kind(self) -> Hashable:
        return super().kind, self.local_steps

    @property
    def weight(self) -> float:
        """The weight of a new message in z."""
        return 0.5

    def bytes(self, fanout: Fanout) -> float:
        return fanout.row_per_link * bytes_per_node(self.content)

    def link_memory(self, channel: Channel) -> LinkMemory:
        slots = channel.links.neighbours.shape
        z, numbers = zeros(self.content, *slots), jnp.zeros((*slots, 2), jnp.int32)
        slow = channel.faults.schedule.slows_nodes
        mail = Mail(zeros(self.content, *slots), jnp.zeros((*slots, 1), jnp.int32)) if slow else None
        sizes = None if self.flow_bound is None else no_sizes(self.content, z)
        return LinkMemory(WaveLinks(z, numbers, mail, self.transport_state(channel, z), sizes))

    def reflected(self, channel: Channel, memory: LinkMemory) -> tuple[Array, Array, Array]:
        """Returns ρ s, z and the waves q = 2 ρ s − z to send, each (*slots, entries)."""
        s, _ = flatten(self.content)
        links = channel.links
        z = memory.per_link.z
        numbers = memory.per_link.numbers
        ρ = 2 / self.local_steps * links.weights.mean(-1).astype(s.dtype)[..., None]
        scaled = ρ * links.sums.at_slots(s)
        z = jnp.where((numbers[..., :1] == 0) | channel.is_reset[..., None], scaled, z)
        return scaled, z, 2 * scaled - z

    def post(self, channel: Channel, memory: LinkMemory) -> tuple[Array, LinkMemory]:
        """Without a common clock: the message that is sent before the step, since none is sent inside it, and the
        state of links after it."""
        return self.reflected(channel, memory)[2], memory

    def receive(self, channel: Channel, memory: LinkMemory) -> Answers:
        s, unflatten = flatten(self.content)
        links = channel.links
        _, numbers, mail, transport_state, sizes = memory.per_link
        scaled, z, q = self.reflected(channel, memory)
        rows, arrived_number, is_reset, transport_state = self.deliver(channel, q, transport_state)
        rows = rows if sizes is None else clamped(rows)
        z = jnp.where(is_reset[..., None], scaled, z)
        last_used_number = jnp.where(is_reset, 0, numbers[..., 1])
        if mail is not None:
            mail_number = jnp.where(is_reset, 0, mail.numbers[..., 0])
            rows = jnp.where((arrived_number > mail_number)[..., None], rows, mail.rows)
            mail_number = jnp.maximum(arrived_number, mail_number)
            mail = Mail(rows, mail_number[..., None])
            faults = channel.faults
            # A node reads its mail when it ends a computation or, with local steps, when it begins one.
            reads_mail = faults.finished(channel.step) if self.local_steps == 1 else faults.begins(channel.step)
            arrived_number = jnp.where(links.sums.at_slots(reads_mail), mail_number, 0)
        weight = jnp.asarray(self.weight, s.dtype)
        is_new = arrived_number > last_used_number
        z = jnp.where(is_new[..., None], (1 - weight) * z + weight * rows, z)
        numbers = jnp.stack([(~is_reset).astype(jnp.int32), jnp.maximum(last_used_number, arrived_number)], -1)
        F = z - scaled
        if sizes is not None:
            z, F, sizes = self._clipped(channel, z, scaled, sizes, is_new | is_reset)
        return unflatten(links.sums.at_nodes(F)), LinkMemory(WaveLinks(z, numbers, mail, transport_state, sizes))

    def _clipped(
        self, channel: Channel, z: Array, scaled: Array, sizes: Sizes, is_new: Array
    ) -> tuple[Array, Array, Sizes]:
        """z and its flow, clipped to the limit at nodes that move in this step; unchanged to the last bit below it.

        The size of a flow is that at the last message used, since between messages z follows no neighbour.
        """
        F = z - scaled
        active = channel.faults.active(channel.step)
        clipped, new_sizes = clip_levels(F, self.content, self.flow_bound, sizes)
        keeps_size = ~is_new[..., None] & jnp.asarray([True, False])
        new_sizes = {level: jnp.where(keeps_size, sizes[level], size) for level, size in new_sizes.items()}
        if active is not None:
            moves = channel.links.sums.at_slots(active)[..., None]
            clipped = jnp.where(moves, clipped, F)
            new_sizes = {level: jnp.where(moves, size, sizes[level]) for level, size in new_sizes.items()}
        return jnp.where(clipped == F, z, scaled + clipped), clipped, new_sizes

    def transport_state(self, channel: Channel, like: Array) -> PyTree:
        """What the first delivery needs: the messages in flight, if faults delay any."""
        return InFlight.empty(like, channel)

    def deliver(self, channel: Channel, q: Array, transport_state: PyTree) -> Delivered:
        """Sends the rows q over the links."""
        received = channel.transport.exchange_link_rows(q)
        is_reset = channel.is_reset | restarts(received)
        rows, numbers, transport_state = arrivals(channel, received, numbers_sent(channel), transport_state, is_reset)
        return Delivered(rows, numbers, is_reset, transport_state)


def restarts(received: Received) -> Array:
    """(*slots,) where one end is gone or new to the other; an end that only returns continues with its state."""
    if received.link_statuses is None:
        return jnp.zeros(received.rows.shape[:-1], bool)
    return (received.link_statuses == LinkStatus.START_AT_ZERO) | (received.link_statuses == LinkStatus.DROP_FLOW)
