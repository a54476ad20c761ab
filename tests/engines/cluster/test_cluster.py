"""The same step on many devices and processes: the simulator's numbers, and nothing sent but rows to neighbours."""

from __future__ import annotations

import re

import jax
import numpy as np
import pytest
from compiled import permutes
from quadratics import random_quadratic

import decibel as db
from decibel.engines._program import RunConfig
from decibel.engines.cluster._halo import plan
from decibel.graphs._graph import Levels
from decibel.network._incidence import slots

NODES = 8
QUADRATIC = random_quadratic(NODES, seed=3)
SHARED, PERSONAL = QUADRATIC.problem(samples=3), QUADRATIC.problem(personal=True, samples=3)
RATES = {"alpha": 0.05, "beta": 0.1, "gamma": 0.1, "theta": 0.5}
GRAPHS = {
    "ring": db.graphs.ring(NODES),
    "torus": db.graphs.torus(2, 4),
    "erdos-renyi": db.graphs.erdos_renyi(NODES, 0.5, seed=1),
    "one-peer": db.graphs.one_peer_exponential(NODES),
}


def nodes_of(problem, method, graph, engine, **options):
    result = db.solve(problem, method, graph, steps=12, eval_every=12, metrics=[], engine=engine, **options)
    return result, [np.asarray(leaf) for leaf in jax.tree.leaves(result.nodes)]


def assert_same(problem, method, graph, engine, **options):
    simulated, expected = nodes_of(problem, method, graph, db.Simulator(), **options)
    spread, found = nodes_of(problem, method, graph, engine, **options)
    for a, b in zip(expected, found, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-12, atol=1e-12)
    return simulated, spread


@pytest.mark.slow_except("2-erdos-renyi")
@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("devices", [8, 2])
def test_cluster_equals_simulator_on_every_kind_of_graph(name, devices):
    method = db.sparkle("gt" if name == "one-peer" else "ed", upper="gt", **RATES, updates="simultaneous")
    assert_same(SHARED, method, GRAPHS[name], db.Cluster(devices=devices), batch_size=2)


@pytest.mark.slow_except("problem0-sparkle-extra", "problem1-ma-dsbo-gt")
@pytest.mark.parametrize(
    ("problem", "method"),
    [
        (SHARED, db.sparkle("extra", **RATES)),
        (SHARED, db.ma_dsbo(**RATES, lower_steps=2, auxiliary_steps=2, tracking=True)),
        (SHARED, db.gossip_dsbo(alpha=0.02, beta=0.1, theta=0.1, terms=3, smoothness=4.0, convexity=0.5)),
        (PERSONAL, db.svr_interact(alpha=0.05, beta=0.1, period=3, terms=4, scale=4.0)),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_cluster_equals_simulator_for_every_kind_of_method(problem, method):
    simulated, spread = assert_same(problem, method, GRAPHS["torus"], db.Cluster(devices=4))
    for column in ("samples", "gradients", "hvps", "jvps", "rounds"):
        np.testing.assert_allclose(spread.trace[column], simulated.trace[column], rtol=1e-6)


@pytest.mark.slow
def test_a_graph_per_level_and_unequal_nodes():
    rng = np.random.default_rng(0)
    sizes = [3, 5, 4, 9, 3, 6, 7, 4]
    data = [{"a": rng.normal(size=(n, 3)), "b": rng.normal(size=n)} for n in sizes]

    def lower(x, y, batch):
        return 0.5 * ((batch["a"] @ y - batch["b"]) ** 2).mean() + 0.5 * (jax.numpy.exp(x) * y * y).sum()

    def upper(x, y, batch):
        return 0.5 * ((batch["a"] @ y - batch["b"]) ** 2).mean()

    start = {"x0": np.zeros(3), "y0": np.zeros(3)}
    listed = db.Problem(upper, lower, upper_data=data, lower_data=data[::-1], **start)
    called = db.Problem(upper, lower, upper_data=lambda i: data[i], lower_data=lambda i: data[::-1][i], **start)
    graphs = Levels(x=GRAPHS["ring"], y=GRAPHS["torus"])
    method = db.sparkle("ed", **RATES, updates="simultaneous")
    expected, _ = assert_same(listed, method, graphs, db.Cluster(devices=4))
    lazily, _ = nodes_of(called, method, graphs, db.Cluster(devices=4))
    np.testing.assert_allclose(np.asarray(lazily.nodes.y), np.asarray(expected.nodes.y), rtol=1e-12)


@pytest.mark.parametrize("devices", [8, 4])
def test_the_ledger_is_what_the_collectives_move(devices):
    """And nothing else moves: no all-reduce, no all-gather inside the step."""
    method = db.sparkle("ed", **RATES, updates="simultaneous")
    start = db.Cluster(devices=devices).start
    run = start(SHARED, method, Levels(x=GRAPHS["erdos-renyi"]), RunConfig())
    chunk, page, _ = run.compile(5)
    text = chunk.as_text()
    body = "\n".join(block for block in text.split("\n\n") if "collective-permute" in block)
    assert not re.search(r"all-(reduce|gather|to-all)|reduce-scatter", body)
    moved = sum(pairs * size for pairs, size in permutes(text))
    assert moved == pytest.approx(page.fixed["bytes"] * NODES)
    if devices == NODES:
        assert page.fixed["bytes"] == db.cost(SHARED, method, GRAPHS["erdos-renyi"])["bytes"]


@pytest.mark.parametrize("name", ["ring", "torus", "erdos-renyi"])
@pytest.mark.parametrize("devices", [1, 2, 4, 8])
def test_a_plan_brings_every_row_once_to_who_needs_it(name, devices):
    graph, each = GRAPHS[name], NODES // devices
    tables = slots(graph, devices)
    sources = np.where(tables.weights[:, 0] != 0, tables.neighbours, -1)
    made = plan(sources, tables.receivers % each, NODES, devices)
    links = {(j, i // each) for i, j in zip(*np.nonzero(graph.W), strict=True) if j // each != i // each}
    arrived = []
    for wave in made.waves:
        senders, receivers = zip(*wave.pairs, strict=True)
        assert len(set(senders)) == len(senders) and len(set(receivers)) == len(receivers)
        arrived += [(int(a * each + row), b) for a, b in wave.pairs for row in wave.rows[a]]
    assert sorted(arrived) == sorted(links) and made.sent == len(links)


def test_nodes_that_do_not_fit_raise():
    with pytest.raises(
        ValueError, match=r"6 nodes cannot be distributed evenly over 4 devices: use Cluster\(devices=3\)"
    ):
        db.Cluster(devices=4).mesh(6)
    with pytest.raises(ValueError, match=r"devices=9, but JAX sees 8: choose from 1 to 8"):
        db.Cluster(devices=9).mesh(9)
