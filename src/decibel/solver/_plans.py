"""Which network? Every runnable combination of graph, strategy, rounds, code and local steps, with its predicted time.

The model is a quadratic with the same curvatures, between L/χ and L, at every node. There a strategy is a linear
recursion for each eigenvalue λ of W and each curvature, and its rate is the largest root (docs/evidence/networks.md).
What the model leaves out (curvatures that differ, lost messages, slow nodes) enters by measured factors.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import NamedTuple

import networkx as nx
import numpy as np
from jaxtyping import Float

from ..graphs import _families as families
from ..graphs._graph import Graph, GraphSequence, Topology
from ..graphs._types import Networkx
from ..methods._catalog import CATALOG
from ..methods._method import Method, Rate
from ..methods._single_level import SingleLevel
from ..methods._sparkle import sparkle
from ..strategies._local import with_local_steps
from ..strategies._table import Strategy, strategy
from ..strategies.privacy import quantize
from ._complexity import positive_integer
from ._delays import LEAST_SELF_WEIGHT, wave_step_size

# Measured by docs/figures/networks.py; a test compares them with its results.
STRETCH = 1.25  # exchanges of runs whose nodes differ in curvature, over the model's
LOST = {"edge-ed": 0.2, "push-pull": 0.8, "wave": 1.0}  # the power of 1/(1 − loss) by which exchanges grow
MOST_LOST = {"edge-ed": 0.5}  # beyond which they grow much faster

LOCAL_STEPS = (1, 4, 16)
ROUNDS = (2, 4, 8, 16)
BITS = (None, 4)
MOST_CONDITION = 1e9  # beyond which the factor of an exchange is too near to one to be computed
MOST_PAIRED = 512  # nodes of random matchings, which have as many phases
SCALE = 4  # bytes of the scale of a vector in code
STEP_SIZES = np.geomspace(0.003, 1.9, 48)  # times L
SMALLER_STEPS = np.geomspace(1e-5, 0.003, 24)  # where none of these converges, or the smallest is the best
CURVATURES, EIGENVALUES = 9, 17  # looked at between the smallest and the largest

Grid = Float[np.ndarray, "steps curvatures eigenvalues"]
Exchange = tuple[Strategy, Topology, int, int, int | None]  # strategy, graph, local steps, rounds, bits


@dataclass(frozen=True)
class Links:
    """What connects the nodes, and how fast they are.

    Args:
        bandwidth: the bytes per second that a node sends, to all its neighbours together.
        latency: the seconds that a message takes in addition.
        loss: the share of messages that are lost, one way and unnoticed.
        one_way: whether a node may be heard by nodes that it does not hear.
        slowest: how many times slower one node is than the others.
    """

    bandwidth: float = math.inf
    latency: float = 0.0
    loss: float = 0.0
    one_way: bool = False
    slowest: float = 1.0

    def __post_init__(self) -> None:
        if not self.bandwidth > 0 or not 0 <= self.latency < math.inf:
            raise ValueError(f"bandwidth={self.bandwidth} must be positive, and latency={self.latency} not negative.")
        if not 0 <= self.loss < 1 or not 1 <= self.slowest < math.inf:
            raise ValueError(f"loss={self.loss} must be at least 0 and below 1, and slowest={self.slowest} at least 1.")


class Plan(NamedTuple):
    """A combination that can be run, and what it is predicted to take.

    Attributes:
        strategy: the strategy of all levels.
        graph: the graph of all levels, accelerated where `rounds` is above 1.
        local_steps: how many steps a node takes for each exchange.
        rounds: how many rounds of messages make up an exchange.
        bits: bits per entry of a compressed message; None sends numbers in full precision.
        step_size: the step size of the prediction, times the largest curvature.
        exchanges: how many exchanges it takes to the target.
        bytes: how many bytes the busiest node sends by then.
        seconds: how long it takes to the target.
        single: whether there is a single level.
    """

    strategy: str
    graph: Topology
    local_steps: int
    rounds: int
    bits: int | None
    step_size: float
    exchanges: float
    bytes: float
    seconds: float
    single: bool

    def make(self, **rates: Rate) -> Method:
        """The method, with the catalogue's step sizes unless given."""
        moved_by = with_local_steps(strategy(self.strategy), self.local_steps)
        if self.bits is not None:
            moved_by = quantize(moved_by, self.bits)
        if self.single:
            return SingleLevel(mixing=moved_by, **{"theta": 1.0, **CATALOG["ed"].defaults, **rates})
        return sparkle(moved_by, **{**CATALOG["sparkle-ed"].defaults, **rates})


# By x (step times curvature), an eigenvalue λ of W, and τ local steps.


def root(name: str, x: Grid, λ: Grid, steps: int) -> Grid:
    """The largest modulus of the roots of a strategy's recursion.

    Its row of the table, s⁺ = C s − A x s − B w and w⁺ = w + B s⁺, has those of t² − (1 + C − A x − B²) t + C − A x.
    With local steps, of ED or wave, x stands for 1 − (1 − x)^τ. Their carry or flows count by the mean of the powers of
    1 − x below τ.
    """
    row = strategy(name)
    left, total = _local(x, steps)
    share = total / steps
    if row.asynchronous:
        λ = 1 - share * (1 - λ)
        share = 1.0
    A, B2, C = (np.polynomial.Polynomial(coefficients)(λ) for coefficients in (row.A, row.B2, row.C))
    product_of_roots = C - A * (1 - left)
    half_their_sum = (1 + product_of_roots - share * B2) / 2
    difference = np.sqrt(half_their_sum**2 - product_of_roots + 0j)
    return np.maximum(abs(half_their_sum + difference), abs(half_their_sum - difference))


def _local(x: Grid, steps: int) -> tuple[Grid, Grid]:
    """What τ steps f ← (1 − x) f + c make of f and of c: (1 − x)^τ, and the sum of its powers below τ."""
    powers = [(1 - x) ** k for k in range(steps + 1)]
    return powers[-1], np.sum(powers[:-1], axis=0)


TWO_WAY = ("ed", "edge-ed", "gt", "wave")


def _damped(x: Grid, q: Grid, damping: float, steps: int) -> Grid:
    """φ = A s + g c;  s⁺ = φ − Π φ;  c⁺ = c − κ Π φ/τ, in mean square, where Π = Π² = I − W_t is q on average.

    E‖s‖², E⟨s, c⟩ and E‖c‖² determine each other.
    """
    A, g = _local(x, steps)
    κ = damping / steps
    square = np.stack(np.broadcast_arrays(A**2, 2 * A * g, g**2 + 0 * q), -1)  # of φ, by these three
    product_ = np.stack(np.broadcast_arrays(0 * A, A, g + 0 * q), -1)  # of φ and c
    q = q[..., None]
    moments = np.stack([(1 - q) * square, (1 - q) * product_, [0, 0, 1] - 2 * κ * q * product_ + κ**2 * q * square], -2)
    return abs(np.linalg.eigvals(moments)).max(-1) ** 0.5


def _over_phases(x: Grid, graph: GraphSequence) -> Grid:
    """Gradient tracking, whose circulant phases have their eigenvectors in common: the root of a step of the period."""
    period = np.eye(2)
    for phase in graph.phases:
        λ = np.fft.fft(np.asarray(phase.matrix[[0], :].todense()).ravel())[None, None, 1:]
        above = np.stack([λ * (1 - λ * x), -(λ**2) + 0 * x], -1)
        below = np.stack([(λ - 1) * x, λ + 0 * x], -1)
        period = np.stack([above, below], -2) @ period
    return abs(np.linalg.eigvals(period)).max(-1) ** (1 / graph.period)


class Contraction(NamedTuple):
    """The least factor of an exchange over step sizes, and the step size times L."""

    factor: float
    step_size: float


@lru_cache(maxsize=4096)
def contraction(name: str, graph: Topology, condition: float, steps: int) -> Contraction:
    """By the model, for curvatures between L/χ and L."""
    best = _contraction(name, graph, condition, steps, STEP_SIZES)
    if best.step_size > STEP_SIZES[0]:
        return best
    return _contraction(name, graph, condition, steps, SMALLER_STEPS)


def _contraction(
    name: str, graph: Topology, condition: float, steps: int, step_sizes: Float[np.ndarray, " steps"]
) -> Contraction:
    x = step_sizes[:, None, None] * np.geomspace(1 / condition, 1, CURVATURES)[None, :, None]
    if not isinstance(graph, GraphSequence):
        apart = root(name, x, _eigenvalues(graph)[None, None, :], steps)
    elif name == "ed":
        mean = families.from_matrix(sum(phase.matrix for phase in graph.phases) / graph.period)
        apart = _damped(x, 1 - _eigenvalues(mean)[None, None, :], graph.damping, steps)
    else:
        apart = _over_phases(x, graph)
    together = abs(1 - x) ** steps
    factors = np.maximum(apart.max((1, 2)), together.max((1, 2)))
    if name == "wave" and isinstance(graph, Graph):
        factors = np.where(_late(graph, steps) > step_sizes, factors, math.inf)
    best = int(factors.argmin())
    return Contraction(float(factors[best]), float(step_sizes[best]))


def _eigenvalues(graph: Graph) -> Grid:
    """Those of W where nodes differ: all of a circulant digraph, and points between the extremes of others."""
    if graph.symmetric:
        return np.linspace(graph.lambda_min, graph.rho, EIGENVALUES)
    return np.fft.fft(np.asarray(graph.matrix[[0], :].todense()).ravel())[1:]


def _late(graph: Graph, steps: int) -> float:
    """What α L of wave must be below where messages are late; zero if there is no such step size."""
    least = float(graph.matrix.diagonal().min())
    return wave_step_size(least, quadratic=True, local_steps=steps) if least > LEAST_SELF_WEIGHT else 0.0


def _exchanges(nodes: int, degree: int, links: Links) -> Iterator[Exchange]:
    """Those that can be run, and are exact on these links."""
    if links.one_way:
        if not links.loss:
            yield strategy("gt"), families.one_peer_exponential(nodes), 1, 1, None
        for digraph in _digraphs(nodes, degree):
            yield strategy("push-pull"), digraph, 1, 1, None  # which pushes running totals, so that loss does no harm
        return
    graphs = [graph for graph in undirected(nodes, degree) if busiest(graph) <= degree]
    for name, graph, steps, bits in product(TWO_WAY, graphs, LOCAL_STEPS, BITS):
        moved_by = strategy(name)
        exact = not links.loss or (moved_by.keeps_link_flows and links.loss <= MOST_LOST.get(name, 1.0))
        runs = (steps == 1 or name in ("ed", "wave")) and (bits is None or (steps == 1 and name != "edge-ed"))
        if exact and runs:
            yield moved_by, graph if _stable(moved_by, graph) else graph.lazy(), steps, 1, bits
    if not links.loss:
        for sequence, steps in product(_one_peer(nodes), LOCAL_STEPS):
            yield strategy("ed"), sequence, steps, 1, None
        for graph, rounds in product(graphs, ROUNDS):
            yield strategy("ed"), graph.accelerated(rounds), 1, rounds, None


def _digraphs(nodes: int, degree: int) -> list[Graph]:
    """Node i sends to i + 1, i + 2, i + 4, …: as far as the degree allows, and fewer."""
    hops = [2**k for k in range(min(degree, (nodes - 1).bit_length()))]
    graphs: list[Graph] = []
    for count in range(1, len(hops) + 1):
        digraph: Networkx = nx.DiGraph()
        digraph.add_nodes_from(range(nodes))
        digraph.add_edges_from((i, (i + hop) % nodes) for i in range(nodes) for hop in hops[:count])
        graphs.append(families.directed(digraph, f"one-way, hops {', '.join(map(str, hops[:count]))}"))
    return graphs


def _one_peer(nodes: int) -> list[GraphSequence]:
    """Pairs of nodes, drawn for each exchange."""
    cube = [families.one_peer_hypercube(nodes)] if nodes & (nodes - 1) == 0 else []
    return cube + ([families.random_matchings(nodes)] if 2 < nodes <= MOST_PAIRED else [])


def _stable(moved_by: Strategy, graph: Graph) -> bool:
    if moved_by.asynchronous:
        return _late(graph, 1) > STEP_SIZES[0]
    return all(moved_by.stable_at(λ) for λ in (graph.lambda_min, graph.rho))


def plans(
    nodes: int,
    dimension: tuple[int, int],
    links: Links,
    *,
    compute: float = 0.0,
    degree: int | None = None,
    condition: float = 10.0,
    target: float = 1e-3,
    single: bool = False,
    itemsize: int = 4,
    bytes_per_step: float | None = None,
) -> tuple[Plan, ...]:
    """The combinations of graph, strategy, rounds, code and local steps that are exact on these links, fastest first.

    The predicted time is that of all exchanges, one after another. An exchange takes `local_steps` times `compute`, and
    for each round a latency and the bytes to all neighbours. The number of exchanges follows from the rate on
    quadratics with that `condition` number, and from measured factors. Noise is not in it: batches are full.

    Args:
        nodes: how many nodes.
        dimension: (p, q), the numbers of entries of x and y; q is not counted with `single`.
        links: bandwidth, latency, loss, direction, and the slowest node.
        compute: the seconds of a step at a node that is not slow.
        degree: the largest number of neighbours of a node in a step. With one peer a step it meets others later.
        condition: the condition number, the largest curvature over the smallest.
        target: the share of the first distance from the solution that is to be left.
        single: whether there is a single level.
        itemsize: bytes per entry.
        bytes_per_step: the most that a node may send per step; local steps send nothing.
    """
    nodes = positive_integer("nodes", nodes)
    if nodes == 1:
        raise ValueError("nodes=1 has no neighbour to send to: give at least 2.")
    most = nodes - 1 if degree is None else positive_integer("degree", degree)
    if not 1 <= condition <= MOST_CONDITION or not 0 < target < 1:
        raise ValueError(
            f"condition={condition} must lie between 1 and {MOST_CONDITION:g}, and target={target} between 0 and 1."
        )
    if not 0 <= compute < math.inf:
        raise ValueError(f"compute={compute} must be finite and not negative.")
    p, q = _sizes(dimension)
    entries, vectors = (p, 1) if single else (p + 2 * q, 3)
    predicted: list[Plan] = []
    diverge = False
    for moved_by, graph, steps, rounds, bits in _exchanges(nodes, most, links):
        factor, step_size = contraction(moved_by.name, graph, float(condition), steps)
        if not factor < 1:
            diverge = True
            continue
        repeated = (1 - links.loss) ** -LOST.get(moved_by.name, 0.0)
        exchanges = max(1.0, STRETCH * repeated * math.log(target) / math.log(max(factor, 1e-12)))
        size = entries * itemsize if bits is None else entries * bits / 8 + SCALE * vectors
        copies = (moved_by.message_size or (1, 0))[0]
        sent = busiest(graph) * rounds * copies * size
        if bytes_per_step is not None and sent > steps * bytes_per_step:
            continue
        waiting = 1 + (links.slowest - 1) / (nodes if moved_by.asynchronous else 1)
        latency = rounds * len(moved_by.messages) * links.latency
        seconds = steps * compute * waiting + latency + sent / links.bandwidth
        cost = (exchanges, exchanges * sent, exchanges * seconds)
        predicted.append(Plan(moved_by.name, graph, steps, rounds, bits, step_size, *cost, single))
    if not predicted:
        budget = "" if bytes_per_step is None else f" and bytes_per_step={bytes_per_step:g}"
        has = "converges with" if diverge else "has"
        raise ValueError(
            f"no exact combination on {nodes} nodes {has} at most degree={most} neighbours{budget}: allow more."
        )
    return tuple(sorted(predicted, key=lambda plan: (plan.seconds, plan.bytes)))


def _sizes(dimension: tuple[int, int]) -> tuple[int, int]:
    """p and q, which is zero where there is no y."""
    try:
        p, q = map(operator.index, dimension)
    except (TypeError, ValueError):
        p, q = 0, 0
    if p < 1 or q < 0:
        raise ValueError(f"dimension={dimension!r} must be (p, q), the numbers of entries of x and y.")
    return p, q


def busiest(graph: Topology) -> int:
    """The largest number of neighbours of a node."""
    return math.ceil(graph.degrees.max(initial=0))


@lru_cache(maxsize=16)
def undirected(nodes: int, most: int) -> tuple[Graph, ...]:
    """Real graphs of about `most` neighbours and fewer; `complete` only where its edges are few enough to list."""
    regular = [d for d in (3, 4, 6, 8, 12, 16) if d < min(most + 1, nodes - 1) and nodes * d % 2 == 0]
    graphs = [families.ring(nodes), families.exponential(nodes), *(_regular(nodes, d) for d in regular)]
    rows = max((r for r in range(3, math.isqrt(nodes) + 1) if nodes % r == 0), default=0)
    graphs += [families.torus(rows, nodes // rows)] if rows and most >= 4 else []
    graphs += [families.hypercube(nodes)] if nodes & (nodes - 1) == 0 else []
    graphs += [families.complete(nodes)] if nodes - 1 <= min(most, 511) else []
    return tuple(dict.fromkeys(graphs))  # of few nodes some are the same


def _regular(nodes: int, degree: int) -> Graph:
    drawn = (nx.random_regular_graph(degree, nodes, seed) for seed in range(100))
    return families.from_networkx(next(filter(nx.is_connected, drawn)), name=f"random {degree}-regular")
