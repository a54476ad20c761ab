"""Accelerated gossip: a Chebyshev polynomial of W in several rounds, on every level and engine."""

from __future__ import annotations

import jax
import numpy as np
import pytest
import references
from quadratics import assert_all_at, assert_sums_to_zero, random_quadratic
from scipy.special import eval_chebyt

import decibel as db
from decibel.engines._checkpoint import _digest
from decibel.engines._membership import induced_graph

NODES, STEPS = 8, 20
QUADRATIC = random_quadratic(NODES)
RING = db.graphs.ring(NODES)
RATES = {"alpha": 0.1, "beta": 0.3, "gamma": 0.3}


def polynomial(W, rounds):
    """P_K(W) by eigenvectors, from its definition: T_K scaled to [λ_min, λ₂] and divided by its value at 1."""
    values, vectors = np.linalg.eigh(W)
    low, high = values[0], values[-2]
    scaled = lambda λ: (2 * λ - high - low) / (high - low)  # noqa: E731
    new = eval_chebyt(rounds, scaled(values)) / eval_chebyt(rounds, scaled(1.0))
    return vectors @ (new[:, None] * vectors.T)


def mixed(graph):
    """W̃: P_K(W), or its average with I where an eigenvalue of P_K(W) may reach −1/3."""
    P = polynomial(graph.base.W, graph.rounds)
    return P if graph.gossip.share == 1 else (np.eye(graph.nodes) + P) / 2


GRAPHS = {
    "ring": db.graphs.ring(16),
    "ring of 100": db.graphs.ring(100),
    "star": db.graphs.star(12),
    "random": db.graphs.erdos_renyi(20, 0.3, seed=1),
    "hypercube": db.graphs.hypercube(16),
}


@pytest.mark.parametrize("rounds", [2, 3, 7])
@pytest.mark.parametrize("name", GRAPHS)
def test_the_matrix_and_its_spectrum_are_those_of_the_polynomial(name, rounds):
    graph = GRAPHS[name].accelerated(rounds)
    W = graph.W
    np.testing.assert_allclose(W, mixed(graph), atol=1e-9)
    np.testing.assert_allclose(W.sum(1), 1, atol=1e-12)
    np.testing.assert_allclose(W, W.T, atol=1e-12)
    values = np.linalg.eigvalsh(W)
    assert graph.rho == pytest.approx(max(abs(values[0]), values[-2]), abs=1e-9)
    assert graph.lambda_min <= values[0] + 1e-9
    if rounds % 2:
        assert graph.lambda_min == pytest.approx(values[0], abs=1e-9)
    assert values[0] > -1 / 3
    assert values[-2] < np.linalg.eigvalsh(GRAPHS[name].W)[-2]
    np.testing.assert_array_equal(graph.edges, GRAPHS[name].edges)


def test_where_the_polynomial_reaches_a_third_its_average_with_the_identity_is_taken():
    assert [db.graphs.ring(100).accelerated(rounds).gossip.share for rounds in (2, 60)] == [0.5, 1.0]
    assert RING.accelerated(8).lazy().lambda_min >= 0.4


def test_a_lazy_one_stays_lazy_without_nodes_and_is_another_run():
    even, lazy = RING.accelerated(8), RING.accelerated(8).lazy()
    assert _digest(even) != _digest(lazy) != _digest(RING)
    fewer = [induced_graph(graph, tuple(range(5))) for graph in (even, lazy)]
    assert [graph.gossip.share for graph in fewer] == [1.0, 0.5]


def test_one_round_is_the_graph_itself_and_a_complete_graph_averages():
    assert RING.accelerated(1) is RING
    assert RING.accelerated(2) != RING.accelerated(3) != RING
    assert db.graphs.complete(6).accelerated(2).rho < 1e-12
    np.testing.assert_allclose(db.graphs.complete(6).accelerated(3).W, 1 / 6, atol=1e-12)


def run(graph, strategy="ed", steps=STEPS, **options):
    method = db.sparkle(strategy, **RATES)
    options = {"metrics": [], "eval_every": steps, "progress": False} | options
    return db.solve(QUADRATIC.problem(), method, graph, steps=steps, **options)


def assert_same(a, b, atol):
    for one, other in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(one, other, atol=atol, rtol=0)


@pytest.mark.slow_except("3")
@pytest.mark.parametrize("rounds", [2, 3, 6])
def test_a_run_is_the_one_with_the_polynomial(rounds):
    graph = RING.accelerated(rounds)
    found = run(graph)
    expected = references.sparkle(QUADRATIC, "ed", "ed", mixed(graph), theta=1.0, steps=STEPS, **RATES)
    for level, wanted in zip(found.nodes, expected, strict=True):
        np.testing.assert_allclose(level, wanted, rtol=0, atol=1e-9)
    once = db.cost(QUADRATIC.problem(), db.sparkle("ed", **RATES), RING)
    cost = db.cost(QUADRATIC.problem(), db.sparkle("ed", **RATES), graph)
    assert (cost["rounds"], cost["bytes"]) == (rounds * once["rounds"], rounds * once["bytes"])
    assert cost["gradients"] == once["gradients"]
    assert_sums_to_zero(found.state.y.carry[0])


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ed", "gt", "extra", "nids", "diffusion"])
def test_the_cluster_and_links_with_faults_give_the_same(strategy):
    """Of two graphs: x mixes in four rounds, y and z in one, so that they share only the first."""
    graphs = db.Levels(x=RING.accelerated(4), y=RING)
    here = run(graphs, strategy)
    assert_same(here.nodes, run(graphs, strategy, engine=db.Cluster(devices=4)).nodes, 1e-12)
    links = db.faults.drop(0.0)
    assert_same(here.nodes, run(graphs, strategy, faults=links).nodes, 1e-12)
    cost = db.cost(QUADRATIC.problem(), db.sparkle(strategy, **RATES), graphs)
    once = db.cost(QUADRATIC.problem(), db.sparkle(strategy, **RATES), RING)
    assert cost["rounds"] == 4 * once["rounds"]
    assert cost["bytes"] == once["bytes"] + 3 * once["bytes"] * 3 / 11  # three of eleven entries travel thrice more


@pytest.mark.slow
def test_the_solution_is_exact_in_fewer_steps():
    ring = db.graphs.ring(100)
    quadratic = random_quadratic(100)
    distance = db.metrics.distance(quadratic.single_solution())

    def last(graph):
        options = {"steps": 400, "eval_every": 400, "metrics": [distance], "progress": False}
        return db.solve(quadratic.single(), db.ed(alpha=0.3), graph, **options).trace.last["distance"]

    assert last(ring.accelerated(16)) < 1e-20
    assert last(ring) > 1e-3


@pytest.mark.slow
def test_lost_links_leave_the_solution_exact():
    result = run(RING.accelerated(3), steps=3000, faults=db.faults.drop(0.2))
    assert_all_at(result.nodes.x, QUADRATIC.solution(), 1e-10)


@pytest.mark.parametrize("strategy", ["ada-ed", "wave", "edge-ed", db.privacy.quantize("ed", 8)])
def test_strategies_of_single_links_raise(strategy):
    with pytest.raises(ValueError, match=r"on level x treats each link separately, and accelerated ring"):
        run(RING.accelerated(3), strategy)


def test_what_does_not_fit_is_rejected():
    one_way = db.graphs.from_matrix((np.eye(8) + np.roll(np.eye(8), 1, 1)) / 2, name="one-way")
    sentences = {
        "rounds=0 must be a positive integer.": lambda: RING.accelerated(0),
        "is accelerated already: call accelerated on the graph itself.": lambda: RING.accelerated(2).accelerated(2),
        "random matchings changes, and accelerated needs one W": lambda: db.graphs.random_matchings(8).accelerated(2),
        "accelerated needs a symmetric W, which one-way does not have": lambda: one_way.accelerated(2),
        "of 2 rounds: give graphs of one round.": lambda: db.graphs.cycle(RING, RING.accelerated(2)),
        "db.faults.late delays it: leave out late": lambda: run(RING.accelerated(2), faults=db.faults.late(1)),
    }
    for sentence, call in sentences.items():
        with pytest.raises(ValueError, match=sentence):
            call()
