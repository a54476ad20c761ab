"""Graphs of pairs: every edge once, each node with one neighbour at a time, and how fast differences may be carried."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest

from decibel import Graph, graphs
from decibel.graphs._damping import growth, is_proven

rng = np.random.default_rng(0)


def matrices(graph):
    return [phase.matrix for phase in graph.phases]


def edges_of(graph):
    return sorted(tuple(pair) for phase in graph.phases for pair in phase.edges.tolist())


def drawn(seed):
    """A connected graph of 3 to 24 nodes, sparse or dense."""
    source = np.random.default_rng(seed)
    graph = nx.gnp_random_graph(int(source.integers(3, 25)), source.uniform(0.15, 0.9), seed=seed)
    graph.add_edges_from(nx.path_graph(len(graph)).edges)
    return graphs.from_networkx(graph)


@pytest.mark.parametrize(
    "graph",
    [*map(drawn, range(12)), *(graphs.complete(n) for n in (4, 5)), graphs.star(7), graphs.torus(4), graphs.ring(7)],
    ids=lambda graph: f"{graph.name} {graph.nodes}",
)
def test_every_edge_is_in_one_matching(graph):
    pairs = graphs.matchings(graph)
    assert edges_of(pairs) == sorted(map(tuple, graph.edges.tolist()))
    assert all(phase.degrees.max() == 1 for phase in pairs.phases)
    assert all(set(np.unique(phase.W)) <= {0, 0.5, 1} for phase in pairs.phases)
    bipartite = nx.is_bipartite(nx.Graph(graph.edges.tolist()))
    assert pairs.period <= graph.degrees.max() + (not bipartite)


@pytest.mark.parametrize("nodes", [2, 3, 6, 7, 10])
def test_random_matchings_pair_any_two_nodes_once(nodes):
    pairs = graphs.random_matchings(nodes, seed=3)
    assert edges_of(pairs) == [(i, j) for i in range(nodes) for j in range(i + 1, nodes)]
    rest = [np.count_nonzero(phase.degrees == 0) for phase in pairs.phases]
    assert rest == [nodes % 2] * (nodes - 1 + nodes % 2)
    p = 0.5 if nodes % 2 else nodes / (2 * (nodes - 1))
    mean = np.mean([phase.W for phase in pairs.phases], axis=0)
    np.testing.assert_allclose(mean, (1 - p) * np.eye(nodes) + p / nodes, atol=1e-15)
    assert pairs.rho == pytest.approx((1 - p) ** 0.5) and pairs.damping == (1.0 if nodes == 2 else pytest.approx(p / 2))
    assert nodes < 6 or pairs != graphs.random_matchings(nodes, seed=4)
    assert pairs == graphs.random_matchings(nodes, seed=3) != graphs.random_matchings(
        nodes, seed=3, order="cyclic"
    ) or (nodes == 2)


def test_the_one_peer_hypercube_averages_in_a_period():
    cube = graphs.one_peer_hypercube(16)
    assert edges_of(cube) == sorted(map(tuple, graphs.hypercube(16).edges.tolist()))
    assert cube.order == "random" and cube.damping == 1 / 4 and cube.rho == pytest.approx((1 - 1 / 4) ** 0.5)
    turns = graphs.one_peer_hypercube(16, order="cyclic")
    assert turns.rho == 0 and turns.damping == 1 / 8 and turns != cube
    assert cube.lazy().order == "random" and "one of 4 a step" in cube.words and "4 phases at random" in cube.summary()


def test_a_graph_that_stays_is_not_damped():
    same = graphs.cycle(graphs.ring(6), graphs.ring(6))
    assert (same.changes, same.damping) == (graphs.ring(6).changes, graphs.ring(6).damping) == (False, 1.0)
    for made in (graphs.one_peer_hypercube, graphs.random_matchings):
        for nodes in (1, 2):
            assert (made(nodes, order="cyclic").changes, made(nodes, order="cyclic").damping) == (False, 1.0)


class TestGrowth:
    """Of (s, c) by s⁺ = W_t (s + c), c⁺ = c − κ (I − W_t)(s + c)."""

    @staticmethod
    def blocks(graph, κ):
        """The step of each phase on what sums to zero, as a matrix."""
        nodes = graph.nodes
        basis = np.linalg.qr(np.column_stack([np.ones(nodes), np.eye(nodes)[:, 1:]]))[0][:, 1:]
        for phase in graph.phases:
            W, I = basis.T @ phase.W @ basis, np.eye(nodes - 1)
            yield np.block([[W, W], [κ * (W - I), I + κ * (W - I)]])

    def in_mean_square(self, steps):
        """The root of the radius of the mean of M ⊗ M."""
        moments = sum(np.kron(step, step) for step in steps) / len(steps)
        return abs(np.linalg.eigvals(moments)).max() ** 0.5

    @pytest.mark.parametrize("κ", [0.05, 0.3, 0.7])
    @pytest.mark.parametrize("graph", [graphs.one_peer_hypercube(8), graphs.matchings(graphs.star(6))])
    def test_it_is_the_radius_of_the_period_and_of_the_second_moments(self, graph, κ):
        steps = list(self.blocks(graph, κ))
        period = np.linalg.multi_dot(steps[::-1])
        expected = abs(np.linalg.eigvals(period)).max() ** (1 / len(steps))
        assert growth(matrices(graph), κ, random=False) == pytest.approx(expected, rel=1e-6)
        assert growth(matrices(graph), κ, random=True) == pytest.approx(self.in_mean_square(steps), rel=5e-3)

    @pytest.mark.parametrize("nodes", [5, 6])
    def test_random_matchings_have_it_in_closed_form(self, nodes):
        graph = graphs.random_matchings(nodes)
        p = 2 * graph.damping
        for κ in (p / 2, p, 0.99):
            expected = self.in_mean_square(list(self.blocks(graph, κ)))
            assert growth(matrices(graph), κ, random=True) == pytest.approx(expected, rel=1e-9)
        most = 2 * p / (2 - p)
        assert growth(matrices(graph), most - 1e-3, random=True) < 1 < growth(matrices(graph), most + 1e-3, random=True)

    def test_the_cyclic_hypercube_allows_two_over_its_dimension(self):
        for nodes in (8, 32):
            cube, dimension = matrices(graphs.one_peer_hypercube(nodes)), nodes.bit_length() - 1
            assert growth(cube, 1.9 / dimension, random=False) < 1 < growth(cube, 2.1 / dimension, random=False)

    @pytest.mark.parametrize(
        ("make", "most", "least"),
        [
            (lambda nodes: graphs.matchings(graphs.star(nodes), order="cyclic"), 8, 9),
            (lambda nodes: graphs.random_matchings(nodes, order="cyclic"), 38, 40),
            (lambda nodes: graphs.random_matchings(nodes, order="cyclic"), 9, 11),
        ],
        ids=["star", "even", "odd"],
    )
    def test_what_does_not_contract_in_turn_by_default(self, make, most, least):
        """As docs/evidence/one-peer.md says."""
        found = [growth(matrices(graph), graph.damping, random=False) for graph in map(make, (most, least))]
        assert found[0] < 1 < found[1]

    def test_what_is_proven_is_stable(self):
        for graph in (graphs.one_peer_hypercube(8), graphs.matchings(graphs.star(6)), graphs.random_matchings(8)):
            for κ in (graph.damping, graph.damping / 3):
                assert is_proven(matrices(graph), κ) and growth(matrices(graph), κ, random=True) < 1
        assert not is_proven(matrices(graphs.cycle(graphs.path(3), graphs.ring(3, weights="uniform"))), 0.9)

    @pytest.mark.slow
    def test_it_is_seen_on_graphs_too_large_to_multiply_out(self):
        star = matrices(graphs.matchings(graphs.star(101)))
        assert growth(star, 0.05, random=False) == pytest.approx(1.01, abs=5e-3)
        assert growth(matrices(graphs.matchings(graphs.ring(102))), 0.25, random=False) is None
        assert growth(matrices(graphs.matchings(graphs.ring(130))), 0.6, random=True) is None
        assert growth(matrices(graphs.one_peer_hypercube(256)), 0.9, random=True) > 1.05
        assert growth(matrices(graphs.one_peer_hypercube(256)), 1 / 4, random=True) is None


def test_wrong_arguments_say_what_to_do():
    wrong = {
        r"must be a power of two, not 6: use random_matchings\(6\), or matchings\(graph\)": lambda: (
            graphs.one_peer_hypercube(6)
        ),
        "is directed: give an undirected one": lambda: graphs.matchings(graphs.one_peer_exponential(8).phases[1]),
        "graph is a int; give a Graph": lambda: graphs.matchings(3),
        "order='any' is not known: choose 'cyclic' or 'random'": lambda: graphs.random_matchings(4, order="any"),
        "seed must be an integer": lambda: graphs.random_matchings(4, seed="a"),
        "99999 phases of 100000 nodes each, too many to hold: use one_peer_hypercube": lambda: graphs.random_matchings(
            100_000
        ),
        "9999 phases of 10000 nodes each, .* use a graph with fewer": lambda: graphs.matchings(graphs.star(10_000)),
    }
    for sentence, call in wrong.items():
        with pytest.raises(ValueError, match=sentence):
            call()
    assert isinstance(graphs.matchings(graphs.ring(3)).phases[0], Graph)
