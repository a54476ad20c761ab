"""What a run costs, against counts by hand: per node and step, in float64, so eight bytes a number."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from quadratics import random_quadratic

import decibel as db

P, Q, NODES = 2, 3, 4
QUADRATIC = random_quadratic(NODES, p=P, q=Q)
PROBLEM, SINGLE = QUADRATIC.problem(samples=5), QUADRATIC.single()
RING = db.graphs.ring(NODES)
RATES = dict(alpha=0.01, beta=0.01, gamma=0.01)
ALTERNATING = RATES | {"updates": "alternating"}
ALL = P + Q + Q  # x, y and z

# Per step: samples are given per batch size b = 4; vectors are numbers sent to each neighbour.
CASES = {
    # y, z and x one after the other; v and ∇f; H z at (x, y⁺) and J z⁺: an upper and three lower batches
    "ed": (db.sparkle("ed", **ALTERNATING), dict(samples=16, gradients=2, hvps=1, jvps=1, rounds=3), ALL),
    "extra": (db.sparkle("extra", **ALTERNATING), dict(samples=16, gradients=2, hvps=1, jvps=1, rounds=3), ALL),
    "gt": (db.sparkle("gt", **ALTERNATING), dict(samples=16, gradients=2, hvps=1, jvps=1, rounds=6), 2 * ALL),
    "ed-gt": (db.sparkle("ed", "gt", **ALTERNATING), dict(samples=16, gradients=2, hvps=1, jvps=1, rounds=4), ALL + P),
    "non-gt": (db.sparkle("non-gt", **ALTERNATING), dict(samples=16, gradients=2, hvps=1, jvps=1, rounds=3), 2 * ALL),
    # all three in one message
    "simultaneous ed": (
        db.sparkle("ed", updates="simultaneous", **RATES),
        dict(samples=8, gradients=2, hvps=1, jvps=1, rounds=1),
        ALL,
    ),
    "simultaneous gt-ed": (
        db.sparkle("gt", "ed", updates="simultaneous", **RATES),
        dict(samples=8, gradients=2, hvps=1, jvps=1, rounds=2),
        P + 4 * Q,
    ),
    "d-soba": (db.dsoba(theta=0.5, **RATES), dict(samples=8, gradients=2, hvps=1, jvps=1, rounds=1), ALL),
    # two more gradients instead of the products
    "d-soba-fo": (db.dsoba_fo(theta=0.5, **RATES), dict(samples=8, gradients=4, hvps=0, jvps=0, rounds=1), ALL),
    "single ed": (db.ed(alpha=0.01), dict(samples=4, gradients=1, hvps=0, jvps=0, rounds=1), P),
    "single gt": (db.gt(alpha=0.01), dict(samples=4, gradients=1, hvps=0, jvps=0, rounds=2), 2 * P),
    "single dsgd": (db.dsgd(alpha=0.01), dict(samples=4, gradients=1, hvps=0, jvps=0, rounds=1), P),
}


@pytest.mark.parametrize("name", CASES)
def test_counts_by_hand(name):
    method, expected, numbers = CASES[name]
    problem = SINGLE if name.startswith("single") else PROBLEM
    assert db.cost(problem, method, RING, batch_size=4) == expected | {"bytes": 2 * 8 * numbers}


def test_the_trace_shows_the_same_counts_and_adds_them_up():
    method, expected, numbers = CASES["single gt"]
    expected = expected | {"bytes": 2 * 8 * numbers}
    trace = db.solve(SINGLE, method, RING, steps=7, batch_size=4, eval_every=3, metrics=[]).trace
    assert trace["step"].tolist() == [0, 3, 6, 7]
    for column, count in expected.items():
        assert trace[column].tolist() == [0, 3 * count, 6 * count, 7 * count]
    assert np.all(np.diff(trace["seconds"]) > 0)


@pytest.mark.parametrize(
    ("graph", "neighbours"),
    [
        (db.graphs.complete(NODES), NODES - 1),
        (db.graphs.star(NODES), 2 * (NODES - 1) / NODES),
        (db.graphs.path(NODES), 2 * (NODES - 1) / NODES),
        (db.graphs.one_peer_exponential(NODES), 1),
        (db.graphs.isolated(NODES), 0),
    ],
    ids=["complete", "star", "path", "one-peer", "isolated"],
)
def test_bytes_by_graph(graph, neighbours):
    """What a node sends on average: its vector, once to each neighbour."""
    assert db.cost(SINGLE, db.dsgd(alpha=0.01), graph)["bytes"] == pytest.approx(neighbours * P * 8)


def test_a_graph_per_level_is_paid_per_level():
    levels = db.Levels(x=db.graphs.complete(NODES), y=RING, z=db.graphs.star(NODES))
    expected = 8 * (3 * P + 2 * Q + 1.5 * Q)
    assert db.cost(PROBLEM, db.sparkle("ed", **RATES), levels)["bytes"] == expected


def test_full_batches_cost_all_samples():
    data = [{"a": np.ones((n, 2))} for n in (1, 2, 3, 6)]
    problem = db.Problem(lambda x, batch: jnp.mean(batch["a"] @ x), upper_data=data, x0=jnp.zeros(2))
    assert db.cost(problem, db.ed(alpha=0.01), RING)["samples"] == 3.0  # on average over nodes
    assert db.cost(PROBLEM, db.sparkle("ed", **RATES), RING)["samples"] == 10.0  # five of each level


def test_float32_sends_half():
    found = db.cost(QUADRATIC.single(dtype=jnp.float32), db.ed(alpha=0.01), RING)["bytes"]
    assert 2 * found == db.cost(SINGLE, db.ed(alpha=0.01), RING)["bytes"]
