"""Messages under way, where each replaces older ones: their numbers, and which of them arrive in a step."""

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
    def empty(cls, rows: Array) -> InFlight:
        return cls(rows, jnp.zeros(rows.shape[:-1], jnp.int32))


def number_of_message(channel: Channel) -> Array:
    """(*slots,) the number of what the neighbour sends in this step: one more than the step, or 0 where it takes no
    part in the step or is still computing."""
    schedule, there = channel.faults.schedule, channel.links.neighbours
    silent = schedule.idle(channel.step, there)
    if schedule.slows_nodes:
        silent = silent | ((channel.step > 0) & schedule.busy(channel.step - 1, there))
    return jnp.where(silent, 0, channel.step + 1)


def arrivals(
    channel: Channel, received: Received, numbers: Array, in_flight: InFlight | None, forgotten: Array
) -> tuple[Array, Array, InFlight | None]:
    """What arrives over each link in this step, its number (0 is nothing), and what is under way after it."""
    there = channel.links.weights_at(channel.step, received.rows.dtype) != 0
    numbers = jnp.where(there if received.arrived is None else there & received.arrived, numbers, 0)
    rows = received.rows
    if in_flight is not None:
        sent = jnp.concatenate([rows[..., None, :], in_flight.rows], -2)
        known = jnp.concatenate([numbers[..., None], in_flight.numbers], -1)
        known = jnp.where(forgotten[..., None], 0, known)
        rows = jnp.take_along_axis(sent, channel.delay[..., None, None], -2)[..., 0, :]
        numbers = jnp.take_along_axis(known, channel.delay[..., None], -1)[..., 0]
        in_flight = InFlight(sent[..., :-1, :], known[..., :-1])
    return rows, jnp.where(channel.arrives, numbers, 0), in_flight
