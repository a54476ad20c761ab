"""Nodes distributed over the devices of one process or many: the same step inside `shard_map`.

Inside a step there is no collective but the network's (`_collectives`).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import equinox as eqx
import jax
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from ...core._types import PyTree
from ...graphs._graph import Levels
from ...methods._method import Method, State
from ...network._links import migrate_links
from ...network._messages import Plain
from ...network._push import Push
from ...problem._problem import Problem
from ...problem._stream_trace import streams_of, validate_indexed
from .. import _memory as device_memory
from .._engine import Engine
from .._membership import survivors
from .._program import Program, RunConfig
from .._run import ChunkFunction, Run
from ._collectives import Collectives
from ._placement import place_problem, spread
from ._shards import AXIS, SHARD, ShardLayout, Shards, manual


class Cluster(Engine):
    """Nodes distributed evenly over JAX devices, in order.

    With several processes, start them by `decibel launch`, or let each call `jax.distributed.initialize()` first.

    Args:
        devices: the number of devices to use; None is all devices of all processes.
        members: indices of the nodes that take part; None is all of them or, in an elastic launch, those of the
            processes that remain.
        shard: the number of devices per node. Every large array of x and y is split over them; `Shards` says how. 1
            keeps every node on one device.
    """

    devices: int | None = eqx.field(static=True, default=None)
    members: tuple[int, ...] | None = eqx.field(static=True, default=None)
    shard: int | Shards = eqx.field(static=True, default=1)

    def __check_init__(self) -> None:
        _ = self.shards

    @property
    def shards(self) -> Shards:
        """How a node is split."""
        return self.shard if isinstance(self.shard, Shards) else Shards(self.shard)

    @property
    def spans_processes(self) -> bool:
        return jax.process_count() > 1

    def active_nodes(self, nodes: int) -> tuple[int, ...] | None:
        return survivors(nodes) if self.members is None else self.members

    def start(self, problem: Problem, method: Method, graphs: Levels, config: RunConfig) -> Run:
        nodes = graphs.x.nodes
        mesh = self.mesh(nodes)
        layout = self.shards.layout(problem.x0, problem.y0)
        everywhere, by_node = NamedSharding(mesh, P()), NamedSharding(mesh, P(AXIS))
        oom_message = (
            f"{nodes:,} nodes and the temporary arrays of a step do not fit into the memory of {mesh.size} devices: "
            "use fewer nodes, smaller batches or more devices."
        )
        with device_memory.oom_hint(oom_message):
            problem = place_problem(problem, nodes, by_node, layout.starts(mesh))
            validate_indexed(problem, "Cluster()")
            if layout.shards > 1 and (streams := streams_of(problem)):  # JAX calls the host from manual meshes only
                raise ValueError(
                    f"shard={layout.shards} cannot be combined with streams, and {streams[0].host.argument} is one: "
                    "leave out shard, or give arrays."
                )
            node_ids = spread(config.node_ids(nodes), by_node)
            network = self._network(method, graphs, config, mesh, node_ids, None if layout.shards == 1 else layout)
            program = Program.of(problem, method, network, node_ids, config, sharding=by_node)

            # What a user's loss or method brings along (a module's arrays) is needed everywhere.
            def placed(leaf: PyTree) -> bool:
                return isinstance(leaf, jax.Array) and getattr(leaf.sharding, "mesh", 0) == mesh

            program = jax.tree.map(lambda leaf: leaf if placed(leaf) else spread(leaf, everywhere), program)
            arrays, static = eqx.partition(program, eqx.is_array)

            def initial_state(arrays: Program) -> State:
                return eqx.combine(arrays, static).initial_state()

            shardings = layout.shardings(jax.eval_shape(initial_state, arrays), mesh)
            return Run(
                program,
                initial_state=partial(jax.jit(initial_state, out_shardings=shardings), arrays),
                oom_message=oom_message,
                wrap=_Spread(mesh),
                devices=mesh.shape[AXIS],
                migrate_links=partial(migrate_links, graphs=graphs, now=mesh.shape[AXIS]),
                split="" if layout.shards == 1 else repr([layout.shards, *(split.axes for split in layout.levels)]),
            )

    def _network(
        self, method: Method, graphs: Levels, config: RunConfig, mesh: Mesh, node_ids: Array, layout: ShardLayout | None
    ) -> Collectives:
        if not config.faults and all(isinstance(message, Plain | Push) for message in method.messages):
            return Collectives.of(graphs, mesh, layout)
        faults = spread(config.link_faults(config.node_ids(graphs.nodes)), NamedSharding(mesh, P()))
        faults = replace(faults, node_ids=node_ids)
        return Collectives.with_links(graphs, faults, config.node_ids(graphs.nodes), mesh, layout)

    def mesh(self, nodes: int) -> Mesh:
        available = jax.devices()
        count = len(available) if self.devices is None else self.devices
        if not 1 <= count <= len(available):
            raise ValueError(f"devices={count}, but JAX sees {len(available)}: choose from 1 to {len(available)}.")
        shards = self.shards.count
        local_count = count if jax.process_count() == 1 else jax.local_device_count()
        if count % shards or local_count % shards:
            fits = [d for d in range(1, local_count + 1) if count % d == local_count % d == 0]
            scope = "" if local_count == count else " of each process"
            raise ValueError(
                f"shard={shards} does not divide the {local_count} devices{scope}: "
                f"choose from {', '.join(map(str, fits))}."
            )
        if nodes % (groups := count // shards):
            fits = [d * shards for d in range(1, groups) if nodes % d == 0]
            more = "" if shards == 1 else f" with {shards} devices per node"
            raise ValueError(
                f"{nodes} nodes cannot be distributed evenly over {count} devices{more}: use "
                f"Cluster(devices={fits[-1]}), or a multiple of {groups} nodes."
            )
        devices = np.asarray(available[:count])
        return Mesh(devices, (AXIS,)) if shards == 1 else Mesh(devices.reshape(groups, shards), (AXIS, SHARD))


class _Spread:
    """Wraps a chunk in `shard_map`; every device reports for its own nodes, and the reports are combined after."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Spread) and self.mesh == other.mesh

    def __hash__(self) -> int:
        return hash(self.mesh)

    def __call__(self, chunk: ChunkFunction, arrays: Program, state: State) -> ChunkFunction:
        specs = jax.tree.map(lambda leaf: manual(leaf.sharding.spec), arrays)
        shardings = jax.tree.map(lambda leaf: leaf.sharding, state)

        def local(arrays: Program, state: State, first: Array) -> tuple[State, Array, list[Array]]:
            state, finite, repetitions = chunk(arrays, state, first)
            return state, finite[None], [times[None] for times in repetitions]

        def spread(arrays: Program, state: State, first: Array) -> tuple[State, Array, list[Array]]:
            state, finite, repetitions = jax.shard_map(
                local,
                mesh=self.mesh,
                in_specs=(specs, P(AXIS), P()),
                out_specs=(P(AXIS), P(AXIS), P(AXIS)),
                axis_names={AXIS},  # the other axis, of a node's parts, is left to the compiler
                check_vma=False,
            )(arrays, state, first)
            state = jax.lax.with_sharding_constraint(state, shardings)
            return state, finite.all(), [times.mean(0) for times in repetitions]

        return spread
