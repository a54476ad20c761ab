from __future__ import annotations

import copy
import dataclasses

import networkx as nx
import numpy as np
import pytest
from matplotlib.figure import Figure
from scipy import sparse

from decibel import graphs, weights
from decibel.graphs import _spectrum as spectrum
from decibel.graphs._graph import Graph, GraphSequence, Levels

FAMILIES = {
    "ring": lambda w: graphs.ring(7, weights=w),
    "path": lambda w: graphs.path(6, weights=w),
    "star": lambda w: graphs.star(6, weights=w),
    "complete": lambda w: graphs.complete(5, weights=w),
    "torus": lambda w: graphs.torus(3, 4, weights=w),
    "grid": lambda w: graphs.grid(3, 4, weights=w),
    "hypercube": lambda w: graphs.hypercube(8, weights=w),
    "exponential": lambda w: graphs.exponential(12, weights=w),
    "erdos_renyi": lambda w: graphs.erdos_renyi(12, 0.3, seed=1, weights=w),
    "geometric": lambda w: graphs.geometric(12, 0.5, seed=1, weights=w),
    "lollipop": lambda w: graphs.from_networkx(nx.lollipop_graph(5, 4), w),
}
RULES = [*weights.RULES, weights.laplacian(0.05)]


def naive_rho(W):
    return np.linalg.svd(W - 1 / len(W), compute_uv=False)[0]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_rule_is_valid_on_every_family(family, rule):
    graph = FAMILIES[family](rule)
    W = graph.W
    np.testing.assert_allclose(W.sum(0), 1, atol=1e-14)
    np.testing.assert_allclose(W.sum(1), 1, atol=1e-14)
    np.testing.assert_array_equal(W, W.T)
    assert graph.connected and graph.symmetric and graph.period == 1 and graph.phases == (graph,)
    eigenvalues = np.linalg.eigvalsh(W)
    np.testing.assert_allclose(graph.rho, naive_rho(W), atol=1e-13)
    np.testing.assert_allclose(graph.lambda_min, eigenvalues[0], atol=1e-13)
    assert graph.spectral_gap == 1 - graph.rho > 0
    assert graph.lambda_min_bound <= eigenvalues[0] + 1e-13
    off = W - np.diag(np.diag(W))
    np.testing.assert_array_equal(graph.degrees, (off != 0).sum(1))
    assert {tuple(e) for e in graph.edges.tolist()} == set(zip(*np.nonzero(np.triu(off)), strict=True))


def test_rules_follow_their_formulas():
    graph = nx.lollipop_graph(4, 3)
    degree = dict(graph.degree)
    largest = np.linalg.eigvalsh(nx.laplacian_matrix(graph).toarray().astype(float))[-1]
    formulas = {
        "metropolis": lambda i, j: 1 / (1 + max(degree[i], degree[j])),
        "lazy-metropolis": lambda i, j: 1 / (2 * max(degree[i], degree[j])),
        "uniform": lambda i, j: 1 / (1 + max(degree.values())),
        "laplacian": lambda i, j: 2 / (3 * largest),
        weights.laplacian(0.2): lambda i, j: 0.2,
    }
    for rule, formula in formulas.items():
        W = graphs.from_networkx(graph, rule).W
        for i in graph:
            for j in graph:
                if i != j:
                    assert W[i, j] == pytest.approx(formula(i, j) if graph.has_edge(i, j) else 0, rel=1e-12)
    assert isinstance(weights.mixing_matrix(graph, "uniform"), sparse.csr_array)


def test_edge_attributes_self_loops_and_labels_do_not_count():
    plain, odd = nx.path_graph(["a", "b", "c"]), nx.MultiGraph()
    odd.add_edges_from([("a", "b", {"weight": 0}), ("a", "b", {"weight": 9}), ("b", "c", {}), ("b", "b", {})])
    assert graphs.from_networkx(plain) == graphs.from_networkx(odd)


def test_a_callable_gives_the_weights():
    graph = graphs.from_networkx(nx.path_graph(3), lambda g: np.eye(3) - 0.25 * nx.laplacian_matrix(g).toarray())
    assert graph.W[0, 1] == 0.25


@pytest.mark.parametrize("nodes", [3, 8, 9, 2000])
def test_ring_spectrum_is_cosines(nodes):
    cosines = 0.5 + 0.5 * np.cos(2 * np.pi * np.arange(nodes) / nodes)
    graph = graphs.ring(nodes)
    assert graph.rho == pytest.approx(cosines[1], abs=1e-14)
    assert graph.lambda_min == pytest.approx(cosines.min(), abs=1e-14)


def test_ring_weights():
    np.testing.assert_array_equal(graphs.ring(5).W[0], [0.5, 0.25, 0, 0, 0.25])
    thirds = graphs.ring(10, weights="metropolis")
    assert thirds.W[0, 0] == pytest.approx(1 / 3) and thirds.W[0, 1] == pytest.approx(1 / 3)
    assert thirds.lambda_min == pytest.approx(-1 / 3)
    assert thirds.lambda_min_bound == pytest.approx(-1 / 3)
    assert graphs.adjusted_ring(6).W[0, [0, 1, 5]] == pytest.approx([0.8, 0.1, 0.1])


def test_lazy():
    thirds = graphs.ring(10, weights="metropolis")
    lazy = thirds.lazy()
    np.testing.assert_allclose(lazy.W, (np.eye(10) + thirds.W) / 2)
    assert lazy.lambda_min == pytest.approx(1 / 3) and lazy.lambda_min_bound >= 1 / 3 - 1e-12
    assert not graphs.isolated(3).lazy().connected


@pytest.mark.parametrize("nodes", [1, 2, 5, 64])
def test_complete_averages_exactly(nodes):
    graph = graphs.complete(nodes)
    np.testing.assert_allclose(graph.W, 1 / nodes, atol=1e-15)
    assert graph.rho == 0 and graph.spectral_gap == 1


def test_hypercube_spectrum():
    # Eigenvalues 1 - k/d for k = 0..d with weights 1/(2d).
    graph = graphs.hypercube(16)
    assert graph.rho == pytest.approx(1 - 1 / 4) and graph.lambda_min == pytest.approx(0, abs=1e-14)
    assert all(bin(i ^ j).count("1") == 1 for i, j in graph.edges.tolist())


def test_torus_and_grid_are_numbered_row_by_row():
    assert np.nonzero(graphs.grid(3, 4).W[5])[0].tolist() == [1, 4, 5, 6, 9]
    assert np.nonzero(graphs.torus(3, 4).W[0])[0].tolist() == [0, 1, 3, 4, 8]
    assert graphs.torus(4) == graphs.torus(4, 4) and graphs.grid(2).nodes == 4


def test_exponential_neighbours():
    assert np.nonzero(graphs.exponential(10).W[0])[0].tolist() == [0, 1, 2, 4, 6, 8, 9]
    assert np.nonzero(graphs.exponential(11).W[0])[0].tolist() == [0, 1, 2, 3, 4, 7, 8, 9, 10]


@pytest.mark.parametrize("family", [graphs.ring, graphs.path, graphs.complete, graphs.star, graphs.exponential])
def test_one_and_two_nodes(family):
    one, two = family(1), family(2)
    assert one.W.tolist() == [[1.0]] and one.rho == 0 and one.lambda_min == 1 and len(one.edges) == 0
    assert one.circulant_offsets() == ()
    np.testing.assert_allclose(two.W, 0.5)
    assert two.edges.tolist() == [[0, 1]] and two.rho == 0 and two.degrees.tolist() == [1, 1]


def test_other_tiny_graphs():
    assert graphs.hypercube(1).nodes == graphs.torus(1).nodes == graphs.grid(1).nodes == 1
    assert graphs.one_peer_exponential(1).rho == 0
    assert graphs.adjusted_ring(2, 0.2).W.tolist() == [[0.8, 0.2], [0.2, 0.8]]
    assert graphs.torus(2).degrees.tolist() == [2] * 4
    assert graphs.erdos_renyi(1, 0.5).nodes == graphs.geometric(1, 0.1).nodes == 1


def test_isolated_is_the_identity():
    graph = graphs.isolated(4)
    np.testing.assert_array_equal(graph.W, np.eye(4))
    assert not graph.connected and graph.rho == 1 and graph.circulant_offsets() == ()


@pytest.mark.parametrize("family", [graphs.erdos_renyi, graphs.geometric])
def test_random_graphs_are_connected_and_repeat(family):
    drawn = [family(30, 0.25, seed) for seed in range(5)]
    assert drawn == [family(30, 0.25, seed) for seed in range(5)]
    assert len(set(drawn)) == 5 and all(graph.connected for graph in drawn)
    assert family(30, 0.25) == drawn[0]


def test_big_ring_is_cheap():
    nodes = 10_000
    graph = graphs.ring(nodes)
    assert graph.matrix.nnz == 3 * nodes and len(graph.edges) == nodes
    assert graph.rho == pytest.approx(np.cos(np.pi / nodes) ** 2, abs=1e-14)
    assert graph.circulant_offsets() == ((-1, 0.25), (1, 0.25))
    assert graph.lazy().lambda_min_bound == 0.5


def test_large_graphs_without_dense_factorizations():
    nodes = spectrum.DENSE_LIMIT + 500
    path = graphs.path(nodes)  # W = I - L/4, crowded at both ends of the spectrum
    assert path.rho == pytest.approx(np.cos(np.pi / (2 * nodes)) ** 2, abs=1e-12)
    assert path.lambda_min == pytest.approx(np.sin(np.pi / (2 * nodes)) ** 2, abs=1e-12)
    torus = graphs.torus(40, 50)
    assert torus.rho == pytest.approx(0.75 + 0.25 * np.cos(2 * np.pi / 50), abs=1e-12)
    fitted = graphs.path(nodes, weights="laplacian")
    assert fitted.lambda_min == pytest.approx(1 / 3)


TRANSLATED = {
    "torus": lambda: graphs.torus(4, 6),
    "flat torus": lambda: graphs.torus(2, 5, weights="uniform"),
    "hypercube": lambda: graphs.hypercube(16, weights="laplacian"),
    "directed torus": lambda: graphs.from_matrix(
        0.5 * np.eye(12) + np.kron(np.roll(np.eye(3), 1, axis=1), 0.3 * np.eye(4) + 0.2 * np.roll(np.eye(4), 1, axis=1))
    ),
    "tori in turn": lambda: graphs.cycle(graphs.torus(3, 4), graphs.torus(3, 4, weights="uniform")),
    "torus and ring": lambda: graphs.cycle(graphs.torus(3, 4), graphs.ring(12)),
    "torus and its transpose": lambda: graphs.cycle(graphs.torus(3, 4), graphs.torus(4, 3)),
}


@pytest.mark.parametrize("name", TRANSLATED)
def test_spectra_by_fourier_transform(name):
    graph = TRANSLATED[name]()
    assert all(phase._eigenvalues is not None for phase in graph.phases)
    product = np.linalg.multi_dot([np.eye(graph.nodes), *(phase.W for phase in reversed(graph.phases))])
    assert graph.rho == pytest.approx(naive_rho(product) ** (1 / graph.period), abs=1e-14)
    lowest = min(np.linalg.eigvalsh((phase.W + phase.W.T) / 2)[0] for phase in graph.phases)
    assert graph.lambda_min == pytest.approx(lowest, abs=1e-14)


def test_circulant_offsets():
    one_way = sparse.csr_array(np.roll(np.eye(6), 2, axis=1) * 0.3 + np.eye(6) * 0.6 + np.full((6, 6), 0.1 / 6))
    offsets = graphs.from_matrix(one_way).circulant_offsets()
    assert offsets is not None and [offset for offset, _ in offsets] == [-2, -1, 1, 2, 3]
    rebuilt = np.diag(one_way.diagonal())
    for offset, weight in offsets:
        rebuilt[np.arange(6), (np.arange(6) + offset) % 6] = weight
    np.testing.assert_array_equal(rebuilt, one_way.toarray())
    for other in (graphs.path(5), graphs.star(5), graphs.hypercube(8), graphs.torus(3, 4)):
        assert other.circulant_offsets() is None


def test_directed_matrix():
    W = 0.6 * np.eye(5) + 0.3 * np.eye(5)[[2, 4, 1, 0, 3]] + 0.1 * np.eye(5)[[1, 0, 3, 4, 2]]
    graph = graphs.from_matrix(W, name="one way")
    assert not graph.symmetric and graph.name == "one way"
    assert {(r, s) for s, r in graph.edges.tolist()} == {(i, j) for i, j in np.argwhere(W) if i != j}
    assert graph.rho == pytest.approx(naive_rho(W))
    assert graph.lambda_min == pytest.approx(np.linalg.eigvalsh((W + W.T) / 2)[0])
    assert graph.lambda_min_bound <= graph.lambda_min


def test_rounding_is_fixed():
    W = graphs.star(5).W
    W[1, 0] += 1e-12
    W[1, 2] = 1e-17
    graph = graphs.from_matrix(W)
    assert graph.symmetric and len(graph.edges) == 4


@pytest.mark.parametrize("nodes", [2, 4, 8, 32])
def test_one_peer_exponential_averages_powers_of_two(nodes):
    sequence = graphs.one_peer_exponential(nodes)
    assert sequence.period == np.log2(nodes) and sequence.rho == 0 and sequence.spectral_gap == 1
    product = np.linalg.multi_dot([np.eye(nodes), *(p.W for p in reversed(sequence.phases))])
    np.testing.assert_allclose(product, 1 / nodes)
    np.testing.assert_array_equal(sequence.degrees, 1.0)


def test_one_peer_exponential_in_general():
    sequence = graphs.one_peer_exponential(6)
    assert sequence.period == 3 and not sequence.symmetric and sequence.connected
    for k, phase in enumerate(sequence.phases):
        assert phase.W[0, 2**k] == 0.5 and phase.W[0, 0] == 0.5
    product = np.linalg.multi_dot([p.W for p in reversed(sequence.phases)])
    assert sequence.rho == pytest.approx(naive_rho(product) ** (1 / 3))
    assert sequence.lambda_min_bound <= sequence.lambda_min


def test_cycle_of_disconnected_phases():
    everyone = nx.empty_graph(4)
    first, second = (
        graphs.from_networkx(nx.compose(everyone, nx.Graph(pairs)), disconnected=True)
        for pairs in ([(0, 1), (2, 3)], [(1, 2), (3, 0)])
    )
    sequence = graphs.cycle(first, second)
    assert sequence.symmetric and sequence.connected and sequence.rho == 0 and not first.connected
    assert sequence.phases == (first, second) and sequence.nodes == 4
    lazy = sequence.lazy()
    assert lazy.lambda_min == pytest.approx(0.5)
    product = lazy.phases[1].W @ lazy.phases[0].W
    assert lazy.rho == pytest.approx(naive_rho(product) ** 0.5)
    assert graphs.cycle(sequence, graphs.ring(4)).period == 3
    with pytest.raises(ValueError, match=r"union of the phases.*3 components.*add a phase"):
        graphs.cycle(graphs.isolated(3))


def test_large_sequence_matches_a_dense_one(monkeypatch):
    sequence = graphs.cycle(graphs.star(30), graphs.path(30))
    dense = sequence.rho
    monkeypatch.setattr(spectrum, "DENSE_LIMIT", 10)
    assert graphs.cycle(graphs.star(30), graphs.path(30)).rho == pytest.approx(dense, rel=1e-10)


def test_levels_follow():
    ring, star = graphs.ring(5), graphs.star(5)
    levels = Levels(x=ring)
    assert levels.y is ring and levels.z is ring and levels.nodes == 5
    levels = Levels(x=ring, y=star)
    assert levels.z is star and hash(levels) == hash(Levels(ring, star, star))
    assert Levels(x=ring, y=graphs.cycle(ring, star)).z.period == 2
    with pytest.raises(ValueError, match=r"5 \(x\), 6 \(y\) and 6 \(z\) nodes; give all levels the same"):
        Levels(x=ring, y=graphs.ring(6))
    with pytest.raises(ValueError, match=r"Levels\(y=...\) is a str; give a Graph"):
        Levels(x=ring, y="ring")  # type: ignore


def test_graphs_are_immutable_and_equal_by_content():
    graph = graphs.ring(6)
    assert graph == graphs.ring(6) == graphs.from_matrix(graph.W) != graphs.ring(7)
    assert hash(graph) == hash(graphs.ring(6)) and len({graph, graphs.ring(6), graphs.path(6)}) == 2
    assert copy.deepcopy(graph) == graph and hash(graphs.cycle(graph)) == hash(graphs.cycle(graphs.ring(6)))
    with pytest.raises(dataclasses.FrozenInstanceError):
        graph.name = "other"  # type: ignore
    with pytest.raises(ValueError, match="read-only"):
        graph.matrix.data[0] = 1
    source = graph.W
    kept = graphs.from_matrix(source)
    source[:] = 0
    assert kept == graph
    assert repr(graph) == "Graph('ring', nodes=6, edges=6)"
    assert repr(graphs.one_peer_exponential(4)) == "GraphSequence('one-peer exponential', nodes=4, period=2)"
    assert graph.summary() == "ring, N = 6, ρ = 0.75"


BAD = {
    r"nodes must be an integer of at least 1, not 0": lambda: graphs.ring(0),
    r"nodes must be an integer of at least 1, not 2\.5": lambda: graphs.complete(2.5),  # type: ignore
    r"nodes must be an integer of at least 1, not True": lambda: graphs.path(True),
    r"columns must be an integer of at least 1, not -1": lambda: graphs.torus(3, -1),
    r"rows must be an integer": lambda: graphs.grid("3"),  # type: ignore
    r"nodes of a hypercube must be a power of two, not 12; use 8 or 16": lambda: graphs.hypercube(12),
    r"probability must be above 0 and at most 1, not 1\.5": lambda: graphs.erdos_renyi(5, 1.5),
    r"probability=0\.001 gives no connected graph of 50 nodes with any seed, since about 48 nodes .*; raise it above": (
        lambda: graphs.erdos_renyi(50, 0.001)
    ),
    r"radius must be a positive number, not -1": lambda: graphs.geometric(5, -1),
    r"radius=0\.01 gives no connected graph": lambda: graphs.geometric(50, 0.01),
    r"seed must be an integer, not 0\.5": lambda: graphs.geometric(5, 0.5, seed=0.5),  # type: ignore
    r"weight must lie between 0 and 0\.5, not 0\.5": lambda: graphs.adjusted_ring(5, 0.5),
    r"ratio must be a positive number, not 0": lambda: weights.laplacian(0),
    r"'metropolos' is not a known rule; did you mean 'metropolis'\?": lambda: graphs.ring(5, weights="metropolos"),
    r"weights=None is not a known rule": lambda: graphs.ring(5, weights=None),  # type: ignore
    r"weights returned a matrix of shape \(2, 2\) for 5 nodes": (
        lambda: graphs.ring(5, weights=lambda graph: np.eye(2))
    ),
    r"weights='uniform' needs an undirected graph": (
        lambda: graphs.from_networkx(nx.cycle_graph(4, create_using=nx.DiGraph), "uniform")
    ),
    r"graph is a ndarray; give a networkx graph, or use from_matrix": (
        lambda: graphs.from_networkx(np.eye(2))  # type: ignore
    ),
    r"graph has no nodes": lambda: graphs.from_networkx(nx.Graph()),
    r"not connected \(2 components\); add edges that join them": (
        lambda: graphs.from_networkx(nx.Graph([(0, 1), (2, 3)]))
    ),
    r"not connected \(3 components\)": lambda: graphs.from_matrix(np.eye(3)),
    r"W has shape \(2, 3\); give a square matrix": lambda: graphs.from_matrix(np.ones((2, 3))),
    r"W has shape \(4,\)": lambda: graphs.from_matrix(np.ones(4)),
    r"W does not hold real numbers": lambda: graphs.from_matrix(np.eye(2) * 1j),
    r"W holds NaN or infinity": lambda: graphs.from_matrix([[np.nan, 1], [1, 0]]),
    r"row 0 sums to 0\.9 instead of 1; from_networkx\(graph, weights=\"metropolis\"\)": (
        lambda: graphs.from_matrix([[0.4, 0.5], [0.5, 0.5]])
    ),
    r"column 0 sums to 1\.\d+ instead of 1": (
        lambda: graphs.from_matrix([[0.6, 0.4, 0], [0.7, 0, 0.3], [0.1, 0.4, 0.5]])
    ),
    r"cycle got no graphs": graphs.cycle,
    r"cycle got a int; give Graphs": lambda: graphs.cycle(3),  # type: ignore
    r"phases is empty": lambda: GraphSequence(()),
    r"phases holds a int": lambda: GraphSequence((3,)),  # type: ignore
    r"different numbers of nodes \[3, 4\]": lambda: graphs.cycle(graphs.ring(3), graphs.ring(4)),
    r"ax holds 1 Axes for 2 phases": (lambda: graphs.one_peer_exponential(4).draw([Figure().add_subplot()])),
}


@pytest.mark.parametrize("sentence", BAD)
def test_bad_input_raises_in_one_sentence(sentence):
    with pytest.raises(ValueError, match=sentence) as refusal:
        BAD[sentence]()
    assert str(refusal.value).endswith(".") and "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    "graph",
    [
        graphs.ring(12),
        graphs.torus(4, 5),
        graphs.hypercube(8),
        graphs.erdos_renyi(15, 0.3),
        graphs.isolated(3),
        graphs.complete(1),
        graphs.one_peer_exponential(8).phases[0],
        graphs.from_networkx(nx.barbell_graph(60, 2)),
    ],
    ids=lambda graph: graph.name,
)
def test_draw(graph: Graph):
    figure = graph.draw()
    assert isinstance(figure, Figure) and len(figure.axes) == 1
    assert figure.axes[0].get_title() == graph.summary()
    ax = Figure().add_subplot()
    assert graph.draw(ax) is ax.figure


def test_draw_sequence():
    figure = graphs.one_peer_exponential(8).draw()
    assert isinstance(figure, Figure) and len(figure.axes) == 3
    axes = list(Figure().subplots(1, 2))
    assert graphs.cycle(graphs.star(5), graphs.path(5)).draw(axes) is axes[0].figure
