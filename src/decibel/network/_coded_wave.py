"""Codes that survive loss: waves in code over links that lose, delay and reorder messages.

A code is of the difference from a base, which both ends must hold. Over a link that may lose messages no end knows what
the other has, so that bases are agreed on by acknowledgements. The sender keeps its last reconstructions q̂; a message
has the number of the base, the code of q − base, the number of the oldest reconstruction that is kept, and what the
sender acknowledges in the other direction. The receiver reads q̂ = base + code, and keeps one of these as a candidate,
which it acknowledges. On that the sender makes it the base; when the receiver reads a message of this base, it does the
same. A candidate that the sender no longer keeps is replaced.

So the sender's base is always the receiver's base or its candidate, and whatever arrives can be read, unless it is
older than something read already. Where an end has been set back to an older state this does not hold: then the other
end acknowledges what cannot be, or reads nothing, and the link begins anew with a base of zero, of number 0.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import reduce
from typing import ClassVar, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import Array

from ..core._keys import fold_in_each
from ..core._vector import flatten
from ._codecs import Code, ConcatCodec, raw, read
from ._in_flight import InFlight, arrivals, numbers_sent
from ._links import Channel
from ._messages import CODES, Copies
from ._wave import Carried, Wave, begins_anew

KEPT = 8  # reconstructions, at least
HEADER = 3 * 4  # bytes: the base, the oldest kept, the acknowledged


class Sender(NamedTuple):
    """(*slots, entries) the base, (*slots, kept, entries) reconstructions since, newest first, and (*slots, 1 + kept)
    the numbers of both; 0 is zero, or none."""

    base: Array
    kept: Array
    numbers: Array


class Receiver(NamedTuple):
    """(*slots, entries) the base and the candidate, and (*slots, 3) the numbers of both and of the newest message."""

    base: Array
    candidate: Array
    numbers: Array


Role = TypeVar("Role", Sender, Receiver)


class CodedTransit(NamedTuple):
    """What both roles of a link's end remember, and the messages under way."""

    sender: Sender
    receiver: Receiver
    in_flight: InFlight | None


class CodedWave(Wave):
    """Waves that are sent encoded, as the difference from what the receiver is known to have."""

    code: Code
    splits: ClassVar[bool] = False

    @property
    def kind(self) -> Hashable:
        return super().kind, self.code

    @property
    def draws(self) -> bool:
        return self.code.draws

    @property
    def weight(self) -> float:
        return 0.5 * self.code.mixing

    def bytes(self, copies: Copies) -> float:
        leaves = jax.tree.leaves(self.content)
        return copies.by_link * (HEADER + self.code.bytes(sum(leaf[0].size for leaf in leaves), leaves[0].dtype))

    def transit(self, channel: Channel, like: Array) -> CodedTransit:
        *slots, entries = like.shape
        # An acknowledgement has to come back before what it is of is no longer kept.
        kept = max(KEPT, 2 * channel.faults.schedule.longest_delay + KEPT // 2)
        integers = lambda count: jnp.zeros((*slots, count), jnp.int32)  # noqa: E731
        sender = Sender(like, jnp.zeros((*slots, kept, entries), like.dtype), integers(1 + kept))
        size = HEADER + sum(self.code.bytes(width, like.dtype) for width in self._widths())
        in_flight = InFlight.empty(jnp.zeros((*slots, size), jnp.uint8), channel)
        return CodedTransit(sender, Receiver(like, like, integers(3)), in_flight)

    def carried(self, channel: Channel, q: Array, transit: CodedTransit) -> Carried:
        sender, receiver, in_flight = transit
        here, there = channel.faults.ends(channel.links)
        widths = self._widths()
        codec = ConcatCodec(self.code, widths, q.dtype, [channel.claim(part) for part in range(len(widths))])
        sent = numbers_sent(channel, here)
        code = _each(codec.encode, q - sender.base, *(self._keys(channel, sent, here, there) for _ in range(2)))
        own = sender.base + self._read(channel, codec, code, sent, here, there)
        sender = _keep(sender, own, sent)
        oldest = jnp.where(sender.numbers[..., 1:] > 0, sender.numbers[..., 1:], sent[..., None]).min(-1)
        header = jnp.stack([sender.numbers[..., 0], oldest, _acknowledged(receiver)], -1)
        received = channel.transport.links(jnp.concatenate([_each(raw, header), code], -1))
        forgotten = channel.forgotten | begins_anew(received)
        rows, numbers, in_flight = arrivals(channel, received, numbers_sent(channel), in_flight, forgotten)
        sender, receiver = _forget(sender, forgotten), _forget(receiver, forgotten)
        base, oldest, ack = (_each(lambda row: read(row, jnp.int32), rows[..., :HEADER])[..., i] for i in range(3))
        numbers = jnp.where(numbers > receiver.numbers[..., 2], numbers, 0)  # what is older says nothing new
        new = self._read(channel, codec, rows[..., HEADER:], numbers, there, here)
        found, readable, receiver = _receive(receiver, numbers, base, oldest, new)
        sender = _acknowledge(sender, numbers > 0, ack)
        return Carried(found, jnp.where(readable, numbers, 0), forgotten, CodedTransit(sender, receiver, in_flight))

    def _widths(self) -> list[int]:
        """Of the levels' vectors, which are encoded one by one."""
        flat = lambda content: jax.eval_shape(lambda one: flatten(one)[0], content)  # noqa: E731
        return [flat(content).shape[1] for content in self.content.values()]

    def _read(self, channel: Channel, codec: ConcatCodec, code: Array, numbers: Array, *ends: Array) -> Array:
        """What codes read as, at both ends to the last bit."""
        values = _each(codec.decode, code, self._keys(channel, numbers, *ends))
        # A compiler that fused the decoder's last product with the sum that follows, at one end and not at the other,
        # would round differently there. Integers come in between, with a zero that it cannot know: numbers are not
        # negative.
        integers = jnp.int32 if values.dtype.itemsize == 4 else jnp.int64
        bits = jax.lax.bitcast_convert_type(values, integers) + jnp.minimum(numbers, 0)[..., None].astype(integers)
        return jax.lax.bitcast_convert_type(bits, values.dtype)

    def _keys(self, channel: Channel, numbers: Array, sender: Array, receiver: Array) -> Array:
        """(*slots,) by the number of the message, so that one that is late is read as it was written."""
        key = jax.random.fold_in(channel.faults.schedule.key, CODES)
        flat = [part.ravel() for part in (numbers, sender, receiver)]
        return reduce(fold_in_each, flat, key).reshape(numbers.shape)


def _each(function: Callable[..., Array], *arguments: Array) -> Array:
    """A function of one link's row, for all slots."""
    for _ in range(arguments[0].ndim - 1):
        function = jax.vmap(function)
    return function(*arguments)


def _keep(sender: Sender, own: Array, number: Array) -> Sender:
    """With a reconstruction that is sent now, in the place of the oldest."""
    (base, kept, numbers), sends = sender, (number > 0)[..., None]
    kept = jnp.where(sends[..., None], jnp.concatenate([own[..., None, :], kept[..., :-1, :]], -2), kept)
    after = jnp.concatenate([numbers[..., :1], number[..., None], numbers[..., 1:-1]], -1)
    return Sender(base, kept, jnp.where(sends, after, numbers))


def _acknowledged(receiver: Receiver) -> Array:
    """The number of the candidate, else that of the base, negated."""
    base, candidate = receiver.numbers[..., 0], receiver.numbers[..., 1]
    return jnp.where(candidate > 0, candidate, -base)


def _receive(receiver: Receiver, number: Array, of: Array, oldest: Array, new: Array) -> tuple[Array, Array, Receiver]:
    """What a message, of that base, reads as, whether it can be read, and the receiver after it."""
    (base, candidate, numbers), arrives = receiver, number > 0
    base_number, candidate_number, newest = (numbers[..., i] for i in range(3))
    promotes = arrives & (of == candidate_number) & (of > 0)
    anew = arrives & (of == 0) & (base_number > 0)
    base = jnp.where(promotes[..., None], candidate, jnp.where(anew[..., None], 0, base))
    base_number = jnp.where(promotes, candidate_number, jnp.where(anew, 0, base_number))
    found = base + new
    readable = arrives & (of == base_number) & jnp.isfinite(found).all(-1)
    # Without a candidate that the sender can find, it learns from the base that this end cannot read it.
    candidate_number = jnp.where(promotes | anew | (arrives & ~readable), 0, candidate_number)
    takes = readable & ((candidate_number == 0) | (candidate_number < oldest))
    candidate = jnp.where(takes[..., None], found, candidate)
    candidate_number = jnp.where(takes, number, candidate_number)
    numbers = jnp.stack([base_number, candidate_number, jnp.maximum(newest, number)], -1)
    return found, readable, Receiver(base, candidate, numbers)


def _acknowledge(sender: Sender, arrives: Array, ack: Array) -> Sender:
    """With what is acknowledged as the base; a base of zero where that cannot be."""
    base_number, kept_numbers = sender.numbers[..., 0], sender.numbers[..., 1:]
    number = jnp.abs(ack)
    matches = (kept_numbers == number[..., None]) & (arrives & (number > 0))[..., None]
    found = matches.any(-1)
    of = jnp.take_along_axis(sender.kept, matches.argmax(-1)[..., None, None], -2)[..., 0, :]
    oldest = jnp.where(kept_numbers > 0, kept_numbers, jnp.iinfo(jnp.int32).max).min(-1)
    no_longer_kept = (ack > base_number) & (ack < oldest)
    lost = arrives & ~found & (number != base_number) & ~no_longer_kept & (base_number > 0)
    base = jnp.where(found[..., None], of, jnp.where(lost[..., None], 0, sender.base))
    base_number = jnp.where(found, number, jnp.where(lost, 0, base_number))
    kept_numbers = jnp.where((found | lost)[..., None], 0, kept_numbers)
    return Sender(base, sender.kept, jnp.concatenate([base_number[..., None], kept_numbers], -1))


def _forget(role: Role, forgotten: Array) -> Role:
    """Sender or receiver with a base of zero, where the link begins anew."""
    where = forgotten[..., None]
    return role._replace(base=jnp.where(where, 0, role.base), numbers=jnp.where(where, 0, role.numbers))
