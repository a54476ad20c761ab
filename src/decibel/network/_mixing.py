"""What neighbours exchange: δ(s) = Σ_j w_ij (s_j − s_i), the only part that knows where nodes run.

δ is computed from differences, which are small near consensus and so have small rounding errors, never from a
reduced-precision product of raw states. Which of the forms below serves a graph depends on its shape alone.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Generator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..core._ledger import Ledger
from ..core._vector import Vector
from ..graphs._graph import Graph, GraphSequence, Levels
from ..strategies._table import Coded, Cumulative

GATHER_DEGREE = 16  # beyond it, unrolled gathers would bloat the compiled step
SHIFTS = 64  # the same for rotations, which are slices


class Mixer(eqx.Module):
    """δ for one graph with all nodes on one device; leaves are (nodes, ...)."""

    @abstractmethod
    def flow(self, step: Array, leaf: Array) -> Array: ...


class Shifts(Mixer):
    """Circulant graphs: every node has its neighbours at the same offsets, so exchange is rotation.

    A GPU gathers each rotation in the loop that uses it: one pass for state and carry. A CPU would make every gather a
    pass of its own, so there one gather lays out all nodes with a margin that wraps around, and rotations are slices of
    it; unlike rolls it fuses with what makes the message, and a loop around it updates its state in place.
    """

    offsets: tuple[int, ...] = eqx.field(static=True)
    weights: tuple[float, ...] = eqx.field(static=True)

    def flow(self, step: Array, leaf: Array) -> Array:
        if not self.offsets:
            return jnp.zeros_like(leaf)
        return jax.lax.platform_dependent(leaf, cpu=self._sliced, default=self._gathered)

    def _sliced(self, leaf: Array) -> Array:
        nodes, before, after = leaf.shape[0], max(0, -min(self.offsets)), max(0, *self.offsets)
        wide = _rows(leaf, jnp.arange(-before, nodes + after, dtype=jnp.int32) % nodes)
        rotated = lambda k: wide[before + k : before + k + nodes]  # noqa: E731
        return self._sum(rotated)

    def _gathered(self, leaf: Array) -> Array:
        nodes = jnp.arange(leaf.shape[0], dtype=jnp.int32)
        rotated = lambda k: _rows(leaf, (nodes + k) % len(nodes)) if k else leaf  # noqa: E731
        return self._sum(rotated)

    def _sum(self, rotated: Callable[[int], Array]) -> Array:
        flows = [w * (rotated(k) - rotated(0)) for k, w in zip(self.offsets, self.weights, strict=True)]
        return sum(flows[1:], start=flows[0])


class Neighbours(Mixer):
    """Graphs of small degree: gathers from a table (phases, nodes, degree) of neighbours, filled up with the node."""

    table: Array
    weights: Array

    def flow(self, step: Array, leaf: Array) -> Array:
        phase = step % self.table.shape[0] if self.table.shape[0] > 1 else 0
        table, weights = self.table[phase], self.weights[phase].astype(leaf.dtype)
        shape = (-1,) + (1,) * (leaf.ndim - 1)
        here = _rows(leaf, jnp.arange(leaf.shape[0], dtype=jnp.int32))  # made once, not once per neighbour
        flows = [weights[:, k].reshape(shape) * (_rows(here, table[:, k]) - here) for k in range(table.shape[1])]
        return sum(flows[1:], start=flows[0])


class Edges(Mixer):
    """Irregular sparse graphs (a star): one term per edge, summed at the receiver; arrays are (phases, edges)."""

    senders: Array
    receivers: Array
    weights: Array

    def flow(self, step: Array, leaf: Array) -> Array:
        phase = step % self.weights.shape[0] if self.weights.shape[0] > 1 else 0
        senders, receivers = self.senders[phase], self.receivers[phase]
        weights = self.weights[phase].astype(leaf.dtype).reshape((-1,) + (1,) * (leaf.ndim - 1))
        terms = weights * (_rows(leaf, senders) - _rows(leaf, receivers))
        return jax.ops.segment_sum(terms, receivers, leaf.shape[0], indices_are_sorted=True)


class Average(Mixer):
    """The complete graph with weights 1/N."""

    def flow(self, step: Array, leaf: Array) -> Array:
        # The mean of differences from the first node: exact at consensus.
        return (leaf - leaf[:1]).mean(0, keepdims=True) - (leaf - leaf[:1])


class Dense(Mixer):
    """Dense graphs: (W − I)(s − s̄) in the highest precision of the accelerator."""

    generator: Array  # W − I, (phases, nodes, nodes)

    def flow(self, step: Array, leaf: Array) -> Array:
        phase = step % self.generator.shape[0] if self.generator.shape[0] > 1 else 0
        centred = (leaf - leaf.mean(0, keepdims=True)).reshape(leaf.shape[0], -1)
        mixed = jnp.matmul(self.generator[phase].astype(leaf.dtype), centred, precision=jax.lax.Precision.HIGHEST)
        return mixed.reshape(leaf.shape)


def _rows(leaf: Array, indices: Array) -> Array:
    return leaf.at[indices].get(mode="promise_in_bounds")


def mixer(graph: Graph | GraphSequence) -> Mixer:
    """The cheapest exact form for a graph."""
    if graph.period == 1:
        offsets = graph.phases[0].circulant_offsets()
        if offsets is not None:
            if len(offsets) == graph.nodes - 1 > 1 and np.allclose([w for _, w in offsets], 1 / graph.nodes):
                return Average()
            if len(offsets) <= max(GATHER_DEGREE, min(SHIFTS, graph.nodes // 8)):
                return Shifts(tuple(k for k, _ in offsets), tuple(w for _, w in offsets))
    degree = max(int(phase.degrees.max(initial=0)) for phase in graph.phases)
    entries = max(phase.matrix.nnz for phase in graph.phases)
    if degree <= GATHER_DEGREE:
        return _neighbours(graph, degree)
    if entries < graph.nodes**2 // 8:
        return _edges(graph)
    return Dense(jnp.asarray(np.stack([phase.W - np.eye(graph.nodes) for phase in graph.phases])))


def _neighbours(graph: Graph | GraphSequence, degree: int) -> Neighbours:
    table = np.tile(np.arange(graph.nodes)[None, :, None], (graph.period, 1, max(degree, 1)))
    weights = np.zeros(table.shape)
    for phase, one in enumerate(graph.phases):
        csr = one.matrix.tocsr()
        for node in range(graph.nodes):
            span = slice(csr.indptr[node], csr.indptr[node + 1])
            columns, values = csr.indices[span], csr.data[span]
            others = columns != node
            table[phase, node, : others.sum()] = columns[others]
            weights[phase, node, : others.sum()] = values[others]
    return Neighbours(jnp.asarray(table, jnp.int32), jnp.asarray(weights))


def _edges(graph: Graph | GraphSequence) -> Edges:
    phases = []
    for phase in graph.phases:
        csr = phase.matrix.tocsr()
        rows = np.repeat(np.arange(graph.nodes), np.diff(csr.indptr))
        off = rows != csr.indices
        phases.append((csr.indices[off], rows[off], csr.data[off]))
    most = max(len(weights) for _, _, weights in phases)
    # Short phases are filled up with edges of weight zero from the last node to itself, which keeps receivers sorted.
    fill = lambda a, value: np.pad(a, (0, most - len(a)), constant_values=value)  # noqa: E731
    senders, receivers, weights = (
        np.stack([fill(phase[part], value) for phase in phases])
        for part, value in enumerate((graph.nodes - 1, graph.nodes - 1, 0.0))
    )
    return Edges(jnp.asarray(senders, jnp.int32), jnp.asarray(receivers, jnp.int32), jnp.asarray(weights))


class Mixers(eqx.Module):
    """A mixer and the mean degree of every level."""

    x: Mixer
    y: Mixer
    z: Mixer
    degrees: tuple[float, ...] = eqx.field(static=True)

    @classmethod
    def of(cls, graphs: Levels) -> Mixers:
        levels = (graphs.x, graphs.y, graphs.z)
        made = {id(graph): mixer(graph) for graph in levels}
        return cls(*(made[id(g)] for g in levels), degrees=tuple(float(np.mean(g.degrees)) for g in levels))

    def flow(self, step: Array, level: str, message: Any) -> Any:
        form = getattr(self, level)
        return jax.tree.map(lambda leaf: form.flow(step, leaf), message)

    def degree(self, level: str) -> float:
        return self.degrees["xyz".index(level)]


class Network:
    """One step's view of the neighbours: moves levels on, and counts what that sends."""

    def __init__(
        self,
        exchange: Callable[[dict[str, Any]], dict[str, Any]],
        sends: Callable[..., float],
        ledger: Ledger,
    ) -> None:
        self._exchange, self._sends, self._ledger = exchange, sends, ledger

    def flow(self, messages: dict[str, Any]) -> dict[str, Any]:
        """One round: δ of every level's message, all levels in one exchange."""
        self._ledger.add(rounds=1, bytes=sum(self._bytes(level, message) for level, message in messages.items()))
        return self._exchange(messages)

    def _bytes(self, level: str, message: Any) -> float:
        if isinstance(message, Cumulative):  # the message and the link's flow
            return 2 * self._sends(level, per_link=True) * _size(message.message)
        if isinstance(message, Coded):
            entries = sum(leaf[0].size for leaf in jax.tree.leaves(message.message))
            return self._sends(level, coded=True) * message.code.bytes(
                entries, jax.tree.leaves(message.message)[0].dtype
            )
        return self._sends(level) * _size(message)

    def __call__(self, **moves: Generator) -> Any:
        """Runs the levels' moves in lockstep; returns their new values, in order (bare if there is one)."""
        names, waiting, replies, done = tuple(moves), dict(moves), dict.fromkeys(moves), {}
        while waiting:
            messages = {}
            for level, move in tuple(waiting.items()):
                try:
                    messages[level] = move.send(replies[level])
                except StopIteration as stop:
                    done[level] = stop.value
                    del waiting[level]
            if messages:
                replies = self.flow(messages)
        return done[names[0]] if len(names) == 1 else tuple(done[name] for name in names)


def _size(message: Any) -> int:
    vectors = jax.tree.leaves(message, is_leaf=lambda node: isinstance(node, Vector))
    return sum(vector.bytes_per_node() for vector in vectors)
