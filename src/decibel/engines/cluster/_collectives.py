"""The network of the cluster: neighbours exchange rows by `ppermute` along matchings of the graph.

All leaves of all levels on one graph travel in one buffer.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from ...core._types import PyTree
from ...core._vector import flatten
from ...graphs._graph import Graph, GraphSequence, Levels
from ...network._codecs import ConcatCodec
from ...network._incidence import Slots, Sums, shares_sent, slots
from ...network._links import ExchangeMemory, LinkFaults, Links, NoiseKeys, Received
from ...network._messages import Fanout, Message, Plain, by_kind
from ...network._mixing import surplus
from ...network._network import Changes, Network
from ...network._push import Push
from ._halo import plan
from ._placement import spread
from ._shards import AXIS, SHARD, ShardLayout


class Route(eqx.Module):
    """How rows travel in one exchange: the permutations (static), the rows each device sends, where each slot looks."""

    pairs: tuple[tuple[tuple[int, int], ...], ...] = eqx.field(static=True)  # waves, pairs
    rows: tuple[Array, ...]  # waves, (devices, rows)
    table: Array  # (*slots,)
    sent: int = eqx.field(static=True)  # rows that cross a link

    @classmethod
    def of(cls, links: Slots, sources: np.ndarray, spare: np.ndarray, rows: int, mesh: Mesh) -> Route:
        planned, by_node = plan(sources, spare, rows, mesh.shape[AXIS]), NamedSharding(mesh, P(AXIS))
        return cls(
            tuple(wave.pairs for wave in planned.waves),
            tuple(spread(wave.rows.astype(np.int32), by_node) for wave in planned.waves),
            spread(links.shaped(planned.table.astype(np.int32)), by_node),
            planned.sent,
        )

    def around(self, buffer: Array) -> Array:
        """The local rows and those received."""
        sent = zip(self.pairs, self.rows, strict=True)
        arrived = [jax.lax.ppermute(buffer[rows[0]], AXIS, pairs) for pairs, rows in sent]
        return jnp.concatenate([buffer, *arrived])


class Halo(eqx.Module):
    """One graph's exchange: a route, sums and weights (*slots,) for each phase; and, with one-way links, the shares
    that are pushed, with the surplus of each node (`_mixing`)."""

    routes: tuple[Route, ...]
    sums: tuple[Sums, ...]
    weights: tuple[Array, ...]
    pushes: tuple[Array, ...]
    surplus: tuple[Array, ...]  # (nodes,)

    @classmethod
    def of(cls, graph: Graph | GraphSequence, mesh: Mesh) -> Halo:
        phases = [slots(phase, mesh.shape[AXIS]) for phase in graph.phases]
        one_way = () if graph.doubly_stochastic else phases
        return cls(
            tuple(_between_nodes(links, 0, graph.nodes, mesh) for links in phases),
            tuple(_spread_sums(links, mesh) for links in phases),
            tuple(_spread_weights(links.shaped(links.weights[:, 0]), mesh) for links in phases),
            tuple(_spread_weights(links.shaped(links.pushes[:, 0]), mesh) for links in one_way),
            tuple(_spread_weights(shares, mesh) for shares in surplus(graph)) if one_way else (),
        )

    def flow(self, phase: Array, buffer: Array) -> Array:
        """δ of a packed (local nodes, entries) buffer."""
        return _in_phase(partial(self._phase, self.weights), len(self.routes), phase, buffer)

    def pushed(self, phase: Array, buffer: Array) -> Array:
        """(C − I) of a packed buffer."""
        if not self.pushes:
            return self.flow(phase, buffer)

        def in_phase(phase: int, buffer: Array) -> Array:
            return self._phase(self.pushes, phase, buffer) + self.surplus[phase][:, None].astype(buffer.dtype) * buffer

        return _in_phase(in_phase, len(self.routes), phase, buffer)

    def _phase(self, by_phase: tuple[Array, ...], phase: int, buffer: Array) -> Array:
        around, sums = self.routes[phase].around(buffer), self.sums[phase]
        table, behind = sums.parts(self.routes[phase].table)
        weights, last = sums.parts(by_phase[phase].astype(buffer.dtype))
        total = jnp.zeros_like(buffer)
        for slot in range(sums.width):
            total = total + weights[:, slot, None] * (around[table[:, slot]] - buffer)
        if sums.overflow is None:
            return total
        return sums.add_overflow(total, last[:, None] * (around[behind] - buffer[sums.overflow.receivers]))


class Routes(eqx.Module):
    """How rows travel over one graph where links matter: those of nodes and those of links, by phase, and those that go
    to the neighbours of all phases."""

    by_node: tuple[Route, ...]
    by_link: tuple[Route, ...]
    to_all: Route

    @classmethod
    def of(cls, links: Slots, nodes: int, mesh: Mesh) -> Routes:
        count, phases = links.weights.shape
        spare = np.arange(count) % (count // mesh.shape[AXIS])
        per_link = [np.where(links.weights[:, phase] != 0, links.reverse, -1) for phase in range(phases)]
        by_node = tuple(_between_nodes(links, phase, nodes, mesh) for phase in range(phases))
        return cls(
            by_node,
            tuple(Route.of(links, sources, spare, count, mesh) for sources in per_link),
            by_node[0] if phases == 1 else _between_nodes(links, slice(None), nodes, mesh),
        )


class Collectives(Network):
    """Nodes on several devices: rows of neighbours on other devices are exchanged by `ppermute`. Where a node is split
    over devices, each of them exchanges its own part with the devices that hold the same part of the neighbours."""

    halos: tuple[Halo, ...]
    routes: tuple[Routes, ...]
    nodes: int = eqx.field(static=True)
    layout: ShardLayout | None = eqx.field(static=True)

    @classmethod
    def of(cls, graphs: Levels, mesh: Mesh, layout: ShardLayout | None = None) -> Collectives:
        """For messages that are plain and all arrive."""
        distinct, graph_of = graphs.distinct()
        halos, changes = tuple(Halo.of(graph, mesh) for graph in distinct), tuple(map(Changes.of, distinct))
        return cls(graph_of, (), None, halos, (), graphs.nodes, layout, changes=changes)

    @classmethod
    def with_links(
        cls, graphs: Levels, faults: LinkFaults, numbers: np.ndarray, mesh: Mesh, layout: ShardLayout | None = None
    ) -> Collectives:
        """For messages that may be lost or late, or that links remember. `faults` lies on the mesh; `numbers` are
        those of all nodes."""
        distinct, graph_of = graphs.distinct()
        links, routes = zip(*(_links(graph, numbers, mesh) for graph in distinct), strict=True)
        changes = tuple(map(Changes.of, distinct))
        return cls(graph_of, links, faults, (), routes, graphs.nodes, layout, changes=changes)

    def exchange(
        self,
        step: Array,
        exchange_index: int,
        messages: dict[str, Message],
        link_memories: ExchangeMemory | None,
        noise_keys: NoiseKeys | None = None,
        exchange_count: Array | None = None,
        phases: tuple[Array, ...] = (),
    ) -> tuple[dict[str, PyTree], ExchangeMemory]:
        if self.layout is None:
            return super().exchange(step, exchange_index, messages, link_memories, noise_keys, exchange_count, phases)
        arrays, static = eqx.partition(self, eqx.is_array)
        specs, kept = self.layout.specs(messages), self.layout.link_specs(link_memories)
        received = {level: self.layout.specs(message.placeholder()) for level, message in messages.items()}

        def part(
            arrays: Collectives,
            step: Array,
            messages: dict[str, Message],
            link_memories: ExchangeMemory | None,
            exchange_count: Array | None,
            phases: tuple[Array, ...],
        ) -> tuple[dict[str, PyTree], ExchangeMemory]:
            sent = (step, exchange_index, messages, link_memories, noise_keys, exchange_count, phases)
            return super(Collectives, eqx.combine(arrays, static)).exchange(*sent)

        return jax.shard_map(
            part,
            in_specs=(P(), P(), specs, kept, P(), P()),
            out_specs=(received, P() if link_memories is None else kept),
            axis_names={SHARD},
            check_vma=False,
        )(arrays, step, messages, link_memories, exchange_count, phases)

    def first_link_memory(self, step: Array, exchange_index: int, messages: dict[str, Message]) -> ExchangeMemory:
        if (layout := self.layout) is None:
            return super().first_link_memory(step, exchange_index, messages)
        _validate_split(messages)
        first = super().first_link_memory
        shapes = jax.eval_shape(lambda local: first(step, exchange_index, local), layout.local(messages))

        def buffer(leaf: Array) -> Array:
            return jnp.zeros((*leaf.shape[:-1], layout.shards * leaf.shape[-1]), leaf.dtype)

        return jax.tree.map(buffer, shapes)

    def fanout_on(self, graph: int) -> Fanout:
        if self.halos:
            sent = self._mean(self.halos[graph].routes)
            return Fanout(sent, sent, sent)
        routes = self.routes[graph]
        return Fanout(self._mean(routes.by_node), self._mean(routes.by_link), self._mean((routes.to_all,)))

    def _mean(self, routes: tuple[Route, ...]) -> float:
        return sum(route.sent for route in routes) / (self.nodes * len(routes))

    def mix(self, phase: Array, graph: int, messages: dict[str, Message]) -> dict[str, PyTree]:
        received: dict[str, PyTree] = {}
        for message in by_kind(messages):
            buffer, unflatten = flatten(message.content)
            exchange = self.halos[graph].pushed if isinstance(message, Push) else self.halos[graph].flow
            received |= unflatten(exchange(phase, buffer))
        return received

    def needs_no_links(self, message: Message) -> bool:
        return isinstance(message, Plain | Push)

    def rows(self, phase: Array, graph: int, buffer: Array) -> Received:
        return _gather(self.routes[graph].by_node, phase, buffer)

    def link_rows(self, phase: Array, graph: int, buffer: Array) -> Received:
        return _gather(self.routes[graph].by_link, phase, buffer.reshape(-1, buffer.shape[-1]))

    def coded_rows(
        self, phase: Array, graph: int, sent: Array, own: Array, codec: ConcatCodec, decode: Callable[[Array], Array]
    ) -> Array:
        """All nodes that hold a public copy receive every message, whether or not the phase has their link."""
        route = self.routes[graph].to_all
        return decode(route.around(sent)[route.table])


def _validate_split(messages: dict[str, Message]) -> None:
    for message in messages.values():
        if not message.is_separable or message.flow_bound is not None:
            raise ValueError(
                f"{type(message).__name__} messages need whole vectors, and shard splits every node over devices: "
                "leave out shard, or codes, limits and scale_every."
            )


def _gather(routes: tuple[Route, ...], phase: Array, buffer: Array) -> Received:
    def of_neighbours(phase: int, buffer: Array) -> Array:
        return routes[phase].around(buffer)[routes[phase].table]

    return Received(_in_phase(of_neighbours, len(routes), phase, buffer))


def _links(graph: Graph | GraphSequence, numbers: np.ndarray, mesh: Mesh) -> tuple[Links, Routes]:
    places = slots(graph, mesh.shape[AXIS])
    neighbours = spread(places.shaped(numbers[places.neighbours]), NamedSharding(mesh, P(AXIS)))
    links = Links(
        neighbours,
        _spread_weights(places.shaped(places.weights), mesh),
        _spread_sums(places, mesh),
        _spread_weights(places.shaped(places.pushes), mesh),
        _spread_weights(shares_sent(graph), mesh),
    )
    return links, Routes.of(places, graph.nodes, mesh)


def _between_nodes(links: Slots, phase: int | slice, nodes: int, mesh: Mesh) -> Route:
    """The rows of neighbours; a slot for which the phase (or any of them) has no link looks at its own node."""
    there = links.weights[:, phase].reshape(len(links.weights), -1).any(1)
    sources = np.where(there, links.neighbours, -1)
    return Route.of(links, sources, links.receivers % (nodes // mesh.shape[AXIS]), nodes, mesh)


def _spread_sums(links: Slots, mesh: Mesh) -> Sums:
    tables = jax.tree.map(lambda table: table.astype(np.int32), links.overflow)
    return Sums(links.width, spread(tables, NamedSharding(mesh, P(AXIS))))


def _spread_weights(weights: np.ndarray, mesh: Mesh) -> Array:
    return spread(weights.astype(jax.dtypes.canonicalize_dtype(float)), NamedSharding(mesh, P(AXIS)))


def _in_phase(function: Callable[..., Array], phases: int, phase: Array, buffer: Array) -> Array:
    """`function(phase, buffer)`, of which one branch runs."""
    if phases == 1:
        return function(0, buffer)
    return jax.lax.switch(phase % phases, [partial(function, place) for place in range(phases)], buffer)
