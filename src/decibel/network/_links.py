"""Link by link: the exchange for messages that may be lost, late, coded, or summed over the steps.

Every node has a slot per neighbour (`incidence`). What arrives in a slot counts or not, by the faults and by what the
carrier heard; what a link has carried so far is remembered at both its ends, by slot. How rows reach the slots is the
engine's matter: a `Carrier` each.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from enum import IntEnum
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..core._keys import fold_in_each
from ..core._vector import flatten
from ..graphs._graph import Levels
from ..strategies._table import Code, Coded, Cumulative
from ._exchange import Exchange
from ._incidence import Slots, Sums, slots
from .faults import FaultSchedule

LEVELS = ("x", "y", "z")
CODES = 2**31 + 3  # a stream of its own, beyond every step


class LinkState(IntEnum):
    """How a link's two ends stand to each other in one exchange, seen from one of them."""

    TIED = 0  # both have heard of each other before
    KEEPS = 1  # the other end has come back, and takes its flow from this one
    RESTORE = 2  # this end has come back: F_ij := −F_ji
    RESET = 3  # both begin at zero
    DROPPED = 4  # the other end is gone, and its flow is dropped


class Received(NamedTuple):
    """(*slots, entries) what came into the slots, (*slots,) where anything did, and the `LinkState` of each; None is
    everywhere, and all tied."""

    rows: Array
    heard: Array | None = None
    ties: Array | None = None


class Carrier(eqx.Module):
    """Delivers what neighbours send to the slots of the local nodes."""

    @abstractmethod
    def rows(self, k: Array, buffer: Array) -> Received:
        """(nodes, entries): every neighbour's row."""

    @abstractmethod
    def links(self, k: Array, buffer: Array) -> Received:
        """(*slots, entries): what each neighbour keeps for this node."""

    def decoded(self, k: Array, sent: Array, own: Array, code: ConcatCodec, decode: Callable[[Array], Array]) -> Array:
        """(*slots, entries) of neighbours' rows in code, by `decode`; `own` are this node's, decoded."""
        return decode(self.rows(k, sent).rows)

    @abstractmethod
    def sends(self, *, per_link: bool, coded: bool) -> float:
        """How many rows a node sends, on average; one in code goes to the neighbours of all phases."""


class Links(eqx.Module):
    """The links of one graph, for the local nodes."""

    neighbours: Array  # (*slots,) their numbers
    weights: Array  # (*slots, phases)
    sums: Sums
    carrier: Carrier

    def weights_at(self, k: Array, dtype: Any) -> Array:
        phases = self.weights.shape[-1]
        return self.weights[..., k % phases if phases > 1 else 0].astype(dtype)


class Remembered(NamedTuple):
    """What one exchange over one graph keeps: the differences of the last steps, the flows so far, and what coded
    messages have built up, here and at the neighbours."""

    late: Any = None  # (*slots, steps, entries)
    flows: Any = None  # (*slots, entries)
    copies: Any = ()  # per code: (nodes, entries) and (*slots, entries)

    def moved(self, before: np.ndarray, now: np.ndarray, slots: int) -> Remembered:
        """With every link in its slot `now` of so many, where it was in the slot `before`."""

        def move(leaf: Any) -> Any:
            return None if leaf is None else jnp.zeros((slots, *leaf.shape[1:]), leaf.dtype).at[now].set(leaf[before])

        return Remembered(
            move(self.late), move(self.flows), tuple((mine, move(theirs)) for mine, theirs in self.copies)
        )


def moved(remembered: Any, graphs: Levels, before: int, now: int) -> Any:
    """What the exchanges of a step remember, when nodes move from so many devices to others."""
    places = [(slots(graph, before), slots(graph, now)) for graph in graphs.distinct()[0]]

    def move(one: Remembered, old: Slots, new: Slots) -> Remembered:
        return one if new.rest is None else one.moved(old.places, new.places, len(new.neighbours))

    return tuple(tuple(move(one, *both) for one, both in zip(every, places, strict=True)) for every in remembered)


class LinkStatus(NamedTuple):
    """The faults of a step on one graph: of nodes (`active`), and of links as seen from their slots."""

    active: Array
    up: Array
    forgotten: Array
    delay: Array


class Conditions(NamedTuple):
    k: Array
    graphs: tuple[LinkStatus, ...]


class LinkByLink(Exchange):
    """The exchange of all levels; levels on the same graph travel together."""

    graphs: tuple[Links, ...]
    which: tuple[int, int, int] = eqx.field(static=True)  # the graph of levels x, y, z
    nodes: Array
    fault_schedule: FaultSchedule
    secret: Array  # the key of chances that others must not know, where this is no simulation

    @classmethod
    def of(
        cls,
        graphs: Levels,
        nodes: Array,
        fault_schedule: FaultSchedule,
        carry: Callable[[Any], Links],
        secret: Array | None = None,
    ) -> LinkByLink:
        distinct, which = graphs.distinct()
        return cls(
            tuple(map(carry, distinct)), which, nodes, fault_schedule, fault_schedule.key if secret is None else secret
        )

    def sends(self, level: str, *, per_link: bool = False, coded: bool = False) -> float:
        return self.graphs[self.which[LEVELS.index(level)]].carrier.sends(per_link=per_link, coded=coded)

    def conditions(self, k: Array) -> Conditions:
        return Conditions(k, tuple(self._over(k, links) for links in self.graphs))

    def _over(self, k: Array, links: Links) -> LinkStatus:
        (here, there), nodes = self._ends(links), len(self.nodes)
        everyone, at_slots = jnp.concatenate([self.nodes, there.ravel()]), links.sums.at_slots
        one_of_two = lambda struck: at_slots(struck[:nodes]) | struck[nodes:].reshape(there.shape)  # noqa: E731
        idle, gone = self.fault_schedule.idle(k, everyone), self.fault_schedule.gone(k, everyone)
        return LinkStatus(
            active=~idle[:nodes],
            up=~(self.fault_schedule.down(k, here, there) | one_of_two(idle)),
            forgotten=one_of_two(gone),
            delay=self.fault_schedule.delay(k, here, there),
        )

    def active(self, now: Conditions) -> Array | None:
        return now.graphs[0].active if self.fault_schedule.stops_nodes else None

    def remembers(self, messages: dict[str, Any]) -> tuple[Remembered, ...]:
        def shapes(graph: int, links: Links) -> Remembered:
            plain, kept, coded = self._sort(graph, messages)
            delay, rows = self.fault_schedule.longest_delay, links.neighbours.shape
            late = _shape(plain, *rows, delay) if plain and delay else None
            copies = tuple((_shape(m, len(self.nodes)), _shape(m, *rows)) for m in coded.values())
            return Remembered(late, _shape(kept, *rows) if kept else None, copies)

        return tuple(shapes(graph, links) for graph, links in enumerate(self.graphs))

    def __call__(
        self, now: Conditions, number: int, messages: dict[str, Any], memory: tuple[Remembered, ...]
    ) -> tuple[dict[str, Any], tuple[Remembered, ...]]:
        answers: dict[str, Any] = {}
        after = []
        for graph, (links, over) in enumerate(zip(self.graphs, now.graphs, strict=True)):
            late, flows, copies = memory[graph] if memory else Remembered()
            plain, kept, coded = self._sort(graph, messages)
            heard = over.up & ~self.fault_schedule.lost(now.k, number, *self._ends(links))
            if plain:
                buffer, back = flatten(plain)
                answer, late = _flow(links, now.k, heard, over.delay, buffer, late)
                answers |= back(answer)
            if kept:
                buffer, back = flatten(kept)
                # What is late has been overtaken by newer messages: it counts as lost.
                flows = _accumulate(links, now.k, heard & (over.delay == 0), over.forgotten, buffer, flows)
                answers |= back(links.sums.at_nodes(flows))
            for place, (code, decoded) in enumerate(coded.items()):
                buffer, back = flatten(decoded)
                parts = ConcatCodec(code, [flatten(m)[0].shape[1] for m in decoded.values()], buffer.dtype)
                answer, copy = self._decode(links, now.k, number, parts, buffer, copies[place])
                answers |= back(answer)
                copies = (*copies[:place], copy, *copies[place + 1 :])
            after.append(Remembered(late, flows, copies))
        return answers, tuple(after)

    def _sort(self, graph: int, messages: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any], dict[Code, Any]]:
        """The messages on one graph: those that flow, those whose flows are summed, and, by code, those in code."""
        here = {level: m for level, m in messages.items() if self.which[LEVELS.index(level)] == graph}
        plain = {level: m for level, m in here.items() if not isinstance(m, Cumulative | Coded)}
        kept = {level: m.message for level, m in here.items() if isinstance(m, Cumulative)}
        coded: dict[Code, Any] = {}
        for level, m in here.items():
            if isinstance(m, Coded):
                coded.setdefault(m.code, {})[level] = m.message
        return plain, kept, coded

    def _decode(
        self, links: Links, k: Array, number: int, code: ConcatCodec, φ: Array, copies: tuple[Array, Array]
    ) -> tuple[Array, tuple[Array, Array]]:
        """Σ_j w_ij (φ̂_j − φ̂_i). A node sends, in code, what its public copy φ̂ lacks of φ; all who hold φ̂ add it."""
        mine, theirs = copies
        common, own = (_keys(key, k, number) for key in (self.fault_schedule.key, self.secret))
        sent = jax.vmap(code.encode)(φ - mine, fold_in_each(common, self.nodes), fold_in_each(own, self.nodes))
        decode = jax.vmap(code.decode)
        own = decode(sent, fold_in_each(common, self.nodes))
        keys, shape = fold_in_each(common, links.neighbours.ravel()), links.neighbours.shape
        read = lambda rows: decode(rows.reshape(len(keys), -1), keys).reshape(*shape, -1)  # noqa: E731
        new = links.carrier.decoded(k, sent, own, code, read)
        theirs = theirs + new
        mine = mine + own
        weights = links.weights_at(k, φ.dtype)[..., None] * jnp.asarray(code.code.mixing, φ.dtype)
        flows = weights * jnp.where(weights != 0, theirs - links.sums.at_slots(mine), 0)
        return links.sums.at_nodes(flows), (mine, theirs)

    def _ends(self, links: Links) -> tuple[Array, Array]:
        return links.sums.at_slots(self.nodes), links.neighbours


class ConcatCodec(NamedTuple):
    """A code of every level's message by itself, one after the other in one row."""

    code: Code
    widths: list[int]
    dtype: Any  # of what is written

    def encode(self, new: Array, key: Array, secret: Array) -> Array:
        parts = jnp.split(new, np.cumsum(self.widths)[:-1].tolist())
        keys = [self._keys(i, key, secret) for i in range(len(parts))]
        return jnp.concatenate([self.code.encode(part, *both) for part, both in zip(parts, keys, strict=True)])

    def decode(self, row: Array, key: Array) -> Array:
        bytes_ = [self.code.bytes(width, self.dtype) for width in self.widths]
        rows = zip(jnp.split(row, np.cumsum(bytes_)[:-1].tolist()), self.widths, strict=True)
        keys = [self._keys(i, key)[0] for i in range(len(self.widths))]
        parts = [self.code.decode(part, key, width, self.dtype) for (part, width), key in zip(rows, keys, strict=True)]
        return jnp.concatenate(parts)

    def _keys(self, part: int, *keys: Array) -> Any:
        return [jax.random.fold_in(key, part) for key in keys]


def _flow(
    links: Links, k: Array, heard: Array, delay: Array, φ: Array, late: Array | None
) -> tuple[Array, Array | None]:
    """Σ_j w_ij (φ_j − φ_i) over the links that are up, of this step or of the step that arrives now."""
    weights = links.weights_at(k, φ.dtype)
    arrived = links.carrier.rows(k, φ)
    heard = heard if arrived.heard is None else heard & arrived.heard
    difference = jnp.where((weights != 0)[..., None], arrived.rows - links.sums.at_slots(φ), 0)
    if late is not None:
        known = jnp.concatenate([difference[..., None, :], late], -2)
        difference = jnp.take_along_axis(known, delay[..., None, None], -2)[..., 0, :]
        late = known[..., :-1, :]
    return links.sums.at_nodes(jnp.where(heard, weights, 0)[..., None] * difference), late


def _accumulate(links: Links, k: Array, heard: Array, forgotten: Array, φ: Array, F: Array) -> Array:
    """F_ij ← (F_ij − F_ji)/2 + w_ij (φ_j − φ_i) where j's message arrives; a silent neighbour's F_ij stays. When both
    arrive, F_ij = −F_ji to the last bit whatever was lost before, since both ends round the same numbers."""
    weights, mine = links.weights_at(k, φ.dtype), links.sums.at_slots(φ)
    arrived = links.carrier.links(k, jnp.concatenate([mine, F], -1))
    theirs, back = jnp.split(arrived.rows, 2, -1)
    if arrived.heard is not None:
        heard = heard & arrived.heard
    if arrived.ties is not None:
        is_ = lambda tie: (arrived.ties == tie)[..., None]  # noqa: E731
        forgotten = forgotten | (arrived.ties == LinkState.DROPPED)
        F, back = jnp.where(is_(LinkState.RESTORE), -back, F), jnp.where(is_(LinkState.KEEPS), -F, back)
        F, back = (jnp.where(is_(LinkState.RESET), 0, flow) for flow in (F, back))
    renewed = weights[..., None] * (theirs - mine) + jnp.asarray(0.5, F.dtype) * (F - back)
    F = jnp.where((heard & (weights != 0))[..., None], renewed, F)
    return jnp.where(forgotten[..., None], 0, F)


def _shape(messages: dict[str, Any], *rows: int) -> jax.ShapeDtypeStruct:
    """Of so many packed buffers of such messages."""
    buffer = jax.eval_shape(lambda messages: flatten(messages)[0], messages)
    return jax.ShapeDtypeStruct((*rows, buffer.shape[1]), buffer.dtype)


def _keys(key: Array, k: Array, number: int) -> Array:
    return jax.random.fold_in(jax.random.fold_in(jax.random.fold_in(key, CODES), k), number)
