"""What a level sends to its neighbours: messages that know their size in bytes and the state that links keep for them.

A strategy yields a vector, or several; they are sent as they are (`Plain`). `Cumulative` and `Coded` need a state of
the links: flows that are summed over the steps, and public copies to which encoded differences are added. `Increment`
leaves the public copies to the strategy, and links remember nothing.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable
from dataclasses import replace
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..core._keys import fold_in_each
from ..core._types import PyTree
from ..core._vector import Vector, expand_to, flatten
from ._codecs import Code, ConcatCodec
from ._in_flight import LinkVectors
from ._links import Answers, Channel, LinkMemory, LinkStatus, Received
from ._mixing import Arrays, Mixer

CODE_STREAM = 2**31 + 3  # a stream of keys that no other use shares; it lies beyond every step
ASK_DAMPING = object()  # a move yields it to receive κ of the graph of its level; nothing is sent


class Fanout(NamedTuple):
    """For the cost of an exchange: how often a node sends a row, on average."""

    shared_row: float  # the same row to the neighbours of the step
    row_per_link: float  # another row to each of them
    shared_row_all_phases: float  # the same row to the neighbours of all phases of a changing graph
    header_bytes: int = 0  # further bytes of an encoded row where neighbours have no common clock


class Message(eqx.Module):
    """What a level sends in one exchange: vectors of every node, and how they are received.

    A strategy yields the message of one level. `by_kind` combines those of several levels into one, in which `content`,
    `wait_for` and `flow_bound` are dictionaries by level. `link_memory` and `receive` belong to combined messages;
    `bytes`, `placeholder` and `mix` to those of one level.

    Attributes:
        content: the vectors that the level sends.
        wait_for: arrays that must be computed before messages are read, so that the latest messages of asynchronous
            neighbours count.
        flow_bound: the bound on a link's flow (`_clip.FlowBound`); None without a limit.
    """

    content: PyTree
    wait_for: PyTree = eqx.field(default=None, kw_only=True)
    flow_bound: PyTree = eqx.field(default=None, kw_only=True)
    is_separable: ClassVar[bool] = False  # whether entries are independent, so that parts of vectors can be sent apart

    @property
    def is_random(self) -> bool:
        """Whether its encoding uses random numbers."""
        return False

    @property
    def kind(self) -> Hashable:
        """Messages of one kind on one graph travel together."""
        return type(self), self.flow_bound is None

    @abstractmethod
    def bytes(self, fanout: Fanout) -> float:
        """The bytes that a node sends."""

    @abstractmethod
    def link_memory(self, channel: Channel) -> LinkMemory:
        """What links remember before the first exchange: zeros."""

    def placeholder(self) -> PyTree:
        """A stand-in for what is received, of the same shapes, where a step is only traced."""
        return self.content

    @abstractmethod
    def receive(self, channel: Channel, memory: LinkMemory) -> Answers:
        """Exchanges the message; returns what each level receives, and what links remember of it."""


class LinkFree(Message):
    """Vectors that are sent unencoded. They need no links, which remember nothing, if all messages arrive at once."""

    is_separable: ClassVar[bool] = True

    def bytes(self, fanout: Fanout) -> float:
        return fanout.shared_row * bytes_per_node(self.content)

    def link_memory(self, channel: Channel) -> LinkMemory:
        """The differences of the last steps if faults make messages late; else nothing."""
        longest_delay = channel.faults.schedule.longest_delay
        if not longest_delay:
            return LinkMemory()
        return LinkMemory(zeros(self.content, *channel.links.neighbours.shape, longest_delay))

    @abstractmethod
    def mix(self, mixer: Mixer, phase: Array) -> PyTree:
        """What is received if all nodes are on one device and every message arrives."""


class Plain(LinkFree):
    """The answer is δ = Σ_j w_ij (φ_j − φ_i) over the messages that arrive."""

    def mix(self, mixer: Mixer, phase: Array) -> PyTree:
        return jax.tree.map(lambda leaf: mixer.flow(phase, leaf), self.content)

    def receive(self, channel: Channel, memory: LinkMemory) -> Answers:
        φ, unflatten = flatten(self.content)
        received = channel.transport.exchange_rows(φ)
        flows, late = weighted_differences(
            channel, received, received.rows - channel.links.sums.at_slots(φ), memory.per_link
        )
        return unflatten(channel.links.sums.at_nodes(flows)), LinkMemory(late)


class Pull(Plain):
    """As `Plain`, where rows of the weights sum to one and columns need not: the mean over nodes may change.

    What is lost leaves its weight to the receiver's own vector.
    """


class Cumulative(Message):
    """Vectors whose flows F_ij the links sum over the steps; the answer is Σ_j F_ij.

    F_ij ← (F_ij − F_ji)/2 + w_ij (φ_j − φ_i) where j's message arrives; a silent neighbour's F_ij stays. When both
    arrive, F_ij = −F_ji to the last bit whatever was lost before, since both ends round the same numbers. Where links
    are late, each message is used once, and none that is older than the last one used. Flows by link that messages set
    instead of adding to are those of Flow Updating (Jesus, Baquero and Almeida, 2015).
    """

    is_separable: ClassVar[bool] = True

    def bytes(self, fanout: Fanout) -> float:
        return 2 * fanout.row_per_link * bytes_per_node(self.content)  # the message and the link's flow

    def link_memory(self, channel: Channel) -> LinkMemory:
        F = zeros(self.content, *channel.links.neighbours.shape)
        return LinkMemory(LinkVectors.start(F, jnp.concatenate([F, F], -1), channel))

    def receive(self, channel: Channel, memory: LinkMemory) -> Answers:
        φ, unflatten = flatten(self.content)
        after = accumulate(channel, φ, memory.per_link)
        return unflatten(channel.links.sums.at_nodes(after.vectors)), LinkMemory(after)


class Coded(Message):
    """Vectors that are sent encoded, as the difference from what was sent before.

    The answer is Σ_j w_ij (φ̂_j − φ̂_i). A node sends the encoded difference of φ from its public copy φ̂, and all nodes
    that hold φ̂ add it.
    """

    code: Code

    @property
    def kind(self) -> Hashable:
        return type(self), self.code

    @property
    def is_random(self) -> bool:
        return self.code.is_random

    def bytes(self, fanout: Fanout) -> float:
        leaves = jax.tree.leaves(self.content)
        return fanout.shared_row_all_phases * self.code.bytes(sum(leaf[0].size for leaf in leaves), leaves[0].dtype)

    def link_memory(self, channel: Channel) -> LinkMemory:
        """The public copies: the neighbours', by link, and the node's own."""
        by_link = zeros(self.content, *channel.links.neighbours.shape)
        return LinkMemory(by_link, zeros(self.content, len(channel.faults.node_ids)))

    def receive(self, channel: Channel, memory: LinkMemory) -> Answers:
        φ, unflatten = flatten(self.content)
        theirs, mine = memory
        my_change, their_change = self.exchange_encoded(channel, φ - mine)
        theirs = theirs + their_change
        mine = mine + my_change
        return unflatten(self.flow(channel, mine, theirs)), LinkMemory(theirs, mine)

    def exchange_encoded(self, channel: Channel, new: Array) -> tuple[Array, Array]:
        """Sends `new` encoded; returns (nodes, entries) the nodes' own rows and (*slots, entries) those of their
        neighbours, decoded."""
        links, faults = channel.links, channel.faults
        widths = [flatten(content)[0].shape[1] for content in self.content.values()]
        codec = ConcatCodec(self.code, widths, new.dtype, [channel.reserve(part) for part in range(len(widths))])
        common, secret = (_keys(key, channel) for key in (faults.schedule.key, faults.secret))
        assert channel.transport.encode_rows is not None
        own_keys = fold_in_each(common, faults.node_ids)
        sent = channel.transport.encode_rows(codec, new, own_keys, fold_in_each(secret, faults.node_ids))
        decode = jax.vmap(codec.decode)
        mine = decode(sent, own_keys)
        neighbour_keys = fold_in_each(common, links.neighbours.ravel())

        def decode_slots(rows: Array) -> Array:
            decoded = decode(rows.reshape(len(neighbour_keys), -1), neighbour_keys)
            return decoded.reshape(*links.neighbours.shape, -1)

        return mine, channel.transport.exchange_coded_rows(sent, mine, codec, decode_slots)

    def flow(self, channel: Channel, mine: Array, theirs: Array) -> Array:
        """(nodes, entries) Σ_j w_ij (theirs − mine), times the code's `mixing`."""
        links = channel.links
        weights = channel.weights(mine.dtype)[..., None] * jnp.asarray(self.code.mixing, mine.dtype)
        return links.sums.at_nodes(weights * jnp.where(weights != 0, theirs - links.sums.at_slots(mine), 0))


class Increment(Coded):
    """The change of each vector since its last message, encoded. The answer is the decoded change q of this node and
    Σ_j w_ij (q_j − q_i).

    Links remember nothing, so that a step may send it again and again; a strategy that adds up both parts has a public
    copy and its flow, where W stays the same. Random codes would draw the same numbers in every repetition, so they
    raise an error.
    """

    def link_memory(self, channel: Channel) -> LinkMemory:
        return LinkMemory()

    def placeholder(self) -> PyTree:
        return self.content, self.content

    def receive(self, channel: Channel, memory: LinkMemory) -> Answers:
        new, unflatten = flatten(self.content)
        mine, theirs = self.exchange_encoded(channel, new)
        values, flows = unflatten(mine), unflatten(self.flow(channel, mine, theirs))
        return {level: (values[level], flows[level]) for level in self.content}, memory


class Scaled(LinkFree):
    """Pairs (φ, b) of vectors and of what their differences are scaled by, entry by entry or one for all entries.

    The answer is Σ_j w_ij min(b_i, b_j) (φ_j − φ_i), which cancels over each link to the last bit, and δ(b).
    """

    def mix(self, mixer: Mixer, phase: Array) -> PyTree:
        φ, b = self.content
        scales = b.tree if jax.tree.structure(b) == jax.tree.structure(φ) else jax.tree.map(lambda _: b.tree, φ.tree)

        def flow(φ: Array, b: Array) -> Array:
            return mixer.sum(phase, _scaled_difference, φ, expand_to(b, φ))

        return Vector(jax.tree.map(flow, φ.tree, scales)), jax.tree.map(lambda leaf: mixer.flow(phase, leaf), b)

    def receive(self, channel: Channel, memory: LinkMemory) -> Answers:
        parts = [flatten(vector) for pair in self.content.values() for vector in pair]  # φ and b in turn
        sent = jnp.concatenate([part for part, _ in parts], 1)
        ends = np.cumsum([part.shape[1] for part, _ in parts])
        received = channel.transport.exchange_rows(sent)
        mine, theirs = (_split(rows, ends) for rows in (channel.links.sums.at_slots(sent), received.rows))
        # No scale is negative or too large to be squared, whatever a neighbour sends.
        theirs[1::2] = [jnp.clip(b, 0, float(jnp.finfo(b.dtype).max) ** 0.5 / 4) for b in theirs[1::2]]
        differences = [received_part - own_part for own_part, received_part in zip(mine, theirs, strict=True)]
        for i in range(0, len(parts), 2):  # of φ; its b is the next part
            differences[i] = jnp.minimum(mine[i + 1], theirs[i + 1]) * differences[i]
        flows, late = weighted_differences(channel, received, jnp.concatenate(differences, -1), memory.per_link)
        flow = channel.links.sums.at_nodes(flows)
        answers = [unflatten(part) for (_, unflatten), part in zip(parts, _split(flow, ends), strict=True)]
        return dict(zip(self.content, zip(answers[::2], answers[1::2], strict=True), strict=True)), LinkMemory(late)


def _scaled_difference(theirs: Arrays, mine: Arrays) -> Array:
    return jnp.minimum(theirs[1], mine[1]) * (theirs[0] - mine[0])


def as_message(content: PyTree) -> Message:
    """The message that a strategy yields; vectors become `Plain`."""
    return content if isinstance(content, Message) else Plain(content)


def by_kind(messages: dict[str, Message]) -> list[Message]:
    """The messages of each kind combined into one, whose fields are dictionaries of levels."""
    combined: dict[Hashable, Message] = {}
    for level, message in sorted(messages.items()):  # as content is flattened
        earlier = combined.get(message.kind)
        fields = ("content", "wait_for") if message.flow_bound is None else ("content", "wait_for", "flow_bound")
        by_level = {
            field: ({} if earlier is None else getattr(earlier, field)) | {level: getattr(message, field)}
            for field in fields
        }
        combined[message.kind] = replace(message, **by_level)
    return list(combined.values())


def weighted_differences(
    channel: Channel, received: Received, difference: Array, late: Array | None
) -> tuple[Array, Array | None]:
    """Returns (*slots, entries) w_ij times the differences over the links that are up, those of this step or of the
    step whose messages arrive now; and the differences that arrive later, if faults delay any."""
    weights = channel.weights(difference.dtype)
    arrives = channel.arrives if received.has_arrived is None else channel.arrives & received.has_arrived
    difference = jnp.where((weights != 0)[..., None], difference, 0)
    if late is not None:
        recent = jnp.concatenate([difference[..., None, :], late], -2)
        difference = jnp.take_along_axis(recent, channel.delay[..., None, None], -2)[..., 0, :]
        late = recent[..., :-1, :]
    return jnp.where(arrives, weights, 0)[..., None] * difference, late


def _split(rows: Array, ends: np.ndarray) -> list[Array]:
    return jnp.split(rows, ends[:-1].tolist(), -1)


def accumulate(channel: Channel, φ: Array, memory: LinkVectors) -> LinkVectors:
    """The flows of `Cumulative` after an exchange, with what is in flight."""
    F = memory.vectors
    mine = channel.links.sums.at_slots(φ)
    received = channel.transport.exchange_link_rows(jnp.concatenate([mine, F], -1))
    link_statuses = received.link_statuses
    is_reset = channel.is_reset
    if link_statuses is not None:
        is_reset = is_reset | (link_statuses == LinkStatus.DROP_FLOW)
    rows, is_new, memory = memory.newest(channel, received, is_reset)
    theirs, their_F = jnp.split(rows, 2, -1)
    if link_statuses is not None:
        F, their_F = _restore(link_statuses[..., None], F, their_F)
    weights = channel.weights(φ.dtype)[..., None]
    renewed = weights * (theirs - mine) + jnp.asarray(0.5, F.dtype) * (F - their_F)
    F = jnp.where(is_new[..., None], renewed, F)
    return memory._replace(vectors=jnp.where(is_reset[..., None], 0, F))


def _restore(link_statuses: Array, F: Array, their_F: Array) -> tuple[Array, Array]:
    """This end's flows and the other end's, where a link begins again: one end has kept them, or neither."""
    F_here = jnp.where(link_statuses == LinkStatus.TAKE_FLOW, -their_F, F)
    F_there = jnp.where(link_statuses == LinkStatus.GIVE_FLOW, -F, their_F)
    starts_at_zero = link_statuses == LinkStatus.START_AT_ZERO
    return jnp.where(starts_at_zero, 0, F_here), jnp.where(starts_at_zero, 0, F_there)


def zeros(content: PyTree, *rows: int) -> Array:
    """(*rows, entries) zeros, for packed buffers of such content."""
    buffer = jax.eval_shape(lambda content: flatten(content)[0], content)
    return jnp.zeros((*rows, buffer.shape[1]), buffer.dtype)


def bytes_per_node(content: PyTree) -> int:
    """The size of one node's vectors."""
    return sum(leaf.size // leaf.shape[0] * leaf.dtype.itemsize for leaf in jax.tree.leaves(content))


def _keys(key: Array, channel: Channel) -> Array:
    """The key of the step; the codec folds in the path of the message."""
    return jax.random.fold_in(jax.random.fold_in(key, CODE_STREAM), channel.step)
