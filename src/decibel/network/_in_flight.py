"""Messages in flight, of which each replaces older ones: their numbers, which arrive in a step, and which are new."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from ._links import Channel, Received


class InFlight(NamedTuple):
    """(*slots, steps, entries) what neighbours sent in the last steps, newest first, and (*slots, steps) the numbers of
    these messages; 0 is none."""

    rows: Array
    numbers: Array

    @classmethod
    def empty(cls, like: Array, channel: Channel) -> InFlight | None:
        """No messages in flight, of the shape of `like` (*slots, entries); None where faults delay none."""
        steps, (*slots, entries) = channel.faults.schedule.longest_delay, like.shape
        if not steps:
            return None
        return cls(jnp.zeros((*slots, steps, entries), like.dtype), jnp.zeros((*slots, steps), jnp.int32))


class LinkVectors(NamedTuple):
    """What links keep of the messages that they used: (*slots, entries) vectors. If messages may be late, also those in
    flight, and (*slots, 1) the number of the last one used."""

    vectors: Array
    in_flight: InFlight | None
    used: Array | None

    @classmethod
    def start(cls, vectors: Array, row: Array, channel: Channel) -> LinkVectors:
        """Before the first message, which is shaped like `row`."""
        in_flight = InFlight.empty(row, channel)
        return cls(vectors, in_flight, None if in_flight is None else jnp.zeros((*vectors.shape[:-1], 1), jnp.int32))

    def newest(self, channel: Channel, received: Received, is_reset: Array) -> tuple[Array, Array, LinkVectors]:
        """Returns the messages that arrive, (*slots,) whether each is newer than the last one used, and the same
        vectors with what is in flight afterwards."""
        rows, number, in_flight = arrivals(channel, received, numbers_sent(channel), self.in_flight, is_reset)
        last_used = 0 if self.used is None else jnp.where(is_reset, 0, self.used[..., 0])
        used = None if self.used is None else jnp.maximum(number, last_used)[..., None]
        return rows, number > last_used, LinkVectors(self.vectors, in_flight, used)


def numbers_sent(channel: Channel, senders: Array | None = None) -> Array:
    """(*slots,) the number of the message that the sender of each link sends in this step: one more than the step, or
    0 if the sender takes no part in the step, is still computing, or the phase lacks the link. Senders are the
    neighbours unless others are given."""
    schedule = channel.faults.schedule
    senders = channel.links.neighbours if senders is None else senders
    sends = (channel.weights(jnp.float32) != 0) & ~schedule.is_idle(channel.step, senders)
    if schedule.slows_nodes:
        sends = sends & schedule.begins(channel.step, senders)
    return jnp.where(sends, channel.step + 1, 0)


def arrivals(
    channel: Channel, received: Received, numbers: Array, in_flight: InFlight | None, is_reset: Array
) -> tuple[Array, Array, InFlight | None]:
    """The messages that arrive over links in this step, their numbers (0: none), and what is in flight afterwards."""
    rows = received.rows
    if received.has_arrived is not None:
        numbers = jnp.where(received.has_arrived, numbers, 0)
    if in_flight is not None:
        recent_rows = jnp.concatenate([rows[..., None, :], in_flight.rows], -2)
        recent_numbers = jnp.concatenate([numbers[..., None], in_flight.numbers], -1)
        recent_numbers = jnp.where(is_reset[..., None], 0, recent_numbers)
        rows = jnp.take_along_axis(recent_rows, channel.delay[..., None, None], -2)[..., 0, :]
        numbers = jnp.take_along_axis(recent_numbers, channel.delay[..., None], -1)[..., 0]
        in_flight = InFlight(recent_rows[..., :-1, :], recent_numbers[..., :-1])
    return rows, jnp.where(channel.arrives, numbers, 0), in_flight
