"""The same step on many devices: nothing is sent but rows to neighbours, each once, and all of it is counted."""

from __future__ import annotations

import re

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
PROBLEM = random_quadratic(NODES, seed=3).problem()
RATES = {"alpha": 0.05, "beta": 0.1, "gamma": 0.1}
GRAPHS = {
    "ring": db.graphs.ring(NODES),
    "torus": db.graphs.torus(2, 4),
    "erdos-renyi": db.graphs.erdos_renyi(NODES, 0.5, seed=1),
}


@pytest.mark.parametrize(("strategy", "devices"), [("ed", 8), ("edge-ed", 4)])
def test_the_ledger_is_what_the_collectives_move(strategy, devices):
    """And nothing else moves: no all-reduce, no all-gather inside the step. Flows of links travel with the message."""
    method, graph = db.sparkle(strategy, "gt", **RATES), GRAPHS["erdos-renyi"]
    run = db.Cluster(devices=devices).start(PROBLEM, method, Levels(x=graph), RunConfig())
    chunk, page, _ = run.compile(5)
    text = chunk.as_text()
    body = "\n".join(block for block in text.split("\n\n") if "collective-permute" in block)
    assert not re.search(r"all-(reduce|gather|to-all)|reduce-scatter", body)
    moved = sum(pairs * size for pairs, size in permutes(text))
    assert moved == pytest.approx(page.fixed["bytes"] * NODES)
    if devices == NODES:
        assert page.fixed["bytes"] == db.cost(PROBLEM, method, graph)["bytes"]


@pytest.mark.parametrize("name", GRAPHS)
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
