"""Link by link: the exchange for messages that may be lost, late, or summed over the steps.

Every node has a slot per neighbour. What arrives in a slot counts or not, by the weather; what a link has carried so
far is remembered at both its ends, by slot. How rows reach the slots is the engine's matter: a `Carrier` each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from scipy import sparse

from ..faults import Weather
from ..graph import Graph, GraphSequence, Levels
from ..strategies import Cumulative
from .program import Exchange

LEVELS = ("x", "y", "z")


class Slots(NamedTuple):
    """A graph's links as tables of (nodes, slots): the neighbour (the node itself where there is none) and the slot
    that this node has there; and weights (nodes, phases, slots), zero where a phase lacks the link."""

    neighbours: np.ndarray
    back: np.ndarray
    weights: np.ndarray


def slots(graph: Graph | GraphSequence) -> Slots:
    union = sparse.csr_array(sum(abs(phase.matrix) for phase in graph.phases))
    union.setdiag(0)
    union.eliminate_zeros()
    nodes, degrees = graph.nodes, np.diff(union.indptr)
    rows = np.repeat(np.arange(nodes), degrees)
    place = np.arange(union.nnz) - np.repeat(union.indptr[:-1], degrees)
    neighbours = np.tile(np.arange(nodes)[:, None], (1, max(1, int(degrees.max(initial=0)))))
    neighbours[rows, place] = union.indices
    back = np.zeros_like(neighbours)
    # Sorted by (column, row), the entries of a symmetric pattern are their own mirror images.
    mirror = np.lexsort((union.indices, rows))[np.argsort(np.lexsort((rows, union.indices)))]
    back[rows, place] = place[mirror] if graph.symmetric else 0
    weights = np.zeros((nodes, graph.period, neighbours.shape[1]))
    for phase, one in enumerate(graph.phases):
        weights[rows, phase, place] = np.asarray(one.matrix[rows, union.indices]).ravel()
    return Slots(neighbours, back, weights)


class Carrier(Protocol):
    """Brings what neighbours send into the slots of the nodes that live here."""

    def rows(self, k: Array, buffer: Array) -> Array:
        """(nodes, entries) → (nodes, slots, entries): every neighbour's row."""
        ...

    def links(self, k: Array, buffer: Array) -> Array:
        """(nodes, slots, entries) → the same: what each neighbour keeps for this node."""
        ...

    def sends(self, per_link: bool) -> float:
        """How many rows a node sends, on average."""
        ...


class Links(eqx.Module):
    """The links of one graph, for the nodes that live here."""

    neighbours: Array  # (nodes, slots)
    weights: Array  # (nodes, phases, slots)
    carrier: Any  # Carrier

    def weights_at(self, k: Array, dtype: Any) -> Array:
        phases = self.weights.shape[1]
        return self.weights[:, k % phases if phases > 1 else 0].astype(dtype)


class Remembered(NamedTuple):
    """What one exchange over one graph keeps: the differences of the last steps, and the flows so far, by slot."""

    late: Any  # (nodes, steps, slots, entries)
    flows: Any  # (nodes, slots, entries)


class OverLinks(NamedTuple):
    """A step's trouble on one graph: of nodes (`active`), and of links as seen from their slots."""

    active: Array
    up: Array
    forgotten: Array
    delay: Array


class Conditions(NamedTuple):
    k: Array
    graphs: tuple[OverLinks, ...]


class LinkByLink(Exchange):
    """The exchange of all levels; levels on the same graph travel together."""

    graphs: tuple[Links, ...]
    which: tuple[int, int, int] = eqx.field(static=True)  # the graph of levels x, y, z
    nodes: Array
    weather: Weather

    @classmethod
    def of(
        cls, graphs: Levels, nodes: Array, weather: Weather, carry: Callable[[Any, Slots], tuple[Array, Array, Carrier]]
    ) -> LinkByLink:
        by_level = [getattr(graphs, level) for level in LEVELS]
        distinct = list(dict.fromkeys(by_level))
        x, y, z = (distinct.index(graph) for graph in by_level)
        return cls(tuple(Links(*carry(graph, slots(graph))) for graph in distinct), (x, y, z), nodes, weather)

    def sends(self, level: str, per_link: bool = False) -> float:
        return self.graphs[self.which[LEVELS.index(level)]].carrier.sends(per_link)

    def conditions(self, k: Array) -> Conditions:
        return Conditions(k, tuple(self._over(k, links) for links in self.graphs))

    def _over(self, k: Array, links: Links) -> OverLinks:
        here, there = self._ends(links)
        everyone = jnp.concatenate([self.nodes, there.ravel()])
        one_of_two = lambda struck: struck[: len(here), None] | struck[len(here) :].reshape(there.shape)  # noqa: E731
        idle, gone = self.weather.idle(k, everyone), self.weather.gone(k, everyone)
        return OverLinks(
            active=~idle[: len(here)],
            up=~(self.weather.down(k, here, there) | one_of_two(idle)),
            forgotten=one_of_two(gone),
            delay=self.weather.delay(k, here, there),
        )

    def active(self, now: Conditions) -> Array | None:
        return now.graphs[0].active if self.weather.stops_nodes else None

    def remembers(self, messages: dict[str, Any]) -> tuple[Remembered, ...]:
        def shapes(graph: int, links: Links) -> Remembered:
            plain, kept = self._sort(graph, messages)
            delay, wide = self.weather.longest_delay, links.neighbours.shape[1]
            late = _shape(plain, (delay, wide)) if plain and delay else None
            return Remembered(late, _shape(kept, (wide,)) if kept else None)

        return tuple(shapes(graph, links) for graph, links in enumerate(self.graphs))

    def __call__(
        self, now: Conditions, number: int, messages: dict[str, Any], memory: tuple[Remembered, ...]
    ) -> tuple[dict[str, Any], tuple[Remembered, ...]]:
        answers: dict[str, Any] = {}
        after = []
        for graph, (links, over) in enumerate(zip(self.graphs, now.graphs, strict=True)):
            late, flows = memory[graph] if memory else Remembered(None, None)
            plain, kept = self._sort(graph, messages)
            heard = over.up & ~self.weather.lost(now.k, number, *self._ends(links))
            if plain:
                buffer, unpack = pack(plain)
                answer, late = _flow(links, now.k, heard, over.delay, buffer, late)
                answers |= unpack(answer)
            if kept:
                buffer, unpack = pack(kept)
                # What is late has been overtaken by newer messages: it counts as lost.
                flows = _accumulate(links, now.k, heard & (over.delay == 0), over.forgotten, buffer, flows)
                answers |= unpack(flows.sum(1))
            after.append(Remembered(late, flows))
        return answers, tuple(after)

    def _sort(self, graph: int, messages: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """The messages on one graph: those that flow, and those whose flows are summed."""
        here = {level: m for level, m in messages.items() if self.which[LEVELS.index(level)] == graph}
        plain = {level: m for level, m in here.items() if not isinstance(m, Cumulative)}
        return plain, {level: m.message for level, m in here.items() if isinstance(m, Cumulative)}

    def _ends(self, links: Links) -> tuple[Array, Array]:
        return jnp.broadcast_to(self.nodes[:, None], links.neighbours.shape), links.neighbours


def _flow(
    links: Links, k: Array, heard: Array, delay: Array, φ: Array, late: Array | None
) -> tuple[Array, Array | None]:
    """Σ_j w_ij (φ_j − φ_i) over the links that are up, of this step or of the step that arrives now."""
    weights = links.weights_at(k, φ.dtype)
    difference = jnp.where((weights != 0)[..., None], links.carrier.rows(k, φ) - φ[:, None], 0)
    if late is not None:
        known = jnp.concatenate([difference[:, None], late], 1)
        difference = jnp.take_along_axis(known, delay[:, None, :, None], 1)[:, 0]
        late = known[:, :-1]
    return (jnp.where(heard, weights, 0)[..., None] * difference).sum(1), late


def _accumulate(links: Links, k: Array, heard: Array, forgotten: Array, φ: Array, F: Array) -> Array:
    """F_ij ← −F_ji + w_ij (φ_j − φ_i) where j's message arrives; a silent neighbour's F_ij stays. When both arrive,
    F_ij = −F_ji to the last bit, since both ends round the same numbers."""
    weights = links.weights_at(k, φ.dtype)
    both = jnp.concatenate([jnp.broadcast_to(φ[:, None], F.shape), F], -1)
    theirs, back = jnp.split(links.carrier.links(k, both), 2, -1)
    renewed = weights[..., None] * (theirs - φ[:, None]) - back
    F = jnp.where((heard & (weights != 0))[..., None], renewed, F)
    return jnp.where(forgotten[..., None], 0, F)


def pack(messages: dict[str, Any]) -> tuple[Array, Callable[[Array], dict[str, Any]]]:
    """All leaves of all levels as one (local nodes, entries) buffer, and the way back."""
    leaves, structure = jax.tree.flatten(messages)
    flat = [leaf.reshape(leaf.shape[0], -1) for leaf in leaves]
    ends = np.cumsum([part.shape[1] for part in flat])[:-1].tolist()

    def unpack(buffer: Array) -> dict[str, Any]:
        parts = jnp.split(buffer, ends, axis=1)
        return jax.tree.unflatten(
            structure, [part.reshape(leaf.shape) for part, leaf in zip(parts, leaves, strict=True)]
        )

    return jnp.concatenate(flat, axis=1), unpack


def _shape(messages: dict[str, Any], between: tuple[int, ...]) -> jax.ShapeDtypeStruct:
    """Of a packed buffer of such messages, with axes between its nodes and its entries."""
    buffer = jax.eval_shape(lambda messages: pack(messages)[0], messages)
    return jax.ShapeDtypeStruct((buffer.shape[0], *between, buffer.shape[1]), buffer.dtype)
