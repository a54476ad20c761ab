"""Who talks to whom and with what weight: `Graph`, `GraphSequence` and `Levels`."""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Sequence
from dataclasses import InitVar, dataclass, field
from functools import cached_property, reduce
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from jaxtyping import Complex, Float, Int
from scipy import sparse
from scipy.sparse.csgraph import connected_components

from ._drawing import Sketch, draw_graph, draw_sequence
from ._spectrum import disagreement_norm, largest_eigenvalues
from ._types import Matrix, shape_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUM_TOLERANCE = 1e-8
ROUNDING = 1e-15  # a weight below this is no edge


@dataclass(frozen=True, eq=False, repr=False)
class Graph:
    """A doubly stochastic mixing matrix W, checked once and never changed.

    `matrix` may be dense or scipy sparse and is kept as read-only CSR. Row i of W holds the weights node i
    gives to what it receives. Two graphs are equal when their matrices are.
    """

    matrix: sparse.csr_array
    name: str = "graph"
    positions: Float[np.ndarray, "nodes 2"] | None = None  # where `draw` puts the nodes
    disconnected: InitVar[bool] = False

    def __post_init__(self, disconnected: bool) -> None:
        matrix = _symmetrized(_checked(self.matrix))
        for array in (matrix.data, matrix.indices, matrix.indptr):
            array.flags.writeable = False
        object.__setattr__(self, "matrix", matrix)
        if not (disconnected or self.connected):
            raise ValueError(
                f"The graph {self.name!r} is not connected ({self._components} components); add edges that "
                "join them, or pass disconnected=True if it is one phase of a cycle."
            )

    def __repr__(self) -> str:
        kind = "" if self.symmetric else "directed "
        return f"Graph({self.name!r}, nodes={self.nodes}, {kind}edges={len(self.edges)})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Graph) and self._digest == other._digest

    def __hash__(self) -> int:
        return hash(self._digest)

    @property
    def nodes(self) -> int:
        return len(self.matrix.indptr) - 1

    @property
    def W(self) -> Float[np.ndarray, "nodes nodes"]:
        """The mixing matrix as a new dense array."""
        return self.matrix.toarray()

    @property
    def period(self) -> int:
        return 1

    @property
    def phases(self) -> tuple[Graph, ...]:
        return (self,)

    @cached_property
    def symmetric(self) -> bool:
        return (self.matrix != self.matrix.T).nnz == 0

    @property
    def connected(self) -> bool:
        """Whether news from any node reaches every other."""
        return self._components == 1

    @cached_property
    def degrees(self) -> Int[np.ndarray, " nodes"]:
        """How many neighbours each node hears from, itself excluded."""
        return np.bincount(self._links[0], minlength=self.nodes)

    @cached_property
    def edges(self) -> Int[np.ndarray, "edges 2"]:
        """Pairs (i, j) with i < j; for a directed graph (sender, receiver)."""
        row, column = self._links
        if self.symmetric:
            row, column = row[column < row], column[column < row]
        return np.stack([column, row], axis=1)

    @property
    def rho(self) -> float:
        """‖W − 11ᵀ/N‖₂: how much of a disagreement may survive one exchange."""
        return self._spectrum[0]

    @property
    def spectral_gap(self) -> float:
        return 1.0 - self.rho

    @property
    def lambda_min(self) -> float:
        """The smallest eigenvalue of W; of (W + Wᵀ)/2 when W is directed."""
        return self._spectrum[1]

    @cached_property
    def lambda_min_bound(self) -> float:
        """A number that `lambda_min` is never below, by Gershgorin's discs: no eigenvalues needed."""
        size = abs(self.matrix)
        diagonal = self.matrix.diagonal()
        reach = (size.sum(axis=0) + size.sum(axis=1)) / 2 - np.abs(diagonal)
        return float(np.min(diagonal - reach))

    def lazy(self) -> Graph:
        """(I + W)/2: the same edges, and no eigenvalue below zero."""
        matrix = (sparse.eye_array(self.nodes, format="csr") + self.matrix) / 2
        return Graph(matrix, f"lazy {self.name}", self.positions, disconnected=not self.connected)

    def circulant_offsets(self) -> tuple[tuple[int, float], ...] | None:
        """Pairs (offset, weight) with W[i, (i + offset) % N] = weight for every i, or None.

        Offsets lie in (−N/2, N/2], never zero, in increasing order.
        """
        return self._offsets

    def summary(self) -> str:
        return f"{self.name}, N = {self.nodes}, ρ = {self.rho:.4g}"

    def draw(self, ax: Axes | None = None) -> Figure:
        return draw_graph(self._sketch(), ax)

    def _sketch(self) -> Sketch:
        sender, receiver = self.edges.T
        weights = np.asarray(self.matrix[receiver, sender]).ravel()
        circulant = self.circulant_offsets() is not None
        return Sketch(self.nodes, self.edges, weights, self.symmetric, circulant, self.positions, self.summary())

    @cached_property
    def _digest(self) -> tuple[int, bytes]:
        parts = (self.matrix.indptr.astype(np.int64), self.matrix.indices.astype(np.int64), self.matrix.data)
        content = hashlib.blake2b(digest_size=16)
        for part in parts:
            content.update(part.tobytes())
        return self.nodes, content.digest()

    @cached_property
    def _links(self) -> tuple[Int[np.ndarray, " links"], Int[np.ndarray, " links"]]:
        """Rows and columns of the entries off the diagonal."""
        row, column = self.matrix.tocoo().coords
        return row[row != column], column[row != column]

    @cached_property
    def _components(self) -> int:
        return int(connected_components(self.matrix, directed=True, connection="strong")[0])

    @cached_property
    def _offsets(self) -> tuple[tuple[int, float], ...] | None:
        row, column = self._links
        if np.any(self.degrees != self.degrees[0]):
            return None
        shape = (self.nodes, int(self.degrees[0]))
        # The diagonal is left out: rows sum to one, so it follows, but only up to rounding.
        everyone = np.repeat(np.arange(self.nodes), np.diff(self.matrix.indptr))
        weight = self.matrix.data[everyone != self.matrix.indices]
        offset = ((column - row) % self.nodes).reshape(shape)
        order = np.argsort(offset, axis=1)
        offset = np.take_along_axis(offset, order, axis=1)
        weight = np.take_along_axis(weight.reshape(shape), order, axis=1)
        if np.any(offset != offset[0]) or np.any(weight != weight[0]):
            return None
        signed = [int(o) if 2 * o <= self.nodes else int(o) - self.nodes for o in offset[0]]
        return tuple(sorted(zip(signed, weight[0].tolist(), strict=True)))

    @cached_property
    def _eigenvalues(self) -> Complex[np.ndarray, " nodes"] | None:
        """Of a circulant W, by FFT, the one of the constant vector first; otherwise None."""
        if self._offsets is None:
            return None
        row = np.zeros(self.nodes)
        for offset, weight in self._offsets:
            row[offset] += weight
        return 1.0 - row.sum() + np.fft.fft(row)

    @cached_property
    def _spectrum(self) -> tuple[float, float]:
        """(rho, lambda_min)."""
        if self._eigenvalues is not None:
            norm = np.max(np.abs(self._eigenvalues[1:]), initial=0.0)
            return _snapped(norm, self.nodes), float(np.min(np.real(self._eigenvalues)))
        lowest = -float(largest_eigenvalues(-(self.matrix + self.matrix.T) / 2, 1)[0])
        if not self.symmetric:
            return _snapped(disagreement_norm([self.matrix]), self.nodes), lowest
        top = largest_eigenvalues(self.matrix, 2)
        second = float(np.delete(top, np.argmin(np.abs(top - 1.0)))[0]) if self.connected else 1.0
        return _snapped(max(abs(second), abs(lowest)), self.nodes), lowest


@dataclass(frozen=True, repr=False)
class GraphSequence:
    """A graph that changes: step k uses `phases[k % period]`. Only the union need be connected."""

    phases: tuple[Graph, ...]
    name: str = field(default="cycle", compare=False)

    def __post_init__(self) -> None:
        if not self.phases:
            raise ValueError("phases is empty; give at least one Graph.")
        for phase in self.phases:
            if not isinstance(phase, Graph):
                raise ValueError(f"phases holds a {type(phase).__name__}; give Graphs, such as graphs.ring(8).")
        counts = sorted({phase.nodes for phase in self.phases})
        if len(counts) > 1:
            raise ValueError(f"phases have different numbers of nodes {counts}; give every phase the same.")
        if not self.connected:
            raise ValueError(
                f"The union of the phases of {self.name!r} is not connected ({self._components} components); "
                "add a phase that joins them."
            )

    def __repr__(self) -> str:
        return f"GraphSequence({self.name!r}, nodes={self.nodes}, period={self.period})"

    @property
    def nodes(self) -> int:
        return self.phases[0].nodes

    @property
    def period(self) -> int:
        return len(self.phases)

    @property
    def symmetric(self) -> bool:
        return all(phase.symmetric for phase in self.phases)

    @property
    def connected(self) -> bool:
        """Whether news from any node reaches every other when all phases are taken together."""
        return self._components == 1

    @cached_property
    def degrees(self) -> Float[np.ndarray, " nodes"]:
        """How many neighbours each node hears from in a step, on average over the phases."""
        return np.mean([phase.degrees for phase in self.phases], axis=0)

    @cached_property
    def rho(self) -> float:
        """‖W_{τ−1} … W_0 − 11ᵀ/N‖₂ to the power 1/τ: the contraction per step.

        Zero when one period averages exactly.
        """
        spectra = [phase._eigenvalues for phase in self.phases]
        known = [values for values in spectra if values is not None]
        if len(known) == self.period:
            norm = np.max(np.abs(np.prod(known, axis=0)[1:]), initial=0.0)
        else:
            norm = disagreement_norm([phase.matrix for phase in self.phases])
        return _snapped(norm, self.nodes) ** (1.0 / self.period)

    @property
    def spectral_gap(self) -> float:
        return 1.0 - self.rho

    @property
    def lambda_min(self) -> float:
        """The smallest over the phases."""
        return min(phase.lambda_min for phase in self.phases)

    @property
    def lambda_min_bound(self) -> float:
        return min(phase.lambda_min_bound for phase in self.phases)

    def lazy(self) -> GraphSequence:
        """(I + W)/2 in every phase."""
        return GraphSequence(tuple(phase.lazy() for phase in self.phases), f"lazy {self.name}")

    def summary(self) -> str:
        return f"{self.name}, N = {self.nodes}, period {self.period}, ρ = {self.rho:.4g}"

    def draw(self, ax: Sequence[Axes] | None = None) -> Figure:
        """The phases side by side; `ax`, where given, holds one Axes for each."""
        return draw_sequence([phase._sketch() for phase in self.phases], self.summary(), ax)

    @cached_property
    def _components(self) -> int:
        union = reduce(operator.add, [abs(phase.matrix) for phase in self.phases])
        return int(connected_components(union, directed=True, connection="strong")[0])


Topology: TypeAlias = Graph | GraphSequence


@dataclass(frozen=True)
class Levels:
    """A graph per level; a missing `y` follows `x`, a missing `z` follows `y`."""

    x: Topology
    y: Topology = None  # pyright: ignore[reportAssignmentType]
    z: Topology = None  # pyright: ignore[reportAssignmentType]

    def __post_init__(self) -> None:
        if self.y is None:
            object.__setattr__(self, "y", self.x)
        if self.z is None:
            object.__setattr__(self, "z", self.y)
        for level in ("x", "y", "z"):
            graph = getattr(self, level)
            if not isinstance(graph, Graph | GraphSequence):
                raise ValueError(f"Levels({level}=...) is a {type(graph).__name__}; give a Graph.")
        if not self.x.nodes == self.y.nodes == self.z.nodes:
            raise ValueError(
                f"Levels has graphs of {self.x.nodes} (x), {self.y.nodes} (y) and {self.z.nodes} (z) nodes; "
                "give all levels the same number."
            )

    @property
    def nodes(self) -> int:
        return self.x.nodes

    def distinct(self) -> tuple[list[Topology], tuple[int, int, int]]:
        """The graphs, each once, and the place among them of x's, y's and z's."""
        graphs = list(dict.fromkeys((self.x, self.y, self.z)))
        return graphs, (graphs.index(self.x), graphs.index(self.y), graphs.index(self.z))


def _checked(matrix: Matrix) -> sparse.csr_array:
    """A canonical CSR copy of a doubly stochastic matrix."""
    try:
        shape: tuple[object, ...] = shape_of(matrix)
    except ValueError:  # rows of unequal length
        shape = ("rows of unequal length",)
    if len(shape) != 2 or shape[0] != shape[1] or shape[0] == 0:
        raise ValueError(f"W has shape {shape}; give a square matrix with one row per node.")
    dtype = getattr(matrix, "dtype", None)
    kind = np.dtype(np.asarray(matrix).dtype if dtype is None else dtype).kind
    if kind not in "fiub":
        raise ValueError("W does not hold real numbers; give a float matrix.")
    W = sparse.csr_array(matrix, dtype=np.float64, copy=True)
    W.sum_duplicates()
    W.data[np.abs(W.data) < ROUNDING] = 0.0
    W.eliminate_zeros()
    if not np.all(np.isfinite(W.data)):
        raise ValueError("W holds NaN or infinity; give finite weights.")
    for axis, word in ((1, "row"), (0, "column")):
        sums = np.asarray(W.sum(axis=axis))
        worst = int(np.argmax(np.abs(sums - 1.0)))
        if abs(sums[worst] - 1.0) > SUM_TOLERANCE:
            raise ValueError(
                f"W is not doubly stochastic: {word} {worst} sums to {sums[worst]:.9g} instead of 1; "
                'from_networkx(graph, weights="metropolis") makes a valid one for any graph.'
            )
    return W


def _symmetrized(W: sparse.csr_array) -> sparse.csr_array:
    """Symmetric up to rounding becomes symmetric, so that what flows along an edge cancels exactly."""
    difference = abs(W - W.T)
    if difference.nnz == 0 or difference.max() > SUM_TOLERANCE:
        return W
    mean = sparse.csr_array((W + W.T) / 2)
    mean.sum_duplicates()
    return mean


def _snapped(norm: float, nodes: int) -> float:
    """Zero for what is rounding, which a root over the period would otherwise magnify."""
    return float(norm) if norm > nodes * np.finfo(np.float64).eps else 0.0
