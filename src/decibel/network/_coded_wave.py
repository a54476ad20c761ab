"""Compressed waves that survive loss, over links that lose, delay and reorder messages.

A message encodes the difference from a base that both ends must hold. Over a link that may lose messages neither end
knows what the other has, so the ends agree on the base by acknowledgements. The sender keeps its last reconstructions
q̂. A message has the number of the base, the code of q − base, the number of the oldest reconstruction kept, and an
acknowledgement for the other direction. The receiver computes q̂ = base + code, keeps one of these as a candidate, and
acknowledges it. The sender then makes it the base; the receiver does the same when it reads a message with this base. A
candidate that the sender no longer keeps is replaced.

The sender's base is therefore always the receiver's base or its candidate, and every message that arrives can be read,
unless it is older than one that was read already. The exception is an end that was reset to an older state: then the
other end acknowledges an impossible number, or can read nothing, and the link restarts from a base of zero, number 0.

Without a common clock a message also has its own number, the sender's incarnation, and the incarnation of the receiver
that it acknowledges. A restarted process numbers its messages from where it continues, and messages to another
incarnation do not count. An acknowledgement may take any number of the sender's steps. The longer the base stays the
same, the more rarely a new message is written, so that its reconstruction is still kept when the acknowledgement comes;
in between the last message is sent again.
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
from ..core._types import PyTree
from ..core._vector import flatten
from ._codecs import Code, ConcatCodec, from_bytes, to_bytes
from ._in_flight import InFlight, arrivals, numbers_sent
from ._links import Channel, LinkMemory
from ._messages import CODE_STREAM, Fanout
from ._wave import Delivered, Wave, restarts

KEPT = 8  # reconstructions, at least
HEADER_BYTES = 3 * 4  # bytes: the base, the oldest kept, the acknowledged
ASYNC_HEADER_BYTES = (
    3 * 4
)  # without a common clock: the number, the sender's incarnation, and the receiver's as the sender knows it


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
    """(*slots, bytes) the last message, and (*slots, 2) the incarnations of this end and of the other; 0 is unknown."""

    row: Array
    ends: Array


class CodedTransit(NamedTuple):
    """The state of one end of a link: as sender, as receiver, the messages in flight and, without a common clock, the
    message that is sent before a step."""

    sender: Sender
    receiver: Receiver
    in_flight: InFlight | None
    posted: Posted | None


class CodedWave(Wave):
    """Waves that are sent as the encoded difference from what the receiver is known to have."""

    code: Code
    is_separable: ClassVar[bool] = False

    @property
    def kind(self) -> Hashable:
        return super().kind, self.code

    @property
    def is_random(self) -> bool:
        return self.code.is_random

    @property
    def weight(self) -> float:
        return 0.5 * self.code.mixing

    def bytes(self, fanout: Fanout) -> float:
        leaves = jax.tree.leaves(self.content)
        size = self.code.bytes(sum(leaf[0].size for leaf in leaves), leaves[0].dtype)
        return fanout.row_per_link * (HEADER_BYTES + fanout.header_bytes + size)

    def transport_state(self, channel: Channel, like: Array) -> CodedTransit:
        *slots, entries = like.shape
        clock = channel.transport.incarnation is None
        # A reconstruction has to be kept until its acknowledgement comes back.
        kept = max(KEPT, 2 * channel.faults.schedule.longest_delay + KEPT // 2) if clock else 2 * KEPT

        def integers(count: int) -> Array:
            return jnp.zeros((*slots, count), jnp.int32)

        sender = Sender(like, jnp.zeros((*slots, kept, entries), like.dtype), integers(1 + kept))
        size = HEADER_BYTES + sum(self.code.bytes(width, like.dtype) for width in self._widths())
        in_flight = InFlight.empty(jnp.zeros((*slots, size), jnp.uint8), channel)
        posted = None if clock else Posted(jnp.zeros((*slots, ASYNC_HEADER_BYTES + size), jnp.uint8), integers(2))
        return CodedTransit(sender, Receiver(like, like, integers(3)), in_flight, posted)

    def post(self, channel: Channel, memory: LinkMemory) -> tuple[Array, LinkMemory]:
        _, _, q = self.reflected(channel, memory)
        sender, receiver, in_flight, (row, ends) = memory.per_link.transport_state
        assert channel.transport.incarnation is not None
        incarnation = jnp.full(ends.shape[:-1], channel.transport.incarnation, jnp.int32)
        restarted = ends[..., 0] != incarnation  # another process wrote what is remembered
        sender = _forget(sender, restarted)
        receiver = _forget(receiver, restarted)
        ends = jnp.stack([incarnation, jnp.where(restarted, 0, ends[..., 1])], -1)
        number = numbers_sent(channel, channel.faults.ends(channel.links)[0])
        number = jnp.where(_due(sender, number), number, 0)
        written, sender = self._written(channel, q, sender, receiver, number, number[..., None], ends)
        row = jnp.where((number > 0)[..., None], written, row)
        transport_state = CodedTransit(sender, receiver, in_flight, Posted(row, ends))
        return row, LinkMemory(memory.per_link._replace(transport_state=transport_state), memory.per_node)

    def deliver(self, channel: Channel, q: Array, transport_state: CodedTransit) -> Delivered:
        sender, receiver, in_flight, posted = transport_state
        this_end, other_end = channel.faults.ends(channel.links)
        codec = self._codec(channel.key_path, q.dtype)
        if posted is None:
            row, sender = self._written(channel, q, sender, receiver, numbers_sent(channel, this_end))
        else:
            row = posted.row
        received = channel.transport.exchange_link_rows(row)
        is_reset = channel.is_reset | restarts(received)
        rows, arrived, in_flight = arrivals(channel, received, numbers_sent(channel), in_flight, is_reset)
        sender = _forget(sender, is_reset)
        receiver = _forget(receiver, is_reset)
        size = HEADER_BYTES if posted is None else HEADER_BYTES + ASYNC_HEADER_BYTES
        numbers = arrived
        addressed = jnp.ones_like(arrived, bool)
        base, oldest, ack, *more = jnp.moveaxis(_each(lambda row: from_bytes(row, jnp.int32), rows[..., :size]), -1, 0)
        if posted is not None:
            number, sender_incarnation, receiver_incarnation = more
            numbers = jnp.where(arrived > 0, number, 0)
            addressed = receiver_incarnation == posted.ends[..., 0]
            receiver = _forget(receiver, (arrived > 0) & (sender_incarnation != posted.ends[..., 1]))
            other_incarnation = jnp.where(arrived > 0, sender_incarnation, posted.ends[..., 1])
            ends = jnp.stack([posted.ends[..., 0], other_incarnation], -1)
            posted = posted._replace(ends=ends)
        numbers = jnp.where(numbers > receiver.numbers[..., 2], numbers, 0)  # older messages are ignored
        new = self._read(channel, codec, rows[..., size:], numbers, other_end, this_end)
        waves, readable, receiver = _receive(receiver, numbers, base, oldest, new)
        sender = _acknowledge(sender, (numbers > 0) & addressed, ack)
        transport_state = CodedTransit(sender, receiver, in_flight, posted)
        return Delivered(waves, jnp.where(readable, arrived, 0), is_reset, transport_state)

    def _written(
        self, channel: Channel, q: Array, sender: Sender, receiver: Receiver, sent: Array, *more: Array
    ) -> tuple[Array, Sender]:
        """(*slots, bytes) messages of these numbers, and the sender after them; number 0 is no message.

        Headers hold `more` integers (*slots, ...) at their end.
        """
        this_end, other_end = channel.faults.ends(channel.links)
        codec = self._codec(channel.reserve, q.dtype)
        keys = self._keys(channel, sent, this_end, other_end)
        code = _each(codec.encode, q - sender.base, keys, keys)
        reconstruction = sender.base + self._read(channel, codec, code, sent, this_end, other_end)
        sender = _keep(sender, reconstruction, sent)
        oldest = jnp.where(sender.numbers[..., 1:] > 0, sender.numbers[..., 1:], sent[..., None]).min(-1)
        header = jnp.stack([sender.numbers[..., 0], oldest, _acknowledged(receiver)], -1)
        return jnp.concatenate([_each(to_bytes, jnp.concatenate([header, *more], -1)), code], -1), sender

    def _codec(self, key_path: Callable[[int], tuple[int, ...]], dtype: DTypeLike) -> ConcatCodec:
        widths = self._widths()
        return ConcatCodec(self.code, widths, dtype, list(map(key_path, range(len(widths)))))

    def _widths(self) -> list[int]:
        """The numbers of entries of the levels' vectors, which are encoded one by one."""

        def packed(content: PyTree) -> Array:
            return flatten(content)[0]

        return [jax.eval_shape(packed, content).shape[1] for content in self.content.values()]

    def _read(self, channel: Channel, codec: ConcatCodec, code: Array, numbers: Array, *ends: Array) -> Array:
        """The decoded values, the same at both ends to the last bit."""
        values = _each(codec.decode, code, self._keys(channel, numbers, *ends))
        # A compiler may fuse the decoder's last product with the following sum at one end only, and round differently.
        # Adding an integer zero that it cannot foresee prevents that: numbers are never negative.
        integers = jnp.int32 if values.dtype.itemsize == 4 else jnp.int64
        bits = jax.lax.bitcast_convert_type(values, integers) + jnp.minimum(numbers, 0)[..., None].astype(integers)
        return jax.lax.bitcast_convert_type(bits, values.dtype)

    def _keys(self, channel: Channel, numbers: Array, sender: Array, receiver: Array) -> Array:
        """(*slots,) a key by the number of the message, so that a late message is decoded as it was encoded."""
        key = jax.random.fold_in(channel.faults.schedule.key, CODE_STREAM)
        flat = [part.ravel() for part in (numbers, sender, receiver)]
        return reduce(fold_in_each, flat, key).reshape(numbers.shape)


def _each(function: Callable[..., Array], *arguments: Array) -> Array:
    """Applies a function of one link's row to all slots."""
    for _ in range(arguments[0].ndim - 1):
        function = jax.vmap(function)
    return function(*arguments)


def _keep(sender: Sender, reconstruction: Array, number: Array) -> Sender:
    """The sender with a new reconstruction instead of the oldest."""
    base, kept, numbers = sender
    sends = (number > 0)[..., None]
    newest = jnp.concatenate([reconstruction[..., None, :], kept[..., :-1, :]], -2)
    kept = jnp.where(sends[..., None], newest, kept)
    after = jnp.concatenate([numbers[..., :1], number[..., None], numbers[..., 1:-1]], -1)
    return Sender(base, kept, jnp.where(sends, after, numbers))


def _due(sender: Sender, number: Array) -> Array:
    """Whether to write a new message of that number.

    The reconstructions kept then span a good part of the time since the base was written, and so any acknowledgement
    that is still to come.
    """
    base, kept = sender.numbers[..., 0], sender.numbers[..., 1:]
    oldest = jnp.where(kept > 0, kept, number[..., None]).min(-1)
    since = jnp.where(base > 0, base, oldest)
    return (kept[..., 0] == 0) | (number - kept[..., 0] >= jnp.maximum((number - since) // KEPT, 1))


def _acknowledged(receiver: Receiver) -> Array:
    """The number of the candidate, else that of the base, negated."""
    base, candidate = receiver.numbers[..., 0], receiver.numbers[..., 1]
    return jnp.where(candidate > 0, candidate, -base)


def _receive(
    receiver: Receiver, number: Array, of_base: Array, oldest: Array, new: Array
) -> tuple[Array, Array, Receiver]:
    """The wave that a message relative to that base stands for, whether it can be read, and the receiver after it."""
    base, candidate, numbers = receiver
    arrives = number > 0
    base_number, candidate_number, newest = (numbers[..., i] for i in range(3))
    promotes = arrives & (of_base == candidate_number) & (of_base > 0)
    restarts = arrives & (of_base == 0) & (base_number > 0)
    base = jnp.where(promotes[..., None], candidate, jnp.where(restarts[..., None], 0, base))
    base_number = jnp.where(promotes, candidate_number, jnp.where(restarts, 0, base_number))
    wave = base + new
    readable = arrives & (of_base == base_number) & jnp.isfinite(wave).all(-1)
    # Without a candidate, the acknowledged base tells the sender that this end cannot read its messages.
    candidate_number = jnp.where(promotes | restarts | (arrives & ~readable), 0, candidate_number)
    replaces = readable & ((candidate_number == 0) | (candidate_number < oldest))
    candidate = jnp.where(replaces[..., None], wave, candidate)
    candidate_number = jnp.where(replaces, number, candidate_number)
    numbers = jnp.stack([base_number, candidate_number, jnp.maximum(newest, number)], -1)
    return wave, readable, Receiver(base, candidate, numbers)


def _acknowledge(sender: Sender, arrives: Array, ack: Array) -> Sender:
    """The sender with the acknowledged reconstruction as its base, or a base of zero where the number is impossible."""
    base_number, kept_numbers = sender.numbers[..., 0], sender.numbers[..., 1:]
    number = jnp.abs(ack)
    matches = (kept_numbers == number[..., None]) & (arrives & (number > 0))[..., None]
    acknowledged = matches.any(-1)
    reconstruction = jnp.take_along_axis(sender.kept, matches.argmax(-1)[..., None, None], -2)[..., 0, :]
    oldest = jnp.where(kept_numbers > 0, kept_numbers, jnp.iinfo(jnp.int32).max).min(-1)
    no_longer_kept = (ack > base_number) & (ack < oldest)
    lost = arrives & ~acknowledged & (number != base_number) & ~no_longer_kept & (base_number > 0)
    base = jnp.where(acknowledged[..., None], reconstruction, jnp.where(lost[..., None], 0, sender.base))
    base_number = jnp.where(acknowledged, number, jnp.where(lost, 0, base_number))
    kept_numbers = jnp.where((acknowledged | lost)[..., None], 0, kept_numbers)
    return Sender(base, sender.kept, jnp.concatenate([base_number[..., None], kept_numbers], -1))


def _forget(role: Role, is_reset: Array) -> Role:
    """Sender or receiver with a base of zero, where the link restarts."""
    restarts = is_reset[..., None]
    return role._replace(base=jnp.where(restarts, 0, role.base), numbers=jnp.where(restarts, 0, role.numbers))
