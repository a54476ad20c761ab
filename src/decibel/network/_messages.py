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
from ..core._vector import Vector, beside, flatten
from ._codecs import Code, ConcatCodec
from ._in_flight import InFlight, arrivals, numbers_sent
from ._links import Channel, LinkMemory, LinkState, Received
from ._mixing import Arrays, Mixer

CODES = 2**31 + 3  # a stream of keys of its own, beyond every step


class Copies(NamedTuple):
    """How many rows a node sends in an exchange, on average."""

    to_neighbours: float  # the same row to the neighbours of the step
    by_link: float  # a row of its own to each of them
    to_all: float  # the same row to the neighbours of all phases of a changing graph
    header: int = 0  # bytes of a row in code, in addition, where neighbours have no common clock


class Message(eqx.Module):
    """What a level sends in one exchange: vectors of every node, and how they are received.

    `after` is what a node computes before it uses what arrives; where neighbours have no common clock, what comes while
    it computes still counts. `within` is the step size and the limit of what a link may carry (`_clip`), where there is
    one.
    """

    content: PyTree
    after: PyTree = eqx.field(default=None, kw_only=True)
    within: PyTree = eqx.field(default=None, kw_only=True)
    splits: ClassVar[bool] = False  # whether every entry fares by itself, so that parts of vectors can be sent apart

    @property
    def draws(self) -> bool:
        """Whether sending it draws at random."""
        return False

    @property
    def kind(self) -> Hashable:
        """Messages of one kind on one graph travel together."""
        return type(self), self.within is None

    @abstractmethod
    def bytes(self, copies: Copies) -> float:
        """What a node sends of it."""

    @abstractmethod
    def link_memory(self, channel: Channel) -> LinkMemory:
        """What links remember before the first exchange: zeros."""

    def placeholder(self) -> PyTree:
        """Of the shape of what is received, where a step is only traced for shapes."""
        return self.content

    @abstractmethod
    def receive(self, channel: Channel, memory: LinkMemory) -> tuple[dict[str, PyTree], LinkMemory]:
        """What the exchange gives back in the place of the content, and what links remember of it."""


class Stateless(Message):
    """Vectors as they are, of which links remember nothing where all messages arrive at once."""

    splits: ClassVar[bool] = True

    def bytes(self, copies: Copies) -> float:
        return copies.to_neighbours * size(self.content)

    def link_memory(self, channel: Channel) -> LinkMemory:
        """The differences of the last steps, where faults make messages late."""
        steps = channel.faults.schedule.longest_delay
        return LinkMemory(zeros(self.content, *channel.links.neighbours.shape, steps) if steps else None)

    @abstractmethod
    def mixed(self, mixer: Mixer, phase: Array) -> PyTree:
        """What is received where all nodes are rows of the same arrays and every message arrives."""


class Plain(Stateless):
    """The answer is δ = Σ_j w_ij (φ_j − φ_i) over the messages that arrive."""

    def mixed(self, mixer: Mixer, phase: Array) -> PyTree:
        return jax.tree.map(lambda leaf: mixer.flow(phase, leaf), self.content)

    def receive(self, channel: Channel, memory: LinkMemory) -> tuple[dict[str, PyTree], LinkMemory]:
        φ, unflatten = flatten(self.content)
        received = channel.transport.rows(φ)
        flows, late = flows_by_link(channel, received, received.rows - channel.links.sums.at_slots(φ), memory.by_link)
        return unflatten(channel.links.sums.at_nodes(flows)), LinkMemory(late)


class Cumulative(Message):
    """Vectors whose flows F_ij the links sum over the steps; the answer is Σ_j F_ij.

    F_ij ← (F_ij − F_ji)/2 + w_ij (φ_j − φ_i) where j's message arrives; a silent neighbour's F_ij stays. When both
    arrive, F_ij = −F_ji to the last bit whatever was lost before, since both ends round the same numbers. Where links
    are late, each message is used once, and none that is older than the last one used. Flows by link that messages set
    instead of adding to are those of Flow Updating (Jesus, Baquero and Almeida, 2015).
    """

    splits: ClassVar[bool] = True

    def bytes(self, copies: Copies) -> float:
        return 2 * copies.by_link * size(self.content)  # the message and the link's flow

    def link_memory(self, channel: Channel) -> LinkMemory:
        F = zeros(self.content, *channel.links.neighbours.shape)
        in_flight = InFlight.empty(jnp.concatenate([F, F], -1), channel)
        return LinkMemory(F if in_flight is None else LateFlows(F, in_flight, jnp.zeros((*F.shape[:-1], 1), jnp.int32)))

    def receive(self, channel: Channel, memory: LinkMemory) -> tuple[dict[str, PyTree], LinkMemory]:
        φ, unflatten = flatten(self.content)
        after = accumulate(channel, φ, memory.by_link)
        F = after.flows if isinstance(after, LateFlows) else after
        return unflatten(channel.links.sums.at_nodes(F)), LinkMemory(after)


class LateFlows(NamedTuple):
    """What a link remembers of cumulative flows where messages are late: (*slots, entries) the flows, what is under
    way, and (*slots, 1) the number of the last message used."""

    flows: Array
    in_flight: InFlight
    used: Array


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
    def draws(self) -> bool:
        return self.code.draws

    def bytes(self, copies: Copies) -> float:
        leaves = jax.tree.leaves(self.content)
        return copies.to_all * self.code.bytes(sum(leaf[0].size for leaf in leaves), leaves[0].dtype)

    def link_memory(self, channel: Channel) -> LinkMemory:
        """The public copies: the neighbours', by link, and the node's own."""
        by_link = zeros(self.content, *channel.links.neighbours.shape)
        return LinkMemory(by_link, zeros(self.content, len(channel.faults.nodes)))

    def receive(self, channel: Channel, memory: LinkMemory) -> tuple[dict[str, PyTree], LinkMemory]:
        (φ, unflatten), (theirs, mine) = flatten(self.content), memory
        new, arrived = self.exchanged(channel, φ - mine)
        theirs, mine = theirs + arrived, mine + new
        return unflatten(self.flow(channel, mine, theirs)), LinkMemory(theirs, mine)

    def exchanged(self, channel: Channel, new: Array) -> tuple[Array, Array]:
        """What the codes of `new` read as: (nodes, entries) the nodes' own, (*slots, entries) their neighbours'."""
        links, faults = channel.links, channel.faults
        widths = [flatten(content)[0].shape[1] for content in self.content.values()]
        codec = ConcatCodec(self.code, widths, new.dtype, [channel.claim(part) for part in range(len(widths))])
        common, own = (_keys(key, channel) for key in (faults.schedule.key, faults.secret))
        assert channel.transport.encode is not None
        keys = fold_in_each(common, faults.nodes), fold_in_each(own, faults.nodes)
        sent = channel.transport.encode(codec, new, *keys)
        decode = jax.vmap(codec.decode)
        mine = decode(sent, fold_in_each(common, faults.nodes))
        keys, shape = fold_in_each(common, links.neighbours.ravel()), links.neighbours.shape

        def read(rows: Array) -> Array:
            return decode(rows.reshape(len(keys), -1), keys).reshape(*shape, -1)

        return mine, channel.transport.coded(sent, mine, codec, read)

    def flow(self, channel: Channel, mine: Array, theirs: Array) -> Array:
        """(nodes, entries) Σ_j w_ij (theirs − mine), times the code's `mixing`."""
        links = channel.links
        weights = channel.weights(mine.dtype)[..., None] * jnp.asarray(self.code.mixing, mine.dtype)
        return links.sums.at_nodes(weights * jnp.where(weights != 0, theirs - links.sums.at_slots(mine), 0))


class Increment(Coded):
    """What vectors have new, encoded; the answer is what the code reads as, q, and Σ_j w_ij (q_j − q_i).

    Links remember nothing, so that a step may send it again and again; a strategy that adds up both parts has a public
    copy and its flow, where W stays the same. Codes that draw at random would draw alike in every repetition, so that
    they raise there.
    """

    def link_memory(self, channel: Channel) -> LinkMemory:
        return LinkMemory()

    def placeholder(self) -> PyTree:
        return self.content, self.content

    def receive(self, channel: Channel, memory: LinkMemory) -> tuple[dict[str, PyTree], LinkMemory]:
        new, unflatten = flatten(self.content)
        mine, theirs = self.exchanged(channel, new)
        own, flows = unflatten(mine), unflatten(self.flow(channel, mine, theirs))
        return {level: (own[level], flows[level]) for level in self.content}, memory


class Scaled(Stateless):
    """Pairs (φ, b) of vectors and of what their differences are scaled by, entry by entry or one for all entries.

    The answer is Σ_j w_ij min(b_i, b_j) (φ_j − φ_i), which cancels over each link to the last bit, and δ(b).
    """

    def mixed(self, mixer: Mixer, phase: Array) -> PyTree:
        φ, b = self.content
        scales = b.tree if jax.tree.structure(b) == jax.tree.structure(φ) else jax.tree.map(lambda _: b.tree, φ.tree)

        def flow(φ: Array, b: Array) -> Array:
            return mixer.sum(phase, _scaled_difference, φ, beside(b, φ))

        return Vector(jax.tree.map(flow, φ.tree, scales)), jax.tree.map(lambda leaf: mixer.flow(phase, leaf), b)

    def receive(self, channel: Channel, memory: LinkMemory) -> tuple[dict[str, PyTree], LinkMemory]:
        parts = [flatten(vector) for pair in self.content.values() for vector in pair]  # φ and b in turn
        own, ends = jnp.concatenate([part for part, _ in parts], 1), np.cumsum([part.shape[1] for part, _ in parts])
        received = channel.transport.rows(own)
        mine, theirs = (_split(rows, ends) for rows in (channel.links.sums.at_slots(own), received.rows))
        # No scale is negative or too large to be squared, whatever a neighbour sends.
        theirs[1::2] = [jnp.clip(b, 0, float(jnp.finfo(b.dtype).max) ** 0.5 / 4) for b in theirs[1::2]]
        differences = [there - here for here, there in zip(mine, theirs, strict=True)]
        for φ in range(0, len(parts), 2):
            differences[φ] = jnp.minimum(mine[φ + 1], theirs[φ + 1]) * differences[φ]
        flows, late = flows_by_link(channel, received, jnp.concatenate(differences, -1), memory.by_link)
        flow = channel.links.sums.at_nodes(flows)
        answers = [unflatten(part) for (_, unflatten), part in zip(parts, _split(flow, ends), strict=True)]
        return dict(zip(self.content, zip(answers[::2], answers[1::2], strict=True), strict=True)), LinkMemory(late)


def _scaled_difference(there: Arrays, here: Arrays) -> Array:
    return jnp.minimum(there[1], here[1]) * (there[0] - here[0])


def as_message(content: PyTree) -> Message:
    """What a strategy yields, as a message."""
    return content if isinstance(content, Message) else Plain(content)


def by_kind(messages: dict[str, Message]) -> list[Message]:
    """One message for all of a kind, whose content is a dictionary of levels."""
    together: dict[Hashable, Message] = {}
    for level, message in sorted(messages.items()):  # as content is flattened
        known = together.get(message.kind)
        every = {
            name: ({} if known is None else getattr(known, name)) | {level: getattr(message, name)}
            for name in ("content", "after")
        }
        if message.within is not None:
            every["within"] = ({} if known is None else known.within) | {level: message.within}
        together[message.kind] = replace(message, **every)
    return list(together.values())


def flows_by_link(
    channel: Channel, received: Received, difference: Array, late: Array | None
) -> tuple[Array, Array | None]:
    """(*slots, entries) w_ij times the differences over the links that are up, of this step or of the step that arrives
    now; and the differences that are late, where faults delay any."""
    weights = channel.weights(difference.dtype)
    arrives = channel.arrives if received.arrived is None else channel.arrives & received.arrived
    difference = jnp.where((weights != 0)[..., None], difference, 0)
    if late is not None:
        known = jnp.concatenate([difference[..., None, :], late], -2)
        difference = jnp.take_along_axis(known, channel.delay[..., None, None], -2)[..., 0, :]
        late = known[..., :-1, :]
    return jnp.where(arrives, weights, 0)[..., None] * difference, late


def _split(rows: Array, ends: np.ndarray) -> list[Array]:
    return jnp.split(rows, ends[:-1].tolist(), -1)


def accumulate(channel: Channel, φ: Array, memory: Array | LateFlows) -> Array | LateFlows:
    """The flows of `Cumulative` after an exchange, with what is under way."""
    F, late = (memory.flows, memory) if isinstance(memory, LateFlows) else (memory, None)
    mine = channel.links.sums.at_slots(φ)
    received = channel.transport.links(jnp.concatenate([mine, F], -1))
    states = received.states
    forgotten = channel.forgotten
    if states is not None:
        forgotten = forgotten | (states == LinkState.DROPPED)
    under_way = None if late is None else late.in_flight
    rows, number, under_way = arrivals(channel, received, numbers_sent(channel), under_way, forgotten)
    theirs, their_F = jnp.split(rows, 2, -1)
    if states is not None:
        F, their_F = _restored(states[..., None], F, their_F)
    last_used = 0 if late is None else jnp.where(forgotten, 0, late.used[..., 0])
    weights = channel.weights(φ.dtype)[..., None]
    renewed = weights * (theirs - mine) + jnp.asarray(0.5, F.dtype) * (F - their_F)
    F = jnp.where((number > last_used)[..., None], renewed, F)
    F = jnp.where(forgotten[..., None], 0, F)
    return F if under_way is None else LateFlows(F, under_way, jnp.maximum(number, last_used)[..., None])


def _restored(states: Array, F: Array, their_F: Array) -> tuple[Array, Array]:
    """Both ends' flows where a link begins again: one end has kept them, or neither."""
    kept_there = jnp.where(states == LinkState.RESTORE, -their_F, F)
    kept_here = jnp.where(states == LinkState.KEEPS, -F, their_F)
    reset = states == LinkState.RESET
    return jnp.where(reset, 0, kept_there), jnp.where(reset, 0, kept_here)


def zeros(content: PyTree, *rows: int) -> Array:
    """So many packed buffers of such content."""
    buffer = jax.eval_shape(lambda content: flatten(content)[0], content)
    return jnp.zeros((*rows, buffer.shape[1]), buffer.dtype)


def size(content: PyTree) -> int:
    """The bytes of one node's vectors."""
    return sum(leaf.size // leaf.shape[0] * leaf.dtype.itemsize for leaf in jax.tree.leaves(content))


def _keys(key: Array, channel: Channel) -> Array:
    """Of the step; the codec adds the place in it."""
    return jax.random.fold_in(jax.random.fold_in(key, CODES), channel.step)
