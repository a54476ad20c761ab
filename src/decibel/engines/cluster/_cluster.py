"""Nodes distributed over the devices of one process or many: the same step inside `shard_map`.

Neighbours exchange rows by `ppermute` along matchings of the graph; all leaves of all levels on one graph travel in one
buffer. Inside a step there is no other collective.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from ...core._vector import flatten
from ...graphs._graph import Graph, GraphSequence, Levels
from ...methods._method import Method, State
from ...network._exchange import Exchange
from ...network._incidence import Slots, Sums, slots
from ...network._links import LEVELS, Carrier, ConcatCodec, LinkByLink, Links, Received, moved
from ...network.faults import fault_schedule
from ...problem._problem import Problem
from .. import _memory as memory
from .._engine import Engine
from .._membership import survivors
from .._program import Program, Run, RunConfig
from ._halo import plan
from ._placement import place_problem, spread

AXIS = "nodes"


class Cluster(Engine):
    """Nodes distributed evenly over JAX devices, in order.

    Several processes are started by `decibel launch`; otherwise each of them calls `jax.distributed.initialize()`
    first.

    Args:
        devices: the number of devices to use; None is all devices of all processes.
        members: indices of the nodes that take part; None is all of them or, in an elastic launch, those of the
            processes that remain.
    """

    devices: int | None = eqx.field(static=True, default=None)
    members: tuple[int, ...] | None = eqx.field(static=True, default=None)

    def active_nodes(self, nodes: int) -> tuple[int, ...] | None:
        return survivors(nodes) if self.members is None else self.members

    def start(self, problem: Problem, method: Method, graphs: Levels, config: RunConfig) -> Run:
        nodes = graphs.x.nodes
        mesh = self.mesh(nodes)
        everywhere, by_node = NamedSharding(mesh, P()), NamedSharding(mesh, P(AXIS))
        full = (
            f"{nodes:,} nodes and the temporary arrays of a step do not fit into the memory of {mesh.size} devices: "
            "use fewer nodes, smaller batches or more devices."
        )
        with memory.oom_hint(full):
            problem = place_problem(problem, nodes, by_node, everywhere)
            numbers = spread(config.numbers(nodes), by_node)
            exchange = _exchange(method, graphs, config, mesh)
            program = Program.of(problem, method, exchange, numbers, config, sharding=by_node)
            # What a user's loss or method brings along (a module's arrays) is needed everywhere.
            placed = lambda leaf: isinstance(leaf, jax.Array) and leaf.sharding in (by_node, everywhere)  # noqa: E731
            program = jax.tree.map(lambda leaf: leaf if placed(leaf) else spread(leaf, everywhere), program)
            arrays, static = eqx.partition(program, eqx.is_array)
            start = jax.jit(lambda arrays: eqx.combine(arrays, static).start(), out_shardings=by_node)
            return Run(
                program,
                begin=partial(start, arrays),
                full=full,
                wrap=_Spread(mesh),
                devices=mesh.size,
                move=partial(moved, graphs=graphs, now=mesh.size),
            )

    def mesh(self, nodes: int) -> Mesh:
        found = jax.devices()
        count = len(found) if self.devices is None else self.devices
        if not 1 <= count <= len(found):
            raise ValueError(f"devices={count}, but JAX sees {len(found)}: choose from 1 to {len(found)}.")
        if nodes % count:
            fits = [d for d in range(1, count) if nodes % d == 0]
            raise ValueError(
                f"{nodes} nodes cannot be distributed evenly over {count} devices: use Cluster(devices={fits[-1]}), or "
                f"a multiple of {count} nodes."
            )
        return Mesh(np.asarray(found[:count]), (AXIS,))


class Route(eqx.Module):
    """How rows travel in one exchange: the permutations (static), the rows each device sends, where each slot looks."""

    pairs: tuple[tuple[tuple[int, int], ...], ...] = eqx.field(static=True)  # waves, pairs
    rows: tuple[Array, ...]  # waves, (devices, rows)
    table: Array  # (*slots,)
    sent: int = eqx.field(static=True)  # rows that cross a link

    @classmethod
    def of(cls, links: Slots, sources: np.ndarray, spare: np.ndarray, rows: int, mesh: Mesh) -> Route:
        planned, by_node = plan(sources, spare, rows, mesh.size), NamedSharding(mesh, P(AXIS))
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
    """One graph's exchange: a route, sums and weights (*slots,) for each phase."""

    routes: tuple[Route, ...]
    sums: tuple[Sums, ...]
    weights: tuple[Array, ...]
    nodes: int = eqx.field(static=True)

    @classmethod
    def of(cls, graph: Graph | GraphSequence, mesh: Mesh) -> Halo:
        phases = [slots(phase, mesh.size) for phase in graph.phases]
        return cls(
            tuple(_between_nodes(one, 0, graph.nodes, mesh) for one in phases),
            tuple(_spread_sums(one, mesh) for one in phases),
            tuple(_spread_weights(one.shaped(one.weights[:, 0]), mesh) for one in phases),
            graph.nodes,
        )

    def flow(self, k: Array, buffer: Array) -> Array:
        """δ of a packed (local nodes, entries) buffer."""
        return _in_phase(self._phase, len(self.routes), k, buffer)

    def _phase(self, phase: int, buffer: Array) -> Array:
        around, sums = self.routes[phase].around(buffer), self.sums[phase]
        table, behind = sums.parts(self.routes[phase].table)
        weights, last = sums.parts(self.weights[phase].astype(buffer.dtype))
        total = jnp.zeros_like(buffer)
        for slot in range(sums.width):
            total = total + weights[:, slot, None] * (around[table[:, slot]] - buffer)
        if sums.rest is None:
            return total
        return sums.add_rest(total, last[:, None] * (around[behind] - buffer[sums.rest.receivers]))

    def sends(self) -> float:
        return sum(route.sent for route in self.routes) / (self.nodes * len(self.routes))


class RowsBetweenDevices(Carrier):
    """Fills slots from here and from other devices: the rows of nodes, and the rows of links."""

    by_node: tuple[Route, ...]  # a phase each
    by_link: tuple[Route, ...]
    to_all: Route  # the neighbours of all phases
    nodes: int = eqx.field(static=True)

    @classmethod
    def of(cls, links: Slots, nodes: int, mesh: Mesh) -> RowsBetweenDevices:
        count, phases = links.weights.shape
        own = np.arange(count) % (count // mesh.size)
        per_link = [np.where(links.weights[:, phase] != 0, links.back, -1) for phase in range(phases)]
        by_node = tuple(_between_nodes(links, phase, nodes, mesh) for phase in range(phases))
        return cls(
            by_node,
            tuple(Route.of(links, one, own, count, mesh) for one in per_link),
            by_node[0] if phases == 1 else _between_nodes(links, slice(None), nodes, mesh),
            nodes,
        )

    def rows(self, k: Array, buffer: Array) -> Received:
        return self._gather(self.by_node, k, buffer)

    def links(self, k: Array, buffer: Array) -> Received:
        return self._gather(self.by_link, k, buffer.reshape(-1, buffer.shape[-1]))

    def decoded(self, k: Array, sent: Array, own: Array, code: ConcatCodec, decode: Callable[[Array], Array]) -> Array:
        """All nodes that hold a public copy receive every message, whether or not the phase has their link."""
        return decode(self.to_all.around(sent)[self.to_all.table])

    def _gather(self, routes: tuple[Route, ...], k: Array, buffer: Array) -> Received:
        look = lambda phase, buffer: routes[phase].around(buffer)[routes[phase].table]  # noqa: E731
        return Received(_in_phase(look, len(routes), k, buffer))

    def sends(self, *, per_link: bool, coded: bool) -> float:
        routes = (self.to_all,) if coded else self.by_link if per_link else self.by_node
        return sum(route.sent for route in routes) / (self.nodes * len(routes))


def _between_nodes(links: Slots, phase: int | slice, nodes: int, mesh: Mesh) -> Route:
    """The rows of neighbours; a slot for which the phase (or any of them) has no link looks at its own node."""
    there = links.weights[:, phase].reshape(len(links.weights), -1).any(1)
    sources = np.where(there, links.neighbours, -1)
    return Route.of(links, sources, links.receivers % (nodes // mesh.size), nodes, mesh)


def _spread_sums(links: Slots, mesh: Mesh) -> Sums:
    tables = jax.tree.map(lambda table: table.astype(np.int32), links.rest)
    return Sums(links.width, spread(tables, NamedSharding(mesh, P(AXIS))))


def _spread_weights(weights: np.ndarray, mesh: Mesh) -> Array:
    return spread(weights.astype(jax.dtypes.canonicalize_dtype(float)), NamedSharding(mesh, P(AXIS)))


def _in_phase(function: Any, phases: int, k: Array, buffer: Array) -> Array:
    """`function(phase, buffer)` for the phase of step k."""
    if phases == 1:
        return function(0, buffer)
    return jax.lax.switch(k % phases, [partial(function, phase) for phase in range(phases)], buffer)


def _exchange(method: Method, graphs: Levels, config: RunConfig, mesh: Mesh) -> Exchange:
    if not (config.faults or method.per_link):
        return Neighbourhood.of(graphs, mesh)
    numbers = config.numbers(graphs.x.nodes)
    everywhere, by_node = NamedSharding(mesh, P()), NamedSharding(mesh, P(AXIS))

    def carry(graph: Graph | GraphSequence) -> Links:
        made = slots(graph, mesh.size)
        neighbours = spread(made.shaped(numbers[made.neighbours]), by_node)
        weights = _spread_weights(made.shaped(made.weights), mesh)
        return Links(neighbours, weights, _spread_sums(made, mesh), RowsBetweenDevices.of(made, graph.nodes, mesh))

    here = spread(numbers, by_node)
    schedule = spread(fault_schedule(config.faults, config.seed), everywhere)
    return LinkByLink.of(graphs, here, schedule, carry)


class Neighbourhood(Exchange):
    """The exchange of all levels; levels on the same graph travel together."""

    halos: tuple[Halo, ...]
    which: tuple[int, int, int] = eqx.field(static=True)  # the halo of levels x, y, z

    @classmethod
    def of(cls, graphs: Levels, mesh: Mesh) -> Neighbourhood:
        distinct, which = graphs.distinct()
        return cls(tuple(Halo.of(graph, mesh) for graph in distinct), which)

    def __call__(self, now: Array, number: int, messages: dict[str, Any], memory: Any) -> tuple[dict[str, Any], Any]:
        flows: dict[str, Any] = {}
        for graph, halo in enumerate(self.halos):
            together = {level: m for level, m in messages.items() if self.which[LEVELS.index(level)] == graph}
            if together:
                buffer, back = flatten(together)
                flows |= back(halo.flow(now, buffer))
        return flows, ()

    def sends(self, level: str, *, per_link: bool = False, coded: bool = False) -> float:
        return self.halos[self.which[LEVELS.index(level)]].sends()


class _Spread:
    """Wraps a chunk in `shard_map`; every device reports for its own nodes, and the reports are combined after."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Spread) and self.mesh == other.mesh

    def __hash__(self) -> int:
        return hash(self.mesh)

    def __call__(self, chunk: Any, arrays: Program, state: State) -> Any:
        specs = jax.tree.map(lambda leaf: leaf.sharding.spec, arrays)

        def local(arrays: Program, state: State, first: Array) -> Any:
            state, finite, repetitions = chunk(arrays, state, first)
            return state, finite[None], [times[None] for times in repetitions]

        def spread(arrays: Program, state: State, first: Array) -> Any:
            state, finite, repetitions = jax.shard_map(
                local,
                mesh=self.mesh,
                in_specs=(specs, P(AXIS), P()),
                out_specs=(P(AXIS), P(AXIS), P(AXIS)),
                check_vma=False,
            )(arrays, state, first)
            return state, finite.all(), [times.mean(0) for times in repetitions]

        return spread
