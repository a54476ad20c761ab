"""Pairs (φ, b) whose scales b are sent in one byte per entry, and each entry only every few messages.

A scale is rounded down to a power of two. Both ends of a link use the scales that have arrived over it, so flows still
cancel to the last bit. A scale that is too small, because it was rounded or is old, only slows mixing down. This suits
scales that never decrease.
"""

from __future__ import annotations

from collections.abc import Hashable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike

from ..core._types import PyTree
from ..core._vector import flatten
from ._links import Answers, Channel, LinkMemory
from ._messages import Fanout, Message

MIDDLE, MOST = 63, 126  # codes of 1 and of the largest scale; four of them, read as a float, are never NaN or infinite


class QuantizedScaled(Message):
    """`Scaled` with quantized scales: each message has one byte per entry for an `every`-th part of b.

    The answer is Σ_j w_ij min(b_i, b_j) (φ_j − φ_i) and Σ_j w_ij (b_j − b_i), with the b that both ends know.
    """

    every: int = eqx.field(static=True)

    @property
    def kind(self) -> Hashable:
        return type(self), self.every

    def bytes(self, fanout: Fanout) -> float:
        φ, b = (flatten(vector)[0] for vector in self.content)
        return fanout.shared_row * φ.dtype.itemsize * (φ.shape[1] + _packed(self._share(b), φ.dtype))

    def link_memory(self, channel: Channel) -> LinkMemory:
        """The scales that have arrived over each link, by level: the node's own, and the neighbour's."""
        if channel.faults.schedule.longest_delay:
            raise ValueError("scale_every cannot be combined with late messages: leave one of them out.")

        def zeros(pair: tuple[PyTree, PyTree]) -> tuple[Array, Array]:
            b, _ = flatten(pair[1])
            none = jnp.zeros((*channel.links.neighbours.shape, self.every, self._share(b)), b.dtype)
            return none, none

        return LinkMemory({level: zeros(pair) for level, pair in self.content.items()})

    def receive(self, channel: Channel, memory: LinkMemory) -> Answers:
        part_index = (channel.exchanges_so_far % self.every).astype(jnp.int32)
        pairs = {level: [flatten(vector) for vector in pair] for level, pair in self.content.items()}
        codes = {level: self._part(b, part_index) for level, (_, (b, _)) in pairs.items()}
        sent = [part for level, ((φ, _), _) in pairs.items() for part in (φ, _pack(codes[level], φ.dtype))]
        received = channel.transport.exchange_rows(jnp.concatenate(sent, 1))
        parts = jnp.split(received.rows, np.cumsum([part.shape[1] for part in sent])[:-1].tolist(), -1)
        arrives = channel.arrives if received.has_arrived is None else channel.arrives & received.has_arrived
        answers = {}
        scales = {}
        for level, φ_there, packed in zip(pairs, parts[::2], parts[1::2], strict=True):
            (φ, unflatten_φ), (b, unflatten_b) = pairs[level]
            own_codes = channel.links.sums.at_slots(codes[level])
            their_codes = _unpack(packed, codes[level].shape[1])
            scales[level] = tuple(
                self._renewed(channel, arrives, old, old.at[..., part_index, :].set(_decode(new, b.dtype)))
                for old, new in zip(memory.per_link[level], (own_codes, their_codes), strict=True)
            )
            mine, theirs = (side.reshape(*arrives.shape, -1) for side in scales[level])
            φ_flow, b_flow = self._flows(channel, arrives, φ, φ_there, mine, theirs)
            answers[level] = unflatten_φ(φ_flow), unflatten_b(b_flow[:, : b.shape[1]])
        return answers, LinkMemory(scales)

    def _renewed(self, channel: Channel, arrives: Array, old: Array, new: Array) -> Array:
        """The scales of a link: zero where one of its ends has left."""
        return jnp.where(channel.is_reset[..., None, None], 0, jnp.where(arrives[..., None, None], new, old))

    def _flows(
        self, channel: Channel, arrives: Array, φ: Array, φ_there: Array, mine: Array, theirs: Array
    ) -> tuple[Array, Array]:
        least = jnp.minimum(mine, theirs)[..., : φ.shape[1]]
        weights = jnp.where(arrives, channel.weights(φ.dtype), 0)[..., None]

        def sums(part: Array) -> Array:
            return channel.links.sums.at_nodes(weights * jnp.where(weights != 0, part, 0))

        return sums(least * (φ_there - channel.links.sums.at_slots(φ))), sums(theirs - mine)

    def _share(self, b: Array) -> int:
        return -(-b.shape[1] // self.every)

    def _part(self, b: Array, part_index: Array) -> Array:
        """(nodes, share) the codes that this message sends."""
        share = self._share(b)
        codes = jnp.pad(_encode(b), ((0, 0), (0, self.every * share - b.shape[1])))
        return jax.lax.dynamic_slice_in_dim(codes, part_index * share, share, 1)


def _packed(share: int, dtype: DTypeLike) -> int:
    return -(-share // np.dtype(dtype).itemsize)


def _encode(b: Array) -> Array:
    """The exponent of the largest power of two not above b; 0 for b too small."""
    exponent = jnp.frexp(b)[1].astype(jnp.int32) - 1
    return jnp.where(b > 0, jnp.clip(exponent + MIDDLE, 0, MOST), 0).astype(jnp.uint8)


def _decode(codes: Array, dtype: DTypeLike) -> Array:
    codes = jnp.minimum(codes, jnp.uint8(MOST)).astype(jnp.uint32)  # whatever a neighbour sends
    # Writes the exponent of a float32 into its bits: exp2 rounds differently on different machines.
    powers = jax.lax.bitcast_convert_type((codes + (127 - MIDDLE)) << 23, jnp.float32)
    return jnp.where(codes > 0, powers.astype(dtype), jnp.zeros((), dtype))


def _pack(codes: Array, dtype: DTypeLike) -> Array:
    size = np.dtype(dtype).itemsize
    padded = jnp.pad(codes, ((0, 0), (0, -codes.shape[1] % size)))
    return jax.lax.bitcast_convert_type(padded.reshape(len(codes), -1, size), dtype)


def _unpack(packed: Array, share: int) -> Array:
    codes = jax.lax.bitcast_convert_type(packed, jnp.uint8)
    return codes.reshape(*packed.shape[:-1], -1)[..., :share]
