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

Without a common clock a message also has its own number, the sender's incarnation, and that of the receiver for which
it acknowledges: a process that is started again numbers its messages from where it continues, so that nothing of
another incarnation counts. An acknowledgement may take any number of the sender's steps. So that what it is of is still
kept, a new message is written the more rarely the longer the base has been the same; in between the last one is sent
again.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import reduce
from typing import ClassVar, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from ..core._keys import fold_in_each
from ..core._vector import flatten
from ._codecs import Code, ConcatCodec, raw, read
from ._in_flight import InFlight, arrivals, numbers_sent
from ._links import Channel, LinkMemory
from ._messages import CODES, Copies
from ._wave import Carried, Wave, begins_anew

KEPT = 8  # reconstructions, at least
HEADER = 3 * 4  # bytes: the base, the oldest kept, the acknowledged
MORE = 3 * 4  # without a common clock: the number, the sender's incarnation, and the other end's as far as it knows


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


class Posted(NamedTuple):
    """(*slots, bytes) the message that was written last, and (*slots, 2) the incarnations of both ends, this one's
    first; 0 is not known."""

    row: Array
    ends: Array


class CodedTransit(NamedTuple):
    """What both roles of a link's end remember, the messages under way, and what is sent before a step, where there is
    no common clock."""

    sender: Sender
    receiver: Receiver
    in_flight: InFlight | None
    posted: Posted | None


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
        size = self.code.bytes(sum(leaf[0].size for leaf in leaves), leaves[0].dtype)
        return copies.by_link * (HEADER + copies.header + size)

    def transit(self, channel: Channel, like: Array) -> CodedTransit:
        (*slots, entries), clock = like.shape, channel.transport.incarnation is None
        # An acknowledgement has to come back before what it is of is no longer kept.
        kept = max(KEPT, 2 * channel.faults.schedule.longest_delay + KEPT // 2) if clock else 2 * KEPT
        integers = lambda count: jnp.zeros((*slots, count), jnp.int32)  # noqa: E731
        sender = Sender(like, jnp.zeros((*slots, kept, entries), like.dtype), integers(1 + kept))
        size = HEADER + sum(self.code.bytes(width, like.dtype) for width in self._widths())
        in_flight = InFlight.empty(jnp.zeros((*slots, size), jnp.uint8), channel)
        posted = None if clock else Posted(jnp.zeros((*slots, MORE + size), jnp.uint8), integers(2))
        return CodedTransit(sender, Receiver(like, like, integers(3)), in_flight, posted)

    def post(self, channel: Channel, memory: LinkMemory) -> tuple[Array, LinkMemory]:
        (_, _, q), transit = self.reflected(channel, memory), memory.by_link.transit
        sender, receiver, in_flight, (row, ends) = transit
        assert channel.transport.incarnation is not None
        own = jnp.full(ends.shape[:-1], channel.transport.incarnation, jnp.int32)
        anew = ends[..., 0] != own  # it is another process that wrote what is remembered
        sender, receiver = _forget(sender, anew), _forget(receiver, anew)
        ends = jnp.stack([own, jnp.where(anew, 0, ends[..., 1])], -1)
        number = numbers_sent(channel, channel.faults.ends(channel.links)[0])
        number = jnp.where(_due(sender, number), number, 0)
        written, sender = self._written(channel, q, sender, receiver, number, number[..., None], ends)
        row = jnp.where((number > 0)[..., None], written, row)
        transit = CodedTransit(sender, receiver, in_flight, Posted(row, ends))
        return row, LinkMemory(memory.by_link._replace(transit=transit), memory.by_node)

    def carried(self, channel: Channel, q: Array, transit: CodedTransit) -> Carried:
        sender, receiver, in_flight, posted = transit
        here, there = channel.faults.ends(channel.links)
        codec = self._codec(channel.place_of, q.dtype)
        if posted is None:
            row, sender = self._written(channel, q, sender, receiver, numbers_sent(channel, here))
        else:
            row = posted.row
        received = channel.transport.links(row)
        forgotten = channel.forgotten | begins_anew(received)
        rows, came, in_flight = arrivals(channel, received, numbers_sent(channel), in_flight, forgotten)
        sender, receiver = _forget(sender, forgotten), _forget(receiver, forgotten)
        size, numbers, meant = HEADER if posted is None else HEADER + MORE, came, jnp.ones_like(came, bool)
        base, oldest, ack, *more = jnp.moveaxis(_each(lambda row: read(row, jnp.int32), rows[..., :size]), -1, 0)
        if posted is not None:
            number, theirs, mine = more
            numbers, meant = jnp.where(came > 0, number, 0), mine == posted.ends[..., 0]
            receiver = _forget(receiver, (came > 0) & (theirs != posted.ends[..., 1]))
            ends = jnp.stack([posted.ends[..., 0], jnp.where(came > 0, theirs, posted.ends[..., 1])], -1)
            posted = posted._replace(ends=ends)
        numbers = jnp.where(numbers > receiver.numbers[..., 2], numbers, 0)  # what is older says nothing new
        new = self._read(channel, codec, rows[..., size:], numbers, there, here)
        found, readable, receiver = _receive(receiver, numbers, base, oldest, new)
        sender = _acknowledge(sender, (numbers > 0) & meant, ack)
        transit = CodedTransit(sender, receiver, in_flight, posted)
        return Carried(found, jnp.where(readable, came, 0), forgotten, transit)

    def _written(
        self, channel: Channel, q: Array, sender: Sender, receiver: Receiver, sent: Array, *more: Array
    ) -> tuple[Array, Sender]:
        """(*slots, bytes) messages of these numbers, with more integers (*slots, ...) in their headers; and the sender
        after them. A message of number 0 is none."""
        (here, there), codec = channel.faults.ends(channel.links), self._codec(channel.claim, q.dtype)
        code = _each(codec.encode, q - sender.base, *(self._keys(channel, sent, here, there) for _ in range(2)))
        own = sender.base + self._read(channel, codec, code, sent, here, there)
        sender = _keep(sender, own, sent)
        oldest = jnp.where(sender.numbers[..., 1:] > 0, sender.numbers[..., 1:], sent[..., None]).min(-1)
        header = jnp.stack([sender.numbers[..., 0], oldest, _acknowledged(receiver)], -1)
        return jnp.concatenate([_each(raw, jnp.concatenate([header, *more], -1)), code], -1), sender

    def _codec(self, place: Callable[[int], tuple[int, ...]], dtype: DTypeLike) -> ConcatCodec:
        widths = self._widths()
        return ConcatCodec(self.code, widths, dtype, list(map(place, range(len(widths)))))

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


def _due(sender: Sender, number: Array) -> Array:
    """Whether to write a message of that number: the last ones that are kept cover a good part of the time since the
    base was written, and so any acknowledgement that is still to come."""
    base, kept = sender.numbers[..., 0], sender.numbers[..., 1:]
    oldest = jnp.where(kept > 0, kept, number[..., None]).min(-1)
    since = jnp.where(base > 0, base, oldest)
    return (kept[..., 0] == 0) | (number - kept[..., 0] >= jnp.maximum((number - since) // KEPT, 1))


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
