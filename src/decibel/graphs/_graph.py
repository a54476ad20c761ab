"""Which nodes are neighbours, and with what weights: `Graph`, `GraphSequence` and `Levels`."""

from __future__ import annotations

import hashlib
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import InitVar, dataclass, field
from functools import cached_property, partial, reduce
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Complex, Float, Int
from scipy import sparse
from scipy.sparse.csgraph import connected_components

from ..core._html import picture, table
from ..core._numbers import validate_count
from ._damping import default_damping
from ._doubly_stochastic import doubly_stochastic, row_and_column_stochastic, symmetrized
from ._drawing import Sketch, draw_graph, draw_sequence
from ._spectrum import candidate_sides, disagreement_norm, largest_eigenvalues, second_modulus, translation_kernel

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DRAWN = 200  # nodes of the largest graph that a notebook draws unasked
LEAST = -1 / 3  # an eigenvalue at which ED and EXTRA are not stable


@dataclass(frozen=True, eq=False, repr=False)
class Graph:
    """An immutable graph with a doubly stochastic mixing matrix W, or with R and C where links are one-way.

    Row i of W holds the weights that node i gives to what it receives. With one-way links there may be no W whose rows
    and columns both sum to one. Then R is row-stochastic: its rows say how nodes weigh what they receive. C is
    column-stochastic: its columns say how nodes split what they send. Two graphs are equal if their matrices are.

    Args:
        matrix: W, or R; dense or scipy sparse, stored as read-only CSR.
        name: what the graph is called in figures, traces and messages.
        positions: (nodes, 2), where `draw` places the nodes; None chooses a layout.
        disconnected: allow a graph that is not connected, as one phase of a `GraphSequence`.
        pushing: C, with the same links as R; None if W is doubly stochastic, so that R = C = W.

    Raises:
        ValueError: if the matrices are not finite, square and stochastic, or the graph is not (strongly) connected.
    """

    matrix: sparse.csr_array
    name: str = "graph"
    positions: Float[np.ndarray, "nodes 2"] | None = None  # where `draw` puts the nodes
    disconnected: InitVar[bool] = False
    pushing: sparse.csr_array = None  # pyright: ignore[reportAssignmentType]

    def __post_init__(self, disconnected: bool) -> None:
        matrix, pushing = _stochastic(self.matrix, self.pushing)
        for array in (matrix.data, matrix.indices, matrix.indptr, pushing.data, pushing.indices, pushing.indptr):
            array.flags.writeable = False
        object.__setattr__(self, "matrix", matrix)
        object.__setattr__(self, "pushing", pushing)
        if not (disconnected or self.connected):
            if not self.doubly_stochastic:
                raise ValueError(
                    f"The graph {self.name!r} is not strongly connected ({self._components} components): add links so "
                    "that every node reaches every other, or pass disconnected=True if it is one phase of a cycle."
                )
            raise ValueError(
                f"The graph {self.name!r} is not connected ({self._components} components); add edges that "
                "join them, or pass disconnected=True if it is one phase of a cycle."
            )

    def __repr__(self) -> str:
        kind = "" if self.symmetric else "directed "
        return f"Graph({self.name!r}, nodes={self.nodes}, {kind}edges={len(self.edges)})"

    @property
    def words(self) -> str:
        """What it is, for people."""
        kind = "edges" if self.symmetric else "directed edges"
        return f"{self.name}, {self.nodes} nodes, {len(self.edges)} {kind}"

    def _repr_html_(self) -> str:
        return _html(repr(self), self.nodes, self.draw)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Graph) and self._digest == other._digest

    def __hash__(self) -> int:
        return hash(self._digest)

    @property
    def nodes(self) -> int:
        """The number of nodes N."""
        return len(self.matrix.indptr) - 1

    @property
    def matrices(self) -> tuple[sparse.csr_array, ...]:
        """W alone, or R and C."""
        return (self.matrix,) if self.doubly_stochastic else (self.matrix, self.pushing)

    @property
    def W(self) -> Float[np.ndarray, "nodes nodes"]:
        """The mixing matrix as a new dense array; ValueError where links are one-way, which have R and C instead."""
        if not self.doubly_stochastic:
            raise ValueError(f"{self.name} has one-way links and no doubly stochastic W: use graph.R and graph.C.")
        return self.matrix.toarray()

    @property
    def R(self) -> Float[np.ndarray, "nodes nodes"]:
        """The row-stochastic matrix, by which nodes weigh what they receive, as a new dense array."""
        return self.matrix.toarray()

    @property
    def C(self) -> Float[np.ndarray, "nodes nodes"]:
        """The column-stochastic matrix, by which nodes split what they send, as a new dense array."""
        return self.pushing.toarray()

    @property
    def doubly_stochastic(self) -> bool:
        """Whether R = C = W; False where links are one-way and a mean is not preserved by R."""
        return self.pushing is self.matrix

    @property
    def period(self) -> int:
        """1: the graph does not change with the step."""
        return 1

    @property
    def phases(self) -> tuple[Graph, ...]:
        """The graph itself, as a sequence of one phase."""
        return (self,)

    @property
    def changes(self) -> bool:
        """False: the graph is the same in every step."""
        return False

    @property
    def order(self) -> Literal["cyclic", "random"]:
        """`"cyclic"`, since a single phase has no other order."""
        return "cyclic"

    @property
    def damping(self) -> float:
        """1: nothing is damped on a graph that does not change."""
        return 1.0

    @cached_property
    def symmetric(self) -> bool:
        """Whether W is symmetric, that is, the graph undirected."""
        return self.doubly_stochastic and (self.matrix != self.matrix.T).nnz == 0

    @property
    def connected(self) -> bool:
        """Whether there is a path from every node to every other."""
        return self._components == 1

    @cached_property
    def degrees(self) -> Int[np.ndarray, " nodes"]:
        """(nodes,) the number of neighbours each node receives from, itself excluded."""
        return np.bincount(self._links[0], minlength=self.nodes)

    @cached_property
    def edges(self) -> Int[np.ndarray, "edges 2"]:
        """(edges, 2) pairs (i, j) with i < j; pairs (sender, receiver) if the graph is directed."""
        row, column = self._links
        if self.symmetric:
            row, column = row[column < row], column[column < row]
        return np.stack([column, row], axis=1)

    @property
    def rho(self) -> float:
        """ρ = ‖W − 11ᵀ/N‖₂: the largest factor by which one exchange multiplies the disagreement between nodes.

        With one-way links, the second largest modulus of an eigenvalue of R and C: the factor after many exchanges.
        """
        return self._spectrum[0]

    @property
    def spectral_gap(self) -> float:
        """1 − ρ."""
        return 1.0 - self.rho

    @property
    def lambda_min(self) -> float:
        """The smallest eigenvalue of W; of (W + Wᵀ)/2 if the graph is directed."""
        return self._spectrum[1]

    @cached_property
    def lambda_min_bound(self) -> float:
        """A lower bound on `lambda_min` from Gershgorin's discs, without computing eigenvalues."""
        size = abs(self.matrix)
        diagonal = self.matrix.diagonal()
        reach = (size.sum(axis=0) + size.sum(axis=1)) / 2 - np.abs(diagonal)
        return float(np.min(diagonal - reach))

    @cached_property
    def second_eigenvalue(self) -> float:
        """λ₂ of a symmetric W: its largest eigenvalue except the 1 of the constant vector."""
        if self._eigenvalues is not None:
            return float(np.max(np.real(self._eigenvalues.ravel()[1:]), initial=-1.0))
        top = largest_eigenvalues(self.matrix, 2)
        return float(np.delete(top, np.argmin(np.abs(top - 1.0)))[0])

    @property
    def rounds(self) -> int:
        """How many rounds of messages an exchange takes: 1, except on an accelerated graph."""
        return 1

    def accelerated(self, rounds: int) -> Graph:
        """The same links, where an exchange mixes by a Chebyshev polynomial of W in several rounds of messages.

        It brings nodes nearer to their mean than the same number of plain exchanges would: on a graph of spectral gap γ
        each round counts about as if the gap were √γ. `rho` and `lambda_min` are those of the polynomial. If its
        eigenvalues may reach −1/3, its average with I is used instead. Strategies that treat each link separately, such
        as `"ada-ed"`, `"wave"` and `"edge-ed"`, raise an error.

        Args:
            rounds: how many; 1 is the graph itself.

        Raises:
            ValueError: if W is not symmetric, or the graph is not connected.

        References:
            Arioli and Scott, Chebyshev Acceleration of Iterative Refinement, 2014; Scaman, Bach, Bubeck, Lee,
            Massoulié, Optimal Algorithms for Smooth and Strongly Convex Distributed Optimization in Networks, 2017.
        """
        validate_count("rounds", rounds)
        return self if rounds == 1 or self.nodes == 1 else Accelerated(self, rounds)

    def lazy(self) -> Graph:
        """The graph with mixing matrix (I + W)/2: the same edges, and no negative eigenvalue."""
        identity = sparse.eye_array(self.nodes, format="csr")
        matrix, pushing = (identity + self.matrix) / 2, (identity + self.pushing) / 2
        lazy = partial(Graph, matrix, f"lazy {self.name}", self.positions, disconnected=not self.connected)
        return lazy() if self.doubly_stochastic else lazy(pushing=pushing)

    def circulant_offsets(self) -> tuple[tuple[int, float], ...] | None:
        """Pairs (offset, weight) with W[i, (i + offset) % N] = weight for every i, by offset; None if not circulant."""
        if self._kernel is None or self._kernel.ndim > 1:
            return None
        offsets = np.flatnonzero(self._kernel)
        signed = np.where(2 * offsets <= self.nodes, offsets, offsets - self.nodes)
        return tuple(sorted(zip(signed.tolist(), self._kernel[offsets].tolist(), strict=True)))

    def summary(self) -> str:
        """One line with name, number of nodes and ρ."""
        return f"{self.name}, N = {self.nodes}, ρ = {self.rho:.4g}"

    def draw(self, ax: Axes | None = None) -> Figure:
        """Draws the graph, in `ax` if given, and returns the matplotlib figure."""
        return draw_graph(self._sketch(), ax)

    plot = draw  # as results have it

    def _sketch(self) -> Sketch:
        sender, receiver = self.edges.T
        weights = np.asarray(self.matrix[receiver, sender]).ravel()
        circulant = self.circulant_offsets() is not None
        return Sketch(self.nodes, self.edges, weights, self.symmetric, circulant, self.positions, self.summary())

    @cached_property
    def _digest(self) -> tuple[int, bytes]:
        content = hashlib.blake2b(digest_size=16)
        for matrix in self.matrices:
            for part in (matrix.indptr.astype(np.int64), matrix.indices.astype(np.int64), matrix.data):
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
    def _kernel(self) -> Float[np.ndarray, "*sides"] | None:
        """The first row of a W that is the same seen from every node of a circle, torus or hypercube."""
        if np.any(self.degrees != self.degrees[0]):
            return None
        for sides in candidate_sides(self.matrix):
            kernel = translation_kernel(self.matrix, sides)
            if kernel is not None:
                return kernel
        return None

    @cached_property
    def _eigenvalues(self) -> Complex[np.ndarray, "*sides"] | None:
        """By FFT, the one of the constant vector first, where W has a kernel."""
        if self._kernel is None:
            return None
        return 1.0 - self._kernel.sum() + np.fft.fftn(self._kernel)

    @cached_property
    def _spectrum(self) -> tuple[float, float]:
        """(rho, lambda_min)."""
        if self._eigenvalues is not None:
            norm = _largest_but_first(self._eigenvalues)
            return _snapped(norm, self.nodes), float(np.min(np.real(self._eigenvalues)))
        lowest = -float(largest_eigenvalues(-(self.matrix + self.matrix.T) / 2, 1)[0])
        if not self.doubly_stochastic:
            return max(second_modulus([self.matrix]), second_modulus([self.pushing])), lowest
        if not self.symmetric:
            return _snapped(disagreement_norm([self.matrix]), self.nodes), lowest
        second = self.second_eigenvalue if self.connected else 1.0
        return _snapped(max(abs(second), abs(lowest)), self.nodes), lowest


class Gossip(NamedTuple):
    """The rounds of an exchange.

    Attributes:
        scale: 1/(1 − σ), of every flow.
        weights: ω_k of each round after the first.
        share: of the way to P_K(W) s that is taken: 1, or ½.
    """

    scale: float
    weights: tuple[float, ...]
    share: float


class Accelerated(Graph):
    """A graph whose exchange is W̃ in several rounds over its links; `graph.accelerated(rounds)` makes one.

    With the eigenvalues of W between λ_min and λ₂, except 1, and σ = (λ₂ + λ_min)/2, ν = 2 (1 − σ)/(λ₂ − λ_min), the
    polynomial P_K with P_K(1) = 1 that is least on [λ_min, λ₂] is T_K scaled to that interval, where |P_K| ≤ 1/T_K(ν).
    In flows δ(p) = (W − I) p,

        p₁ = s + δ(s)/(1 − σ),   p_{k+1} = ω_k (p_k + δ(p_k)/(1 − σ)) + (1 − ω_k) p_{k−1},
        ω_k = 2 ν T_k(ν)/T_{k+1}(ν).

    W̃ = P_K(W) is symmetric, and its rows sum to one; entries may be negative. Where 1/T_K(ν) ≥ 1/3 it has, or may have,
    an eigenvalue at which Exact Diffusion diverges. Then (I + W̃)/2 is taken. Consensus in such rounds is from Arioli
    and Scott (2014). Scaman, Bach, Bubeck, Lee and Massoulié (2017) put it into distributed optimization.

    `matrix` holds the weights of a round. The spectrum is that of W̃.
    """

    def __init__(self, base: Graph, rounds: int, *, lazy: bool = False) -> None:
        if base.rounds > 1:
            raise ValueError(f"{base.name} is accelerated already: call accelerated on the graph itself.")
        if not base.symmetric or not base.connected:
            need = "connected graph" if base.symmetric else "symmetric W"
            raise ValueError(f"accelerated needs a {need}, which {base.name} does not have: choose another graph.")
        values = {"base": base, "name": f"accelerated {base.name}", "positions": base.positions}
        values |= {"matrix": base.matrix, "pushing": base.pushing, "_rounds": rounds, "_lazy": lazy}
        for name, value in values.items():
            object.__setattr__(self, name, value)

    base: Graph
    _rounds: int
    _lazy: bool

    @property
    def rounds(self) -> int:
        return self._rounds

    @property
    def words(self) -> str:
        return f"{super().words}, {self.rounds} rounds in an exchange"

    @property
    def W(self) -> Float[np.ndarray, "nodes nodes"]:
        """W̃ as a new dense array."""
        s = np.eye(self.nodes)
        before, moved = np.zeros_like(s), self.gossip.scale * self._flow(s)
        for ω in self.gossip.weights:
            before, moved = moved, ω * (moved + self.gossip.scale * self._flow(s + moved)) + (1 - ω) * before
        return s + self.gossip.share * moved

    @property
    def R(self) -> Float[np.ndarray, "nodes nodes"]:
        return self.W

    @property
    def C(self) -> Float[np.ndarray, "nodes nodes"]:
        return self.W

    def _flow(self, s: Float[np.ndarray, "nodes columns"]) -> Float[np.ndarray, "nodes columns"]:
        return self.matrix @ s - s

    @property
    def lambda_min(self) -> float:
        """A lower bound on the smallest eigenvalue of W̃, which an odd number of rounds attains."""
        return self._spectrum[1]

    @cached_property
    def lambda_min_bound(self) -> float:
        return self._spectrum[1]

    @cached_property
    def gossip(self) -> Gossip:
        """The rounds of an exchange."""
        weights: list[float] = []
        ω = 2.0
        for _ in range(1, self.rounds):
            ω = 1 / (1 - ω / 4 / self._ν**2)
            weights.append(ω)
        lazy = self._lazy or -self._peak <= LEAST + 1e-9
        return Gossip(1 / (1 - self._middle), tuple(weights), 0.5 if lazy else 1.0)

    def lazy(self) -> Graph:
        return Accelerated(self.base, self.rounds, lazy=True)

    @cached_property
    def _middle(self) -> float:
        """σ"""
        return (self.base.second_eigenvalue + self.base.lambda_min) / 2

    @cached_property
    def _ν(self) -> float:
        width = self.base.second_eigenvalue - self.base.lambda_min
        return 2 * (1 - self._middle) / width if width > 1e-12 else math.inf

    @cached_property
    def _peak(self) -> float:
        """1/T_K(ν)"""
        return 0.0 if math.isinf(self._ν) else 1 / math.cosh(min(self.rounds * math.acosh(self._ν), 700.0))

    @cached_property
    def _spectrum(self) -> tuple[float, float]:
        rest = 1 - self.gossip.share
        return rest + self.gossip.share * self._peak, rest - self.gossip.share * self._peak

    @cached_property
    def _digest(self) -> tuple[int, bytes]:
        nodes, content = self.base._digest
        return nodes, content + repr((self.rounds, self.gossip.share)).encode()


@dataclass(frozen=True, repr=False)
class GraphSequence:
    """A graph that changes with the step: the k-th move of a level uses `phases[k % period]`, or a drawn phase.

    All messages of a move, such as both of gradient tracking, go over the same phase.

    Args:
        phases: the graphs, all with the same number of nodes; only their union must be connected.
        name: what the sequence is called in figures, traces and messages.
        order: `"cyclic"` repeats the phases in order; `"random"` draws one for each exchange by the run's key, each
            with the same probability and independently of those before.
    """

    phases: tuple[Graph, ...]
    name: str = field(default="cycle", compare=False)
    order: Literal["cyclic", "random"] = "cyclic"

    def __post_init__(self) -> None:
        if self.order not in ("cyclic", "random"):
            raise ValueError(f"order={self.order!r} is not known: choose 'cyclic' or 'random'.")
        if not self.phases:
            raise ValueError("phases is empty; give at least one Graph.")
        for phase in self.phases:
            if not isinstance(phase, Graph):
                raise ValueError(f"phases holds a {type(phase).__name__}; give Graphs, such as graphs.ring(8).")
            if phase.rounds > 1:
                raise ValueError(f"phases holds {phase.name} of {phase.rounds} rounds: give graphs of one round.")
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
    def words(self) -> str:
        """What it is, for people."""
        how = f"one of {self.period} a step" if self.order == "random" else f"repeated after {self.period} steps"
        return f"{self.name}, {self.nodes} nodes, {how}"

    def _repr_html_(self) -> str:
        return _html(repr(self), self.nodes, self.draw)

    @property
    def nodes(self) -> int:
        """The number of nodes N."""
        return self.phases[0].nodes

    @property
    def period(self) -> int:
        """The number of phases τ."""
        return len(self.phases)

    @cached_property
    def changes(self) -> bool:
        """Whether its phases differ."""
        return len(set(self.phases)) > 1

    @cached_property
    def damping(self) -> float:
        """κ, by which Exact Diffusion damps its carry on the sequence (docs/evidence/one-peer.md).

        With τ phases it is 1/τ if they are drawn and 1/(2τ) in cyclic order. For drawn matchings that pair any two
        nodes equally often, so that E W = (1 − p) I + p 11ᵀ/N, it is p/2.
        """
        if not self.changes:
            return 1.0
        return default_damping([phase.matrix for phase in self.phases], random=self.order == "random")

    @property
    def rounds(self) -> int:
        """How many rounds of messages an exchange takes: 1."""
        return 1

    @property
    def symmetric(self) -> bool:
        """Whether every phase is undirected."""
        return all(phase.symmetric for phase in self.phases)

    @property
    def doubly_stochastic(self) -> bool:
        """Whether every phase has R = C = W."""
        return all(phase.doubly_stochastic for phase in self.phases)

    @property
    def connected(self) -> bool:
        """Whether the union of the phases is connected."""
        return self._components == 1

    @cached_property
    def degrees(self) -> Float[np.ndarray, " nodes"]:
        """(nodes,) the number of neighbours each node receives from in a step, averaged over the phases."""
        return np.mean([phase.degrees for phase in self.phases], axis=0)

    @cached_property
    def rho(self) -> float:
        """‖W_{τ−1} … W_0 − 11ᵀ/N‖₂^(1/τ): the contraction per step; zero if one period averages exactly.

        With one-way links it is the second largest modulus of an eigenvalue of the products of R and of C, per step. In
        random order it is that of the root mean square, ‖E WᵀW − 11ᵀ/N‖₂^(1/2).
        """
        if not self.doubly_stochastic:
            pulls, pushes = [phase.matrix for phase in self.phases], [phase.pushing for phase in self.phases]
            return max(second_modulus(pulls), second_modulus(pushes)) ** (1.0 / self.period)
        if self.order == "random":
            mean_square = sum(phase.matrix.T @ phase.matrix for phase in self.phases) / self.period
            return _snapped(disagreement_norm([sparse.csr_array(mean_square)]), self.nodes) ** 0.5
        spectra = [phase._eigenvalues for phase in self.phases]
        closed_forms = [values for values in spectra if values is not None]
        if len(closed_forms) == self.period and len({values.shape for values in closed_forms}) == 1:
            norm = _largest_but_first(np.prod(closed_forms, axis=0))
        else:
            norm = disagreement_norm([phase.matrix for phase in self.phases])
        return _snapped(norm, self.nodes) ** (1.0 / self.period)

    @property
    def spectral_gap(self) -> float:
        """1 − ρ."""
        return 1.0 - self.rho

    @property
    def lambda_min(self) -> float:
        """The smallest `lambda_min` of the phases."""
        return min(phase.lambda_min for phase in self.phases)

    @property
    def lambda_min_bound(self) -> float:
        """The smallest `lambda_min_bound` of the phases."""
        return min(phase.lambda_min_bound for phase in self.phases)

    def accelerated(self, rounds: int) -> GraphSequence:
        """Raises ValueError: a polynomial of W needs a W that stays the same. One round is the sequence itself."""
        if rounds != 1:
            raise ValueError(f"{self.name} changes, and accelerated needs one W: call it on a graph that does not.")
        return self

    def lazy(self) -> GraphSequence:
        """The sequence with (I + W)/2 in every phase."""
        return GraphSequence(tuple(phase.lazy() for phase in self.phases), f"lazy {self.name}", self.order)

    def summary(self) -> str:
        """One line with name, number of nodes, period and ρ."""
        how = f"{self.period} phases at random" if self.order == "random" else f"period {self.period}"
        return f"{self.name}, N = {self.nodes}, {how}, ρ = {self.rho:.4g}"

    def draw(self, ax: Sequence[Axes] | None = None) -> Figure:
        """Draws the phases side by side, in the sequence of axes `ax` if given, and returns the matplotlib figure."""
        return draw_sequence([phase._sketch() for phase in self.phases], self.summary(), ax)

    plot = draw

    @cached_property
    def _components(self) -> int:
        union = reduce(operator.add, [abs(phase.matrix) for phase in self.phases])
        return int(connected_components(union, directed=True, connection="strong")[0])


Topology: TypeAlias = Graph | GraphSequence


@dataclass(frozen=True)
class Levels:
    """A graph per level, for `solve(problem, method, Levels(...))`.

    Args:
        x: the graph of the upper level.
        y: the graph of the lower level; None uses that of x.
        z: the graph of the auxiliary level; None uses that of y.
    """

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
        """The number of nodes N."""
        return self.x.nodes

    def distinct(self) -> tuple[list[Topology], tuple[int, int, int]]:
        """The distinct graphs, and the indices among them of those of x, y and z."""
        graphs = list(dict.fromkeys((self.x, self.y, self.z)))
        return graphs, (graphs.index(self.x), graphs.index(self.y), graphs.index(self.z))


def _stochastic(matrix: sparse.csr_array, pushing: sparse.csr_array | None) -> tuple[sparse.csr_array, ...]:
    """R and C; both are W where it is doubly stochastic."""
    if pushing is None or pushing is matrix:
        W = symmetrized(doubly_stochastic(matrix))
        return W, W
    R, C = row_and_column_stochastic(matrix, pushing)
    return (R, R) if np.array_equal(R.data, C.data) else (R, C)


def _largest_but_first(eigenvalues: Complex[np.ndarray, "*sides"]) -> float:
    return float(np.max(np.abs(eigenvalues.ravel()[1:]), initial=0.0))


def _snapped(norm: float, nodes: int) -> float:
    """Zero if the value is a rounding error, which a root over the period would otherwise magnify."""
    return float(norm) if norm > nodes * np.finfo(np.float64).eps else 0.0


def _html(words: str, nodes: int, draw: Callable[[], Figure]) -> str:
    return table(words, ()) + (picture(draw, words) if nodes <= DRAWN else "")
