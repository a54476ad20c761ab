"""Families of graphs, and graphs from networkx or from a matrix."""

from __future__ import annotations

import math
import operator
import random
from collections.abc import Callable, Sequence
from typing import Literal, cast

import networkx as nx
import numpy as np
from jaxtyping import Float
from scipy import sparse

from ..core._numbers import is_number
from . import _drawing as drawing
from ._coloring import Pairs, edge_coloring
from ._graph import Graph, GraphSequence, Topology
from ._types import Matrix, Networkx
from .weights import Rule, laplacian, mixing_matrix, one_way

TRIES = 100
ALONE = 12  # nodes expected to have no neighbour, from which no seed connects a graph: about e⁻¹² of them do
DEFAULT = "lazy-metropolis"
MOST_PHASED = 2**23  # nodes times phases, all of which a sequence holds: about a gigabyte


def ring(nodes: int, *, weights: str | Rule = DEFAULT) -> Graph:
    """A ring: every node is joined to the next and the previous one.

    Args:
        nodes: the number of nodes.
        weights: a rule of `decibel.weights`, by name or as a function of the networkx graph.
    """
    return _weighed(nx.cycle_graph(_count("nodes", nodes)), "ring", weights)


def path(nodes: int, *, weights: str | Rule = DEFAULT) -> Graph:
    """A path: a ring with one edge removed.

    Args:
        nodes: the number of nodes.
        weights: a rule of `decibel.weights`, by name or as a function of the networkx graph.
    """
    nodes = _count("nodes", nodes)
    return _weighed(nx.path_graph(nodes), "path", weights, drawing.lattice(1, nodes))


def star(nodes: int, *, weights: str | Rule = DEFAULT) -> Graph:
    """A star: node 0 is joined to every other node.

    Args:
        nodes: the number of nodes, the centre included.
        weights: a rule of `decibel.weights`, by name or as a function of the networkx graph.
    """
    nodes = _count("nodes", nodes)
    return _weighed(nx.star_graph(nodes - 1), "star", weights, drawing.star(nodes))


def complete(nodes: int, *, weights: str | Rule = "metropolis") -> Graph:
    """The complete graph; with the default weights, 1/N each, one exchange averages exactly.

    Args:
        nodes: the number of nodes.
        weights: a rule of `decibel.weights`, by name or as a function of the networkx graph.
    """
    return _weighed(nx.complete_graph(_count("nodes", nodes)), "complete", weights)


def torus(rows: int, columns: int | None = None, *, weights: str | Rule = DEFAULT) -> Graph:
    """A two-dimensional grid that wraps around; node r · columns + c is in row r and column c.

    Args:
        rows: the number of rows.
        columns: the number of columns; None is as many as rows.
        weights: a rule of `decibel.weights`, by name or as a function of the networkx graph.
    """
    rows, columns = _sides(rows, columns)
    graph = nx.grid_2d_graph(rows, columns, periodic=True)
    flat = min(rows, columns) < 3
    places = drawing.circle(rows * columns) if flat else drawing.doughnut(rows, columns)
    return _weighed(graph, f"torus {rows}×{columns}", weights, places)


def grid(rows: int, columns: int | None = None, *, weights: str | Rule = DEFAULT) -> Graph:
    """A two-dimensional grid; node r · columns + c is in row r and column c.

    Args:
        rows: the number of rows.
        columns: the number of columns; None is as many as rows.
        weights: a rule of `decibel.weights`, by name or as a function of the networkx graph.
    """
    rows, columns = _sides(rows, columns)
    graph = nx.grid_2d_graph(rows, columns)
    return _weighed(graph, f"grid {rows}×{columns}", weights, drawing.lattice(rows, columns))


def hypercube(nodes: int, *, weights: str | Rule = DEFAULT) -> Graph:
    """A hypercube: nodes whose indices differ in one bit are joined.

    Args:
        nodes: the number of nodes, a power of two.
        weights: a rule of `decibel.weights`, by name or as a function of the networkx graph.
    """
    nodes = _count("nodes", nodes)
    dimension = nodes.bit_length() - 1
    if nodes != 2**dimension:
        raise ValueError(
            f"nodes of a hypercube must be a power of two, not {nodes}; use {2**dimension} or {2 ** (dimension + 1)}."
        )
    graph = nx.hypercube_graph(dimension) if dimension else nx.empty_graph(1)
    return _weighed(graph, "hypercube", weights, drawing.cube(dimension))


def exponential(nodes: int, *, weights: str | Rule = DEFAULT) -> Graph:
    """The static exponential graph: node i is joined to i ± 1, i ± 2, i ± 4, … (mod N).

    Args:
        nodes: the number of nodes.
        weights: a rule of `decibel.weights`, by name or as a function of the networkx graph.
    """
    nodes = _count("nodes", nodes)
    return _weighed(nx.circulant_graph(nodes, _hops(nodes)), "exponential", weights)


def one_peer_exponential(nodes: int) -> GraphSequence:
    """The one-peer exponential graph: at step k node i averages with node i + 2^(k mod τ), τ = ⌈log₂ N⌉.

    Directed, with one message per node and step; if N is a power of two, τ steps average exactly.

    Args:
        nodes: the number of nodes.
    """
    nodes = _count("nodes", nodes)
    indices = np.arange(nodes)
    phases: list[Graph] = []
    for hop in _hops(nodes) or [0]:
        rows, columns = np.tile(indices, 2), np.concatenate([indices, (indices + hop) % nodes])
        matrix = sparse.csr_array((np.full(2 * nodes, 0.5), (rows, columns)), shape=(nodes, nodes))
        phases.append(Graph(matrix, f"one-peer exponential, hop {hop}", disconnected=True))
    return GraphSequence(tuple(phases), "one-peer exponential")


def one_peer_hypercube(nodes: int, *, order: Literal["random", "cyclic"] = "random") -> GraphSequence:
    """The one-peer hypercube: in an exchange every node averages with the node whose index differs in one bit.

    Undirected, with one message per node and step; τ = log₂ N exchanges in cyclic order average exactly.

    Args:
        nodes: the number of nodes, a power of two.
        order: `"random"` draws the bit of each exchange by the run's key, `"cyclic"` goes through the bits in turn.
    """
    nodes = _count("nodes", nodes)
    dimension = nodes.bit_length() - 1
    if nodes != 2**dimension:
        raise ValueError(
            f"nodes of a one-peer hypercube must be a power of two, not {nodes}: use random_matchings({nodes}), or "
            "matchings(graph) for the edges of any undirected graph."
        )
    indices = np.arange(nodes)
    pairs = [np.stack([indices, indices ^ (1 << bit)], 1)[indices & (1 << bit) == 0] for bit in range(dimension)]
    return _one_peer(nodes, pairs, "one-peer hypercube", order, drawing.cube(dimension))


def random_matchings(nodes: int, seed: int = 0, *, order: Literal["random", "cyclic"] = "random") -> GraphSequence:
    """Random pairs: in an exchange every node averages with one other node, any of them with the same probability.

    The phases are a random relabelling of the round-robin tournament: N − 1 perfect matchings in which any two nodes
    meet once, so that E W = (1 − p) I + p 11ᵀ/N for a phase drawn among them, with p = N/(2(N − 1)). With an odd number
    of nodes there are N matchings, one node rests in each, and p is 1/2.

    Args:
        nodes: the number of nodes.
        seed: the seed of the labels.
        order: `"random"` draws the matching of each exchange by the run's key, `"cyclic"` goes through them in turn.
    """
    nodes, source = _count("nodes", nodes), _source(seed)
    last = nodes - 1 + nodes % 2  # a bye where the number is odd
    _validate_phases(nodes, last, "one_peer_hypercube, or matchings(graph) of a graph with few neighbours")
    names = source.sample(range(nodes), nodes)
    rounds: list[Pairs] = []
    for turn in range(last):
        met = [((turn + k) % last, (turn - k) % last) for k in range(1, (last + 1) // 2)]
        met += [] if nodes % 2 else [(turn, last)]
        rounds.append(np.array([(names[a], names[b]) for a, b in met], int).reshape(-1, 2))
    return _one_peer(nodes, rounds if nodes > 1 else [], "random matchings", order)


def matchings(graph: Graph, *, order: Literal["random", "cyclic"] = "random") -> GraphSequence:
    """One neighbour at a time: the edges of an undirected graph, split into matchings, with one matching per exchange.

    A node of degree d averages with each of its neighbours in one phase and rests in the others. The number of phases
    is the largest degree, or one more unless the graph is bipartite (Vizing's theorem, by Misra and Gries, 1992).

    Args:
        graph: an undirected graph, whose weights do not matter; `from_networkx` makes one.
        order: `"random"` draws the matching of each exchange by the run's key, `"cyclic"` goes through them in turn.
    """
    if not isinstance(graph, Graph):
        raise ValueError(f"graph is a {type(graph).__name__}; give a Graph, such as ring(8) or from_networkx(graph).")
    if not graph.symmetric:
        raise ValueError(f"graph {graph.name!r} is directed: give an undirected one, as from_networkx makes it.")
    _validate_phases(graph.nodes, int(graph.degrees.max()), "a graph with fewer neighbours")
    return _one_peer(graph.nodes, edge_coloring(graph.edges), f"matchings of {graph.name}", order, graph.positions)


def _validate_phases(nodes: int, phases: int, other: str) -> None:
    if nodes * phases > MOST_PHASED:
        raise ValueError(
            f"nodes={nodes} would have {phases} phases of {nodes} nodes each, too many to hold: use {other}."
        )


def _one_peer(
    nodes: int,
    rounds: Sequence[Pairs],
    name: str,
    order: Literal["random", "cyclic"],
    places: Float[np.ndarray, "nodes 2"] | None = None,
) -> GraphSequence:
    """A phase for each round, in which every pair averages."""
    phases: list[Graph] = []
    for number, pairs in enumerate(rounds or [np.zeros((0, 2), int)]):
        paired = np.zeros(nodes)
        paired[pairs] = 0.5
        rows, columns = np.concatenate([pairs, pairs[:, ::-1]]).T
        matrix = sparse.csr_array((np.full(len(rows), 0.5), (rows, columns)), shape=(nodes, nodes))
        matrix = sparse.csr_array(matrix + sparse.diags_array(1 - paired))
        phases.append(Graph(matrix, f"{name}, matching {number}", places, disconnected=True))
    return GraphSequence(tuple(phases), name, order)


def erdos_renyi(nodes: int, probability: float, seed: int = 0, *, weights: str | Rule = DEFAULT) -> Graph:
    """A connected Erdős–Rényi graph: each pair of nodes is joined independently with the same probability.

    Args:
        nodes: the number of nodes.
        probability: of each edge.
        seed: of the edges; graphs are drawn until one is connected, at most 100 times.
        weights: a rule of `decibel.weights`, by name or as a function of the networkx graph.
    """
    nodes = _count("nodes", nodes)
    graph = _joined_at_random(nodes, probability, seed)
    return _weighed(graph, f"Erdős–Rényi p = {probability:g}", weights)


def random_digraph(nodes: int, probability: float, seed: int = 0) -> Graph:
    """A strongly connected random digraph: each ordered pair of nodes has a link independently.

    Args:
        nodes: the number of nodes.
        probability: the probability of each link.
        seed: the seed of the links. Graphs are drawn until one is strongly connected, at most 100 times.
    """
    graph = _joined_at_random(_count("nodes", nodes), probability, seed, one_way=True)
    return directed(graph, f"random digraph p = {probability:g}")


def _joined_at_random(nodes: int, probability: float, seed: int, *, one_way: bool = False) -> Networkx:
    """Each pair with the same probability, ordered pairs apart where links are `one_way`."""
    source = _source(seed)
    if not is_number(probability) or not 0 < probability <= 1:
        raise ValueError(f"probability must be above 0 and at most 1, not {probability!r}.")
    alone = nodes * (1 - probability) ** (nodes - 1)
    return _drawn_connected(
        2 * alone if one_way else alone,
        lambda: nx.fast_gnp_random_graph(nodes, probability, seed=source, directed=one_way),
        f"probability={probability:.4g} gives no {'strongly ' if one_way else ''}connected graph of {nodes} nodes",
        f"raise it above log(nodes)/nodes = {math.log(nodes) / nodes:.2g}",
    )


def geometric(nodes: int, radius: float, seed: int = 0, *, weights: str | Rule = DEFAULT) -> Graph:
    """A connected random geometric graph: nodes uniform on the unit square, joined within a distance of `radius`.

    Args:
        nodes: the number of nodes.
        radius: the largest distance between neighbours.
        seed: of the positions; graphs are drawn until one is connected, at most 100 times.
        weights: a rule of `decibel.weights`, by name or as a function of the networkx graph.
    """
    nodes, source = _count("nodes", nodes), _source(seed)
    if not is_number(radius) or not (math.isfinite(radius) and radius > 0):
        raise ValueError(f"radius must be a positive number, not {radius!r}.")
    needed = math.sqrt(math.log(nodes) / (math.pi * nodes))
    alone = nodes * max(0.0, 1 - math.pi * radius**2) ** (nodes - 1)
    graph = _drawn_connected(
        alone,
        lambda: nx.random_geometric_graph(nodes, radius, seed=source),
        f"radius={radius:.4g} gives no connected graph of {nodes} nodes",
        f"raise it above sqrt(log(nodes)/(π nodes)) = {needed:.2g}",
    )
    places = np.array([graph.nodes[node]["pos"] for node in graph])
    return _weighed(graph, f"geometric r = {radius:g}", weights, places)


def adjusted_ring(nodes: int, weight: float = 0.1) -> Graph:
    """A ring with a given weight per neighbour.

    Args:
        nodes: the number of nodes.
        weight: w_ij of each neighbour, below 1/2; w_ii = 1 − 2 `weight`.
    """
    if not is_number(weight) or not 0 < weight < 0.5:
        raise ValueError(f"weight must lie between 0 and 0.5, not {weight!r}; a node gives it to both neighbours.")
    return _weighed(nx.cycle_graph(_count("nodes", nodes)), f"ring, weight {weight:g}", laplacian(weight))


def isolated(nodes: int) -> Graph:
    """No edges: W = I.

    Args:
        nodes: the number of nodes.
    """
    identity = sparse.csr_array(sparse.eye_array(_count("nodes", nodes)))
    return Graph(identity, "isolated", disconnected=True)


def from_networkx(
    graph: Networkx, weights: str | Rule = DEFAULT, name: str | None = None, *, disconnected: bool = False
) -> Graph:
    """A graph from networkx; nodes are numbered in the order of `graph.nodes`.

    Args:
        graph: a networkx graph; edge attributes and self-loops are ignored.
        weights: a rule of `decibel.weights`, by name or as a function of the networkx graph.
        name: what the graph is called; None takes that of the networkx graph.
        disconnected: allow a graph that is not connected, as one phase of `cycle`.
    """
    if not isinstance(graph, nx.Graph):
        raise ValueError(f"graph is a {type(graph).__name__}; give a networkx graph, or use from_matrix.")
    if len(graph) == 0:
        raise ValueError("graph has no nodes; add at least one.")
    return _weighed(graph, name or graph.name or "networkx", weights, disconnected=disconnected)


def directed(digraph: Networkx, name: str | None = None, *, disconnected: bool = False) -> Graph:
    """A graph whose links are one-way, from a networkx digraph: its edge i → j lets i send to j.

    A node gives the same weight to itself and to all that send to it (R), and sends the same share to itself and to all
    that it sends to (C). Nodes are numbered in the order of `digraph.nodes`.

    Args:
        digraph: a strongly connected networkx DiGraph; edge attributes and self-loops are ignored.
        name: what the graph is called; None takes that of the networkx graph.
        disconnected: allow a graph that is not strongly connected, as one phase of `cycle`.
    """
    if not isinstance(digraph, nx.DiGraph):
        other = "use from_networkx(graph)" if isinstance(digraph, nx.Graph) else "give a networkx.DiGraph"
        raise ValueError(f"digraph is a {type(digraph).__name__}, which has no one-way links: {other}.")
    if len(digraph) == 0:
        raise ValueError("digraph has no nodes; add at least one.")
    R, C = one_way(digraph)
    return Graph(R, name or digraph.name or "digraph", disconnected=disconnected, pushing=C)


def from_matrix(W: Matrix, name: str = "matrix", *, disconnected: bool = False) -> Graph:
    """A graph from its mixing matrix.

    Args:
        W: a doubly stochastic matrix, dense or scipy sparse; row i weights what node i receives.
        name: what the graph is called.
        disconnected: allow a graph that is not connected, as one phase of `cycle`.
    """
    return Graph(cast("sparse.csr_array", W), name, disconnected=disconnected)  # it makes one of it


def cycle(*graphs: Topology) -> GraphSequence:
    """A graph that changes with the step: the given graphs in order, repeated.

    Args:
        *graphs: graphs or sequences with the same number of nodes; their union must be connected.
    """
    for graph in graphs:
        if not isinstance(graph, Graph | GraphSequence):
            raise ValueError(f"cycle got a {type(graph).__name__}; give Graphs, such as cycle(ring(8), star(8)).")
    if not graphs:
        raise ValueError("cycle got no graphs; give at least one, such as cycle(ring(8), star(8)).")
    return GraphSequence(tuple(phase for graph in graphs for phase in graph.phases))


def _weighed(
    graph: Networkx,
    name: str,
    weights: str | Rule,
    places: Float[np.ndarray, "nodes 2"] | None = None,
    disconnected: bool = False,
) -> Graph:
    return Graph(mixing_matrix(graph, weights), name, places, disconnected=disconnected)


def _drawn_connected(alone: float, draw: Callable[[], Networkx], failure: str, fix: str) -> Networkx:
    if alone > ALONE:
        raise ValueError(f"{failure} with any seed, since about {alone:.0f} nodes have no neighbour; {fix}.")
    for _ in range(TRIES):
        graph = draw()
        if nx.is_strongly_connected(graph) if isinstance(graph, nx.DiGraph) else nx.is_connected(graph):
            return graph
    raise ValueError(f"{failure} in {TRIES} draws; {fix}.")


def _hops(nodes: int) -> list[int]:
    """1, 2, 4, … below `nodes`."""
    return [2**k for k in range((nodes - 1).bit_length())]


def _sides(rows: int, columns: int | None) -> tuple[int, int]:
    rows = _count("rows", rows)
    return rows, rows if columns is None else _count("columns", columns)


def _count(argument: str, value: int) -> int:
    try:
        count = operator.index(value)
    except TypeError:
        count = 0
    if isinstance(value, bool) or count < 1:
        raise ValueError(f"{argument} must be an integer of at least 1, not {value!r}.")
    return count


def _source(seed: int) -> random.Random:
    try:
        return random.Random(operator.index(seed))
    except TypeError:
        raise ValueError(f"seed must be an integer, not {seed!r}.") from None
