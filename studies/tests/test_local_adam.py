"""Several steps of Adam for each exchange, against the papers' recursions in plain NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from quadratics import random_quadratic

import decibel as db
from decibel_studies.experiments.local_adam import AVERAGE, DILOCO, NOLOCO, LocalAdam

NODES, ROUNDS = 4, 12
QUADRATIC = random_quadratic(NODES)
PAIRS = db.graphs.cycle(
    *(
        db.graphs.from_matrix(0.5 * (np.eye(NODES) + np.eye(NODES)[swap]), name="pairs", disconnected=True)
        for swap in ([1, 0, 3, 2], [2, 3, 0, 1])
    )
)


def found(mixing, graph, local_steps):
    method = LocalAdam(mixing, 0.05, local_steps)
    return db.solve(QUADRATIC.single(), method, graph, steps=ROUNDS, metrics=[], eval_every=ROUNDS, progress=False)


def after(local_steps, exchange):
    """All nodes' variables after rounds of Adam, each followed by an exchange: s⁺ and u⁺ from the round, s, f and u."""
    s, u, m, v = np.zeros((4, NODES, 3))
    t = 0
    for k in range(ROUNDS):
        f = s.copy()
        for _ in range(local_steps):
            t += 1
            g = np.einsum("nij,nj->ni", QUADRATIC.R, f - QUADRATIC.e)
            m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g**2
            f = f - 0.05 * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.99**t)) + 1e-8)
        s, u = exchange(k, s, f, u)
    return s


def averaged(k, s, f, u):
    return PAIRS.phases[k % 2].W @ f, u


def diloco(k, s, f, u):
    """SGD with Nesterov's momentum, of which the mean of s − f is the gradient, as torch.optim.SGD has it."""
    gradient = (s - f).mean(0)
    u = 0.9 * u + gradient
    return s - 0.7 * (gradient + 0.9 * u), u


def noloco(k, s, f, u):
    """Pair by pair."""
    new, moved = np.empty_like(s), np.empty_like(u)
    for i in range(NODES):
        j = i ^ (1 if k % 2 == 0 else 2)
        moved[i] = 0.5 * u[i] + 0.7 * ((f[i] - s[i]) + (f[j] - s[j])) / 2 - 0.7 * (s[i] - (s[i] + s[j]) / 2)
        new[i] = s[i] + moved[i]
    return new, moved


@pytest.mark.parametrize(
    ("mixing", "graph", "exchange"),
    [
        (AVERAGE, PAIRS, averaged),
        (DILOCO, db.graphs.complete(NODES), diloco),
        (NOLOCO, PAIRS, noloco),
    ],
    ids=["average", "diloco", "noloco"],
)
def test_each_is_the_printed_recursion(mixing, graph, exchange):
    result = found(mixing, graph, 3)
    np.testing.assert_allclose(result.nodes.x, after(3, exchange), rtol=0, atol=1e-9)
    assert result.trace.last["gradients"] == 3 * ROUNDS
    vectors = {AVERAGE: 1, DILOCO: NODES - 1, NOLOCO: 2}[mixing]
    assert result.trace.last["bytes"] == vectors * ROUNDS * 3 * 8


def test_one_step_with_averaging_is_dadam():
    dadam = db.solve(
        QUADRATIC.single(),
        db.dadam(alpha=0.05),
        PAIRS,
        steps=ROUNDS,
        metrics=[],
        eval_every=ROUNDS,
        progress=False,
    )
    np.testing.assert_allclose(found(AVERAGE, PAIRS, 1).nodes.x, dadam.nodes.x, rtol=0, atol=1e-12)
