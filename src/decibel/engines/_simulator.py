"""All nodes on one device."""

from __future__ import annotations

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp

from ..graphs._graph import Levels
from ..methods._method import Method
from ..network._in_memory import InMemory
from ..network._links import migrate_links
from ..network._messages import LinkFree
from ..problem._problem import Problem
from ..problem._stream_trace import streams_of
from . import _memory as device_memory
from ._engine import Engine
from ._prefetch import StreamedRun
from ._program import Program, RunConfig
from ._run import Run


class Simulator(Engine):
    """All nodes on one device.

    Args:
        members: indices of the nodes that take part, as if the others had failed; None is all of them.
        node_chunk: evaluate batches and derivatives for this many nodes at a time: the same numbers in less memory, at
            the cost of recomputing gradients for products. None evaluates all nodes at once.
        keep_copy: copy the state before the steps between two rows of the trace, so that a run that diverges ends with
            the last good one. False saves that memory. The good state is then computed again, from the start or from
            the checkpoint at which the run resumed.
    """

    members: tuple[int, ...] | None = eqx.field(static=True, default=None)
    node_chunk: int | None = eqx.field(static=True, default=None)
    keep_copy: bool = eqx.field(static=True, default=True)

    def active_nodes(self, nodes: int) -> tuple[int, ...] | None:
        return self.members

    def start(self, problem: Problem, method: Method, graphs: Levels, config: RunConfig) -> Run:
        nodes = graphs.x.nodes
        oom_message = (
            f"{nodes:,} nodes and the temporary arrays of a step do not fit into the device's memory: use fewer nodes, "
            "smaller batches, Simulator(node_chunk=...), or Cluster() over more devices."
        )
        with device_memory.oom_hint(oom_message):
            node_ids = jnp.asarray(config.node_ids(nodes))
            needs_links = config.faults or not all(isinstance(message, LinkFree) for message in method.messages)
            network = InMemory.with_links(graphs, config.link_faults(node_ids)) if needs_links else InMemory.of(graphs)
            program = Program.of(problem.bind(nodes), method, network, node_ids, config, node_chunk=self.node_chunk)
            program = jax.tree.map(lambda leaf: jnp.asarray(leaf) if eqx.is_array(leaf) else leaf, program)
            kind = StreamedRun if streams_of(program.problem) else Run
            return kind(
                program,
                oom_message=oom_message,
                migrate_links=partial(migrate_links, graphs=graphs, now=1),
                keep_copy=self.keep_copy,
            )
