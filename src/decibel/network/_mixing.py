"""δ(s) = Σ_j w_ij (s_j − s_i), and other sums over neighbours, where all nodes live on one device.

δ is computed from differences, which are small near consensus and so have small rounding errors, never from a
reduced-precision product of raw states. Which of the forms below serves a graph depends on its shape alone.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from scipy import sparse

from ..graphs._graph import Graph, GraphSequence

GATHER_DEGREE = 16  # beyond it, unrolled gathers would bloat the compiled step
SHIFTS = 64  # the same for rotations, which are slices

Arrays: TypeAlias = tuple[Array, ...]
Term: TypeAlias = Callable[[Arrays, Arrays], Array]  # of what the neighbours have, and of what the nodes have


class Mixer(eqx.Module):
    """Sums over neighbours for one graph with all nodes on one device; leaves are (nodes, ...)."""

    @abstractmethod
    def sum(self, phase: Array, term: Term, *leaves: Array) -> Array:
        """Σ_j w_ij term(leaves of j, leaves of i), where the term is zero if both have the same."""

    def flow(self, phase: Array, leaf: Array) -> Array:
        """δ(leaf)"""
        return self.sum(phase, _difference, leaf)

    def push(self, phase: Array, leaf: Array) -> Array:
        """(C − I) leaf, which is δ(leaf) where W is doubly stochastic."""
        return self.flow(phase, leaf)


def _difference(theirs: Arrays, mine: Arrays) -> Array:
    return theirs[0] - mine[0]


class Shifts(Mixer):
    """Circulant graphs: every node has its neighbours at the same offsets, so exchange is rotation.

    A GPU gathers each rotation in the loop that uses it: one pass for state and carry. A CPU would make every gather a
    pass of its own, so there one gather lays out all nodes with a margin that wraps around, and rotations are slices of
    it; unlike rolls it fuses with what makes the message, and a loop around it updates its state in place.
    """

    offsets: tuple[int, ...] = eqx.field(static=True)
    weights: tuple[float, ...] = eqx.field(static=True)

    def sum(self, phase: Array, term: Term, *leaves: Array) -> Array:
        if not self.offsets:
            return jnp.zeros_like(leaves[0])
        sliced, gathered = partial(self._sliced, term), partial(self._gathered, term)
        return jax.lax.platform_dependent(*leaves, cpu=sliced, default=gathered)

    def _sliced(self, term: Term, *leaves: Array) -> Array:
        nodes = leaves[0].shape[0]
        before = max(0, -min(self.offsets))
        after = max(0, *self.offsets)
        around = jnp.arange(-before, nodes + after, dtype=jnp.int32) % nodes
        wide = tuple(_rows(leaf, around) for leaf in leaves)
        return self._sum(term, lambda k: tuple(leaf[before + k : before + k + nodes] for leaf in wide))

    def _gathered(self, term: Term, *leaves: Array) -> Array:
        nodes = jnp.arange(leaves[0].shape[0], dtype=jnp.int32)

        def rotated(k: int) -> tuple[Array, ...]:
            return tuple(_rows(leaf, (nodes + k) % len(nodes)) for leaf in leaves) if k else leaves

        return self._sum(term, rotated)

    def _sum(self, term: Term, rotated: Callable[[int], Arrays]) -> Array:
        return _total([w * term(rotated(k), rotated(0)) for k, w in zip(self.offsets, self.weights, strict=True)])


class Neighbours(Mixer):
    """Graphs of small degree: gathers from a table (phases, nodes, degree) of neighbours, filled up with the node."""

    table: Array
    weights: Array

    def sum(self, phase: Array, term: Term, *leaves: Array) -> Array:
        table, weights = (_at(phase, by_phase) for by_phase in (self.table, self.weights))
        nodes = jnp.arange(len(table), dtype=jnp.int32)
        mine = tuple(_rows(leaf, nodes) for leaf in leaves)  # made once, not once per neighbour

        def theirs(k: int) -> tuple[Array, ...]:
            return tuple(_rows(leaf, table[:, k]) for leaf in mine)

        return _total([_times(weights[:, k], term(theirs(k), mine)) for k in range(table.shape[1])])


class Edges(Mixer):
    """Irregular sparse graphs (a star): one term per edge, summed at the receiver; arrays are (phases, edges)."""

    senders: Array
    receivers: Array
    weights: Array

    def sum(self, phase: Array, term: Term, *leaves: Array) -> Array:
        senders, receivers, weights = (
            _at(phase, by_phase) for by_phase in (self.senders, self.receivers, self.weights)
        )
        theirs, mine = (tuple(_rows(leaf, ends) for leaf in leaves) for ends in (senders, receivers))
        terms = _times(weights, term(theirs, mine))
        return jax.ops.segment_sum(terms, receivers, leaves[0].shape[0], indices_are_sorted=True)


class Average(Mixer):
    """The complete graph with weights 1/N."""

    def sum(self, phase: Array, term: Term, *leaves: Array) -> Array:
        return _of_pairs(term, leaves).mean(1)

    def flow(self, phase: Array, leaf: Array) -> Array:
        # The mean of differences from the first node: exact at consensus.
        return (leaf - leaf[:1]).mean(0, keepdims=True) - (leaf - leaf[:1])


class Dense(Mixer):
    """Dense graphs: (W − I)(s − s̄) in the highest precision of the accelerator."""

    generator: Array  # W − I, (phases, nodes, nodes)

    def sum(self, phase: Array, term: Term, *leaves: Array) -> Array:
        return _times(_at(phase, self.generator), _of_pairs(term, leaves)).sum(1)

    def flow(self, phase: Array, leaf: Array) -> Array:
        centred = (leaf - leaf.mean(0, keepdims=True)).reshape(leaf.shape[0], -1)
        generator = _at(phase, self.generator).astype(leaf.dtype)
        return jnp.matmul(generator, centred, precision=jax.lax.Precision.HIGHEST).reshape(leaf.shape)


class OneWay(Mixer):
    """One-way links: by R what nodes receive is weighed, and by C what they send is split.

    (C − I) p is Σ_j c_ij (p_j − p_i) + surplus_i p_i, where the surplus is what the row of C has beyond one.
    """

    pulls: Mixer
    pushes: Mixer
    surplus: Array  # (phases, nodes)

    def sum(self, phase: Array, term: Term, *leaves: Array) -> Array:
        return self.pulls.sum(phase, term, *leaves)

    def flow(self, phase: Array, leaf: Array) -> Array:
        return self.pulls.flow(phase, leaf)

    def push(self, phase: Array, leaf: Array) -> Array:
        return self.pushes.flow(phase, leaf) + _times(_at(phase, self.surplus), leaf)


def surplus(graph: Graph | GraphSequence) -> np.ndarray:
    """(phases, nodes) how much more than one each row of C has."""
    return np.stack([np.asarray(phase.pushing.sum(axis=1)) - 1.0 for phase in graph.phases])


def _of_pairs(term: Term, leaves: Arrays) -> Array:
    """(nodes, nodes, ...): compilers sum it up without having it whole."""
    return term(tuple(leaf[None] for leaf in leaves), tuple(leaf[:, None] for leaf in leaves))


def _at(phase: Array, phases: Array) -> Array:
    return phases[phase % len(phases) if len(phases) > 1 else 0]


def _times(weights: Array, terms: Array) -> Array:
    """Terms (*weights, ...), each times its own weight."""
    return weights.astype(terms.dtype).reshape(*weights.shape, *(1,) * (terms.ndim - weights.ndim)) * terms


def _total(terms: list[Array]) -> Array:
    return sum(terms[1:], start=terms[0])


def _rows(leaf: Array, indices: Array) -> Array:
    return leaf.at[indices].get(mode="promise_in_bounds")


def mixer(graph: Graph | GraphSequence) -> Mixer:
    """The cheapest exact form for a graph."""
    if not graph.doubly_stochastic:
        pulls, pushes = [phase.matrix for phase in graph.phases], [phase.pushing for phase in graph.phases]
        return OneWay(_of_matrices(graph, pulls), _of_matrices(graph, pushes), jnp.asarray(surplus(graph)))
    if graph.period == 1:
        offsets = graph.phases[0].circulant_offsets()
        if offsets is not None:
            if len(offsets) == graph.nodes - 1 > 1 and np.allclose([w for _, w in offsets], 1 / graph.nodes):
                return Average()
            if len(offsets) <= max(GATHER_DEGREE, min(SHIFTS, graph.nodes // 8)):
                return Shifts(tuple(k for k, _ in offsets), tuple(w for _, w in offsets))
    return _of_matrices(graph, [phase.matrix for phase in graph.phases])


def _of_matrices(graph: Graph | GraphSequence, matrices: Sequence[sparse.csr_array]) -> Mixer:
    """For matrices by phase with the links of a graph; their diagonals do not matter."""
    degree = max(int(phase.degrees.max(initial=0)) for phase in graph.phases)
    entries = max(matrix.nnz for matrix in matrices)
    if degree <= GATHER_DEGREE:
        return _neighbours(graph, degree, matrices)
    if entries < graph.nodes**2 // 8:
        return _edges(graph, matrices)
    return Dense(jnp.asarray(np.stack([_generator(matrix) for matrix in matrices])))


def _generator(matrix: sparse.csr_array) -> np.ndarray:
    """The matrix, with a diagonal by which rows sum to zero."""
    links = matrix.toarray()
    np.fill_diagonal(links, 0.0)
    return links - np.diag(links.sum(axis=1))


def _neighbours(
    graph: Graph | GraphSequence, degree: int, matrices: Sequence[sparse.csr_array] | None = None
) -> Neighbours:
    table = np.tile(np.arange(graph.nodes)[None, :, None], (graph.period, 1, max(degree, 1)))
    weights = np.zeros(table.shape)
    for phase, matrix in enumerate(matrices or [phase.matrix for phase in graph.phases]):
        receivers, senders, values = _links(matrix)
        place = np.arange(len(receivers)) - np.searchsorted(receivers, receivers)  # of each link at its receiver
        table[phase, receivers, place] = senders
        weights[phase, receivers, place] = values
    return Neighbours(jnp.asarray(table, jnp.int32), jnp.asarray(weights))


def _links(matrix: sparse.csr_array) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The receivers, in order, the senders and the weights of all links."""
    receivers = np.repeat(np.arange(len(matrix.indptr) - 1), np.diff(matrix.indptr))
    links = receivers != matrix.indices
    return receivers[links], matrix.indices[links], matrix.data[links]


def _edges(graph: Graph | GraphSequence, matrices: Sequence[sparse.csr_array]) -> Edges:
    phases = [_links(matrix) for matrix in matrices]
    most = max(len(weights) for _, _, weights in phases)

    # Short phases are filled up with edges of weight zero from the last node to itself, which keeps receivers sorted.
    def fill(a: np.ndarray, value: float) -> np.ndarray:
        return np.pad(a, (0, most - len(a)), constant_values=value)

    receivers, senders, weights = (
        np.stack([fill(phase[part], value) for phase in phases])
        for part, value in enumerate((graph.nodes - 1, graph.nodes - 1, 0.0))
    )
    return Edges(jnp.asarray(senders, jnp.int32), jnp.asarray(receivers, jnp.int32), jnp.asarray(weights))
