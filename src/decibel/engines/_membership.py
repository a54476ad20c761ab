"""Restricts graphs and problem to the active nodes, and migrates state when nodes join or leave.

A node keeps its id, so that its data and random numbers do not depend on which other nodes are active.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from scipy import sparse

from ..core._types import PyTree
from ..graphs._graph import Accelerated, Graph, GraphSequence, Levels
from ..methods._method import State
from ..problem._problem import Data, Problem
from ..problem._samples import NodeData, lay_out
from ..problem._streams import StreamData
from ..strategies._table import Level, Strategy
from .launch._environment import absent, process_info

Members = tuple[int, ...]


class Membership(NamedTuple):
    """The ids of the active nodes, in order, and the graphs and the problem restricted to them."""

    members: Members
    graphs: Levels
    problem: Problem


def restrict_to(graphs: Levels, problem: Problem, members: Sequence[int] | None) -> Membership:
    """The graphs and the problem of the active nodes; `members` of None are all nodes."""
    everyone = tuple(range(graphs.nodes))
    present = everyone if members is None else tuple(sorted({int(node) for node in members}))
    if present == everyone:
        return Membership(present, graphs, problem)
    if not present or present[0] < 0 or present[-1] >= graphs.nodes:
        raise ValueError(f"members={members!r} must list one or more of the nodes 0 to {graphs.nodes - 1}.")
    restricted = {graph: induced_graph(graph, present) for graph in (graphs.x, graphs.y, graphs.z)}
    levels = Levels(restricted[graphs.x], restricted[graphs.y], restricted[graphs.z])
    return Membership(present, levels, _problem_of(problem, present))


def survivors(nodes: int, variables: Mapping[str, str] = os.environ) -> Members | None:
    """The nodes of the processes that run, or None if all run: process r of P holds the nodes rN/P to (r+1)N/P."""
    lost = absent(variables)
    if not lost:
        return None
    process = process_info(variables)
    processes = (process.processes if process else 1) + len(lost)
    if nodes % processes:
        raise ValueError(
            f"{nodes} nodes cannot be split evenly over {processes} processes: use a multiple of {processes} nodes."
        )
    each = nodes // processes
    return tuple(node for node in range(nodes) if node // each not in lost)


def induced_graph(graph: Graph | GraphSequence, members: Members) -> Graph | GraphSequence:
    """The graph induced by its active nodes, with weights that keep W doubly stochastic.

    The weight of a missing link is added to the self-weights of both its ends; in a directed graph the paths through
    missing nodes become direct links.
    """
    if not graph.doubly_stochastic:
        raise ValueError(
            f"graph {graph.name!r} has one-way links and cannot lose nodes: keep all of them, or choose an "
            "undirected graph."
        )
    if isinstance(graph, Accelerated):
        base = induced_graph(graph.base, members)
        assert isinstance(base, Graph)
        fewer = base.accelerated(graph.rounds)
        return fewer.lazy() if graph.gossip.share < 1 else fewer
    name = f"{graph.name} without {_listed(set(range(graph.nodes)) - set(members))}"
    phases = tuple(_induced_phase(phase, members, name) for phase in graph.phases)
    union = reduce(operator.add, [abs(phase.matrix) for phase in phases])
    if graph.connected and sparse.csgraph.connected_components(union, directed=True, connection="strong")[0] > 1:
        raise ValueError(
            f"the remaining nodes of graph {graph.name!r}, {_listed(members)}, are not connected: start with "
            "all of them, or choose a graph with more links."
        )
    return phases[0] if isinstance(graph, Graph) else GraphSequence(phases, name, graph.order)


def _induced_phase(graph: Graph, members: Members, name: str) -> Graph:
    inside = np.asarray(members)
    outside = np.setdiff1d(np.arange(graph.nodes), inside)
    remaining = graph.matrix[inside][:, inside]
    if graph.symmetric:
        remaining = remaining + sparse.diags_array(1.0 - np.asarray(remaining.sum(axis=1)))
    else:
        to_lost = graph.matrix[inside][:, outside].toarray()
        among_lost = graph.matrix[outside][:, outside].toarray()
        from_lost = graph.matrix[outside][:, inside].toarray()
        through_lost = to_lost @ np.linalg.pinv(np.eye(len(outside)) - among_lost) @ from_lost
        remaining = sparse.csr_array(remaining + through_lost)
    positions = None if graph.positions is None else graph.positions[inside]
    return Graph(remaining, name, positions, disconnected=True)


def _problem_of(problem: Problem, members: Members) -> Problem:
    def restrict_data(data: Data, _: str) -> Data:
        if isinstance(data, NodeData):
            rows = np.asarray(members)
            return lay_out(jax.tree.map(lambda leaf: leaf[rows], data.tree), np.asarray(data.counts)[rows])
        if isinstance(data, StreamData):
            return data.select_nodes(members)
        return lambda position: data(members[position])  # the user's function gets the node's id

    return problem.map_data(restrict_data)


def migrate_state(
    saved: State, initial: State, before: Members, now: Members, strategies: Mapping[str, Strategy]
) -> State:
    """The state of the active nodes after nodes joined or left.

    A node that stays keeps its state. A node that joins starts with a zero carry: from the average of the nodes that
    stay where a level communicates, and from the run's `initial` state where it does not. `Strategy.repair` then makes
    carries cancel again, so that the solution is exact for the active nodes.
    """
    row_of = {node: row for row, node in enumerate(before)}
    old_rows = np.asarray([row_of.get(node, 0) for node in now])
    stays = np.asarray([node in row_of for node in now])
    rows_to_average = old_rows[stays] if stays.any() else np.arange(len(before))

    def keep(old: PyTree, new: PyTree) -> PyTree:
        return jax.tree.map(lambda a, b: jnp.where(stays.reshape(-1, *(1,) * (b.ndim - 1)), a[old_rows], b), old, new)

    def averaged(old: PyTree, new: PyTree) -> PyTree:
        def inexact(leaf: Array) -> bool:
            return jnp.issubdtype(leaf.dtype, jnp.inexact)

        def mean(a: Array, b: Array) -> Array:
            return jnp.broadcast_to(a[rows_to_average].mean(0), b.shape) if inexact(a) else b

        return keep(old, jax.tree.map(mean, old, new))

    def level(name: str) -> Level | None:
        old = getattr(saved, name)
        new = getattr(initial, name)
        strategy = strategies.get(name)
        if old is None:
            return None
        s = (averaged if strategy is None or strategy.communicates else keep)(old.s, new.s)
        carry = keep(old.carry, jax.tree.map(jnp.zeros_like, new.carry))
        return Level(s, carry if strategy is None else strategy.repair(carry))

    x = level("x")
    assert x is not None
    # A memory may hold what a local level must not reveal.
    everything_mixes = all(strategy.communicates for strategy in strategies.values())
    memory = (averaged if everything_mixes else keep)(saved.memory, initial.memory)
    return initial._replace(x=x, y=level("y"), z=level("z"), memory=memory)


def _listed(nodes: Sequence[int] | set[int]) -> str:
    numbers = sorted(nodes)
    beginning = ", ".join(map(str, numbers[:8])) + (", ..." if len(numbers) > 8 else "")
    return f"node {beginning}" if len(numbers) == 1 else f"nodes {beginning}"
