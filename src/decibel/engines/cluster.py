"""Nodes spread over the devices of one process or many: the same step inside `shard_map`.

Neighbours exchange rows by `ppermute` along matchings of the graph; all leaves of all levels on one graph travel in one
buffer. Inside a step there is no other collective.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from .. import keys
from ..algorithms.method import Method, State
from ..graph import Graph, GraphSequence, Levels
from ..problem import Problem
from ..vector import replicate
from .halo import plan
from .placement import place_problem, spread
from .program import Program, Run, step_sizes_as_arrays

AXIS = "nodes"
LEVELS = ("x", "y", "z")


class Cluster(eqx.Module):
    """Nodes spread evenly over JAX devices, in order: all of them, on all processes, or the first `devices`.

    With several processes, call `jax.distributed.initialize()` in each of them first.
    """

    devices: int | None = eqx.field(static=True, default=None)

    def start(self, problem: Problem, method: Method, graphs: Levels, *, batch_size: int | None, seed: int) -> Run:
        mesh = self.mesh(graphs.x.nodes)
        nodes = graphs.x.nodes
        everywhere, by_node = NamedSharding(mesh, P()), NamedSharding(mesh, P(AXIS))
        problem = place_problem(problem, nodes, by_node, everywhere)
        program = Program(
            problem,
            spread(step_sizes_as_arrays(method), everywhere),
            Neighbourhood.of(graphs, mesh),
            spread(np.arange(nodes, dtype=np.int32), by_node),
            jax.jit(lambda: keys.key(seed), out_shardings=everywhere)(),
            batch_size,
        )

        # What a user's loss or method brings along (a module's arrays) is needed everywhere.
        placed = lambda leaf: isinstance(leaf, jax.Array) and leaf.sharding in (by_node, everywhere)  # noqa: E731
        program = jax.tree.map(lambda leaf: leaf if placed(leaf) else spread(leaf, everywhere), program)

        def begin(x0: Any, y0: Any) -> State:
            return method.start(replicate(x0, nodes), None if y0 is None else replicate(y0, nodes))

        state = jax.jit(begin, out_shardings=by_node)(problem.x0, problem.y0)
        return Run(program, state, _Spread(mesh))

    def mesh(self, nodes: int) -> Mesh:
        found = jax.devices()
        count = len(found) if self.devices is None else self.devices
        if not 1 <= count <= len(found):
            raise ValueError(f"devices={count}, but JAX sees {len(found)}: choose from 1 to {len(found)}.")
        if nodes % count:
            fits = [d for d in range(1, count) if nodes % d == 0]
            raise ValueError(
                f"{nodes} nodes cannot be spread evenly over {count} devices: use Cluster(devices={fits[-1]}), or a "
                f"multiple of {count} nodes."
            )
        return Mesh(np.asarray(found[:count]), (AXIS,))


class Halo(eqx.Module):
    """One graph's exchange: for each phase the permutations (static) and the rows and neighbours (by device)."""

    pairs: tuple[tuple[tuple[tuple[int, int], ...], ...], ...] = eqx.field(static=True)  # phases, waves, pairs
    rows: tuple[tuple[Array, ...], ...]  # phases, waves, (devices, rows)
    table: tuple[Array, ...]  # phases, (nodes, degree)
    weights: tuple[Array, ...]
    sent: float = eqx.field(static=True)  # rows that cross a link in one exchange, over the nodes and phases

    @classmethod
    def of(cls, graph: Graph | GraphSequence, mesh: Mesh) -> Halo:
        plans = [plan(phase, mesh.size) for phase in graph.phases]
        by_node = NamedSharding(mesh, P(AXIS))
        return cls(
            tuple(tuple(wave.pairs for wave in one.waves) for one in plans),
            tuple(tuple(spread(wave.rows.astype(np.int32), by_node) for wave in one.waves) for one in plans),
            tuple(spread(one.table.astype(np.int32), by_node) for one in plans),
            tuple(spread(one.weights.astype(jax.dtypes.canonicalize_dtype(float)), by_node) for one in plans),
            sum(one.sent for one in plans) / (graph.nodes * len(plans)),
        )

    def flow(self, k: Array, buffer: Array) -> Array:
        """δ of a packed (local nodes, entries) buffer."""
        if len(self.pairs) == 1:
            return self._phase(0, buffer)
        branches = [lambda buffer, i=i: self._phase(i, buffer) for i in range(len(self.pairs))]
        return jax.lax.switch(k % len(self.pairs), branches, buffer)

    def _phase(self, phase: int, buffer: Array) -> Array:
        arrived = [
            jax.lax.ppermute(buffer[rows[0]], AXIS, pairs)
            for pairs, rows in zip(self.pairs[phase], self.rows[phase], strict=True)
        ]
        around = jnp.concatenate([buffer, *arrived])
        table, weights = self.table[phase], self.weights[phase].astype(buffer.dtype)
        total = jnp.zeros_like(buffer)
        for slot in range(table.shape[1]):
            total = total + weights[:, slot, None] * (around[table[:, slot]] - buffer)
        return total


class Neighbourhood(eqx.Module):
    """The exchange of all levels; levels on the same graph travel together."""

    halos: tuple[Halo, ...]
    which: tuple[int, int, int] = eqx.field(static=True)  # the halo of levels x, y, z

    @classmethod
    def of(cls, graphs: Levels, mesh: Mesh) -> Neighbourhood:
        by_level = [graphs.x, graphs.y, graphs.z]
        distinct = list(dict.fromkeys(by_level))
        x, y, z = (distinct.index(graph) for graph in by_level)
        return cls(tuple(Halo.of(graph, mesh) for graph in distinct), (x, y, z))

    def __call__(self, k: Array, messages: dict[str, Any]) -> dict[str, Any]:
        flows: dict[str, Any] = {}
        for number, halo in enumerate(self.halos):
            together = {level: m for level, m in messages.items() if self.which[LEVELS.index(level)] == number}
            if together:
                buffer, unpack = _pack(together)
                flows |= unpack(halo.flow(k, buffer))
        return flows

    def sends(self, level: str) -> float:
        return self.halos[self.which[LEVELS.index(level)]].sent


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


def _pack(messages: dict[str, Any]) -> tuple[Array, Any]:
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
