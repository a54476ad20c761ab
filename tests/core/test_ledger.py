"""What a run costs, against counts by hand: per node and step, in float64, so eight bytes a number."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from quadratics import random_quadratic

import decibel as db
from decibel.engines._program import RunConfig

P, Q, NODES, STEPS = 2, 3, 4, 3
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


def costs(problem, method, graph=RING, **options):
    trace = db.solve(problem, method, graph, steps=STEPS, metrics=[], progress=False, eval_every=STEPS, **options).trace
    assert all(trace[name][0] == 0 for name in trace)
    return {name: values[-1] / STEPS for name, values in trace.items() if name not in ("step", "seconds")}


def traced(problem, method, batch_size):
    """What one step reports while it is traced; nothing is compiled."""
    run = db.Simulator().start(problem, method, db.Levels(x=RING), RunConfig(batch_size))
    pages = []
    jax.eval_shape(lambda k, state: pages.append(run.program.step(k, state)[1]), jnp.int32(0), run.state)
    assert not pages[0].repeated
    return pages[0].fixed


@pytest.mark.parametrize("name", CASES)
def test_counts_by_hand(name):
    method, expected, numbers = CASES[name]
    problem = SINGLE if name.startswith("single") else PROBLEM
    assert traced(problem, method, 4) == expected | {"bytes": 2 * 8 * numbers}


@pytest.mark.slow_except("ed-gt")
@pytest.mark.parametrize("name", ["ed-gt", "d-soba-fo"])
def test_the_trace_shows_the_same_counts(name):
    method, expected, numbers = CASES[name]
    expected = expected | {"bytes": 2 * 8 * numbers}
    assert costs(PROBLEM, method, batch_size=4) == expected
    assert db.cost(PROBLEM, method, RING, batch_size=4) == expected


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
    assert costs(SINGLE, db.dsgd(alpha=0.01), graph)["bytes"] == pytest.approx(neighbours * P * 8)


def test_a_graph_per_level_is_paid_per_level():
    levels = db.Levels(x=db.graphs.complete(NODES), y=RING, z=db.graphs.star(NODES))
    expected = 8 * (3 * P + 2 * Q + 1.5 * Q)
    assert costs(PROBLEM, db.sparkle("ed", **RATES), levels)["bytes"] == expected


def test_full_batches_cost_all_samples():
    data = [{"a": np.ones((n, 2))} for n in (1, 2, 3, 6)]
    problem = db.Problem(lambda x, batch: jnp.mean(batch["a"] @ x), upper_data=data, x0=jnp.zeros(2))
    assert costs(problem, db.ed(alpha=0.01))["samples"] == 3.0  # on average over nodes
    assert costs(PROBLEM, db.sparkle("ed", **RATES))["samples"] == 10.0  # five of each level


def test_float32_sends_half():
    found = costs(QUADRATIC.single(dtype=jnp.float32), db.ed(alpha=0.01))["bytes"]
    assert 2 * found == costs(SINGLE, db.ed(alpha=0.01))["bytes"]


def test_costs_add_up_over_chunks():
    trace = db.solve(SINGLE, db.gt(alpha=0.01), RING, steps=7, eval_every=3, metrics=[], progress=False).trace
    assert trace["step"].tolist() == [0, 3, 6, 7]
    assert trace["rounds"].tolist() == [0, 6, 12, 14]
    assert np.all(np.diff(trace["seconds"]) > 0)
