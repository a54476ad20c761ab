"""One-way links: R and C from a digraph, and what a graph without a doubly stochastic W refuses."""

from __future__ import annotations

import copy
import dataclasses

import networkx as nx
import numpy as np
import pytest

import decibel as db
from decibel.graphs._graph import Graph

DIGRAPH = nx.DiGraph([(0, 1), (1, 2), (2, 0), (0, 3), (3, 1), (3, 3)])
GRAPH = db.graphs.directed(DIGRAPH)
RANDOM = db.graphs.random_digraph(9, 0.25, seed=3)


def test_weights_are_equal_shares():
    """Node i hears itself and its senders alike; node j splits what it holds among itself and its receivers."""
    edges = {(a, b) for a, b in DIGRAPH.edges if a != b}
    R, C = np.eye(4), np.eye(4)
    for sender, receiver in edges:
        R[receiver, sender] = C[receiver, sender] = 1
    np.testing.assert_allclose(GRAPH.R, R / R.sum(1, keepdims=True), atol=1e-15)
    np.testing.assert_allclose(GRAPH.C, C / C.sum(0, keepdims=True), atol=1e-15)
    assert {tuple(edge) for edge in GRAPH.edges.tolist()} == edges and "directed edges=5" in repr(GRAPH)
    np.testing.assert_array_equal(GRAPH.degrees, [1, 2, 1, 1])
    assert not (GRAPH.doubly_stochastic or GRAPH.symmetric)


def test_random_digraphs_are_strongly_connected_and_follow_their_seed():
    assert RANDOM == db.graphs.random_digraph(9, 0.25, seed=3) != db.graphs.random_digraph(9, 0.25, seed=4)
    as_networkx = nx.DiGraph(RANDOM.edges.tolist())
    assert len(as_networkx) == 9 and nx.is_strongly_connected(as_networkx)
    assert db.graphs.directed(as_networkx.subgraph(range(9))).edges.shape == RANDOM.edges.shape
    np.testing.assert_allclose(RANDOM.R.sum(1), 1, atol=1e-14)
    np.testing.assert_allclose(RANDOM.C.sum(0), 1, atol=1e-14)


@pytest.mark.slow_except("dense")
@pytest.mark.parametrize("graph", [RANDOM, db.graphs.random_digraph(500, 0.02, seed=1)], ids=["dense", "sparse"])
def test_rho_is_the_second_modulus(graph):
    expected = max(np.sort(np.abs(np.linalg.eigvals(matrix)))[-2] for matrix in (graph.R, graph.C))
    assert graph.rho == pytest.approx(expected, abs=1e-10)


def test_rho_of_a_sequence_is_that_of_its_period():
    sequence = db.graphs.cycle(RANDOM, db.graphs.random_digraph(9, 0.3, seed=5))
    products = [sequence.phases[1].R @ sequence.phases[0].R, sequence.phases[1].C @ sequence.phases[0].C]
    expected = max(np.sort(np.abs(np.linalg.eigvals(product)))[-2] for product in products)
    assert sequence.rho == pytest.approx(expected**0.5, abs=1e-12) and not sequence.doubly_stochastic


def test_a_digraph_whose_weights_are_doubly_stochastic_is_an_ordinary_graph():
    ring = db.graphs.directed(nx.cycle_graph(5, create_using=nx.DiGraph))
    assert ring.doubly_stochastic and not ring.symmetric and ring.pushing is ring.matrix
    assert ring == db.graphs.from_matrix(ring.W)
    both_ways = db.graphs.directed(nx.cycle_graph(5).to_directed())
    assert both_ways.symmetric
    np.testing.assert_allclose(both_ways.W, db.graphs.ring(5, weights="metropolis").W, atol=1e-15)
    with pytest.raises(ValueError, match=r"one-way links and no doubly stochastic W: use graph\.R and graph\.C"):
        _ = RANDOM.W


def test_lazy_halves_both_and_copies_are_equal():
    np.testing.assert_allclose(RANDOM.lazy().R, (np.eye(9) + RANDOM.R) / 2)
    np.testing.assert_allclose(RANDOM.lazy().C, (np.eye(9) + RANDOM.C) / 2)
    for same in (copy.deepcopy(RANDOM), dataclasses.replace(RANDOM, name="renamed")):
        assert same == RANDOM and hash(same) == hash(RANDOM) and not same.doubly_stochastic
    other = Graph(RANDOM.matrix, pushing=RANDOM.lazy().pushing)
    assert other != RANDOM


def test_drawn_with_arrows():
    assert len(RANDOM.draw().axes[0].patches) == len(RANDOM.edges)


NO_WAY_BACK = nx.DiGraph([(0, 1), (1, 2), (2, 1)])


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: db.graphs.directed(NO_WAY_BACK), r"not strongly connected \(2 components\): add links"),
        (lambda: db.graphs.directed(nx.path_graph(3)), r"has no one-way links: use from_networkx\(graph\)"),
        (lambda: db.graphs.directed([[0, 1]]), r"give a networkx\.DiGraph"),
        (lambda: db.graphs.directed(nx.DiGraph()), "has no nodes"),
        (lambda: db.graphs.random_digraph(40, 0.001), "gives no strongly connected graph of 40 nodes with any seed"),
        (lambda: db.graphs.random_digraph(5, 1.5), "probability must be above 0 and at most 1"),
        (lambda: db.graphs.from_networkx(DIGRAPH), r"use directed\(graph\) with 'push-pull'"),
        (lambda: db.graphs.from_matrix(RANDOM.R), "'push-pull'"),
        (lambda: Graph(RANDOM.matrix, pushing=RANDOM.matrix.T), "do not have the same links"),
        (lambda: Graph(RANDOM.pushing, pushing=RANDOM.matrix.copy()), "R is not row-stochastic: row"),
        (lambda: Graph(RANDOM.matrix, pushing=RANDOM.matrix.copy()), "C is not column-stochastic: column"),
        (lambda: Graph(np.eye(2)[::-1], pushing=np.eye(2)[::-1].copy()), "positive weights on its diagonal"),
        (lambda: Graph(np.array([[2, -1], [1, 0.0]]), pushing=np.eye(2)), "R needs positive weights"),
    ],
)
def test_what_makes_no_sense_raises(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        make()


def test_one_phase_of_a_cycle_need_not_be_strongly_connected():
    there, back = nx.DiGraph([(0, 1), (1, 2)]), nx.DiGraph([(0, 0), (1, 0), (2, 1)])
    there, back = (db.graphs.directed(graph, disconnected=True) for graph in (there, back))
    assert db.graphs.cycle(there, back).connected
    with pytest.raises(ValueError, match="not connected"):
        db.graphs.cycle(there, there)
