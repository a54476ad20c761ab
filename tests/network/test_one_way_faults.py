"""Pushed shares travel as running totals, so that lost messages lose nothing; a lost pull leaves its weight at home."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from quadratics import random_quadratic

import decibel as db
from decibel.core._vector import Vector
from decibel.engines._program import RunConfig
from decibel.network._in_memory import InMemory
from decibel.network._incidence import slots
from decibel.network._push import Push
from decibel.network.faults import fault_schedule

NODES, CHUNK = 8, 50
QUADRATIC = random_quadratic(NODES, seed=1, spread=2.0)
DIGRAPH = db.graphs.random_digraph(NODES, 0.3, seed=1)
RATES = dict(alpha=0.03, beta=0.1, gamma=0.1)
LOST = db.faults.drop(0.1, one_way=True)
ALL = [db.faults.drop(0.2, one_way=True), db.faults.late((1, 3), 0.3), db.faults.pause(probability=0.2)]


def run(problem, method, graph, steps, faults, **options):
    options = {"eval_every": min(steps, CHUNK), "metrics": []} | options
    return db.solve(problem, method, graph, steps=steps, faults=faults, **options)


def bilevel(faults, *, graph=DIGRAPH, steps=3000, **options):
    return run(QUADRATIC.problem(), db.sparkle("push-pull", **RATES), graph, steps, faults, **options)


def error(result):
    return np.abs(np.asarray(result.nodes.x) - QUADRATIC.solution()).max()


def pattern(faults, steps):
    """Which messages are lost, (steps, exchanges, receivers, senders), and which nodes pause, as the run draws it."""
    schedule, everyone = fault_schedule(tuple(faults), 0), jnp.arange(NODES)
    receiver, sender = (ends.ravel() for ends in jnp.meshgrid(everyone, everyone, indexing="ij"))

    def at(k):
        return [schedule.is_lost(k, exchange, receiver, sender) for exchange in (0, 1)], schedule.is_idle(k, everyone)

    lost, idle = jax.vmap(at)(jnp.arange(steps, dtype=jnp.int32))
    return np.stack(lost, 1).reshape(steps, 2, NODES, NODES), np.asarray(idle)


def push_pull(gradient, α, steps, lost, idle, totals=True):
    """Push-pull with the messages that arrive, in NumPy, node by node; without totals a lost push is gone."""
    R, C = DIGRAPH.R, DIGRAPH.C
    s, c = np.zeros((2, NODES, 3))
    sent, heard = np.zeros((NODES, 3)), np.zeros((NODES, NODES, 3))
    links = [(i, j) for i in range(NODES) for j in range(NODES) if i != j and R[i, j]]
    for k in range(steps):
        d, moves = α * gradient(s), ~idle[k]
        arrives = {(e, i, j): not lost[k, e, i, j] and moves[i] and moves[j] for e in (0, 1) for i, j in links}
        p = c + d
        sent = sent + np.where(moves[:, None], p, 0)
        h = d + c - (1 - np.diag(C))[:, None] * p
        for i, j in links:
            if totals and arrives[0, i, j]:
                h[i] += C[i, j] * (sent[j] - heard[i, j])
                heard[i, j] = sent[j]
            elif arrives[0, i, j]:
                h[i] += C[i, j] * p[j]
        φ = s - h
        after = φ.copy()
        for i, j in links:
            if arrives[1, i, j]:
                after[i] += R[i, j] * (φ[j] - φ[i])
        s, c = np.where(moves[:, None], after, s), np.where(moves[:, None], h - d, c)
    return s


def gradient(s):
    return QUADRATIC.fx(s, None)


@pytest.mark.slow
def test_lost_messages_and_pauses_follow_the_running_totals():
    faults = [db.faults.drop(0.3, one_way=True), db.faults.pause(probability=0.2)]
    found = run(QUADRATIC.single(), db.push_pull(alpha=0.1), DIGRAPH, CHUNK, faults)
    lost, idle = pattern(faults, CHUNK)
    assert lost.mean() == pytest.approx(0.3, abs=0.02) and idle.mean() == pytest.approx(0.2, abs=0.1)
    np.testing.assert_allclose(found.nodes.x, push_pull(gradient, 0.1, CHUNK, lost, idle), atol=1e-12)


@pytest.mark.slow
def test_nothing_is_lost_with_totals_and_much_without():
    """With 10 % of the messages lost; the same losses for both."""
    solution, steps = QUADRATIC.single_solution(), 1500
    exact = run(QUADRATIC.single(), db.push_pull(alpha=0.1), DIGRAPH, steps, LOST)
    assert np.abs(exact.nodes.x - solution).max() < 1e-12
    plain = push_pull(gradient, 0.1, steps, *pattern([LOST], steps), totals=False)
    assert np.abs(plain - solution).max() > 0.3


@pytest.mark.slow_except("lost")
@pytest.mark.parametrize(
    ("faults", "graph"),
    [
        (LOST, DIGRAPH),
        (db.faults.drop(0.5, one_way=True), DIGRAPH),
        (db.faults.drop(0.5), DIGRAPH),
        (ALL, DIGRAPH),
        (ALL, db.graphs.ring(NODES)),
        (LOST, db.Levels(x=DIGRAPH, y=db.graphs.star(NODES))),
    ],
    ids=["lost", "half", "down", "all", "ring", "levels"],
)
def test_every_level_stays_exact(faults, graph):
    assert error(bilevel(faults, graph=graph)) < 1e-12


@pytest.mark.slow
def test_what_left_and_has_not_arrived_is_in_the_totals():
    """Σ c, plus what is under way over each link, is zero."""
    result = run(QUADRATIC.single(), db.push_pull(alpha=0.1), DIGRAPH, CHUNK, ALL)
    heard, sent = result.state.link_memory[0][0][0]
    c = np.asarray(result.state.x.carry[0].tree)
    links = slots(DIGRAPH)
    heard = np.asarray(heard.vectors).reshape(-1, 3)[links.slot_of_link]
    i, j = links.receivers[links.slot_of_link], links.neighbours[links.slot_of_link]
    under_way = DIGRAPH.C[i, j, None] * (np.asarray(sent)[j] - heard)
    assert np.abs(c.sum(0)).max() > 1e-4 and np.abs(under_way).max() > 1e-4
    np.testing.assert_allclose(c.sum(0) + under_way.sum(0), 0, atol=1e-13)


@pytest.mark.slow
def test_what_leaves_is_what_arrives_however_large_the_totals_are():
    """A total of 1e8 rounds what is added to it at the eighth digit, for the sender as for its receivers."""
    faults = RunConfig(faults=(db.faults.drop(0.0),)).link_faults(jnp.arange(NODES))
    network = InMemory.with_links(db.Levels(x=DIGRAPH), faults)
    channel, message = network._channel(jnp.int32(0), 0, 0), Push({"x": Vector(jnp.asarray(QUADRATIC.e))})
    memory = jax.tree.map(lambda leaf: leaf + 1e8, message.link_memory(channel))
    received, after = message.receive(channel, memory)
    assert np.abs(np.asarray(after.per_node) - 1e8 - QUADRATIC.e).max() > 1e-10
    pushed = np.asarray(received["x"].tree)
    np.testing.assert_allclose(pushed.sum(0), 0, atol=1e-14)
    np.testing.assert_allclose(pushed, (DIGRAPH.C - np.eye(NODES)) @ QUADRATIC.e, atol=1e-6)


def test_push_sum_loses_no_weight():
    """Biased as without faults, and no more."""
    result = run(QUADRATIC.single(), db.sgp(alpha=0.001), DIGRAPH, 4000, LOST)
    assert np.abs(np.asarray(result.nodes.x).mean(0) - QUADRATIC.single_solution()).max() < 0.05


CHANGING = db.graphs.cycle(DIGRAPH, db.graphs.random_digraph(NODES, 0.4, seed=2))


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: bilevel(LOST, graph=CHANGING, steps=1), "'push-pull' on cycle, which changes with the step"),
        (lambda: bilevel(db.faults.leave(2, during=(1, 5)), steps=1), "loses what it pushes to nodes that leave"),
        (
            lambda: run(QUADRATIC.single(), db.gt(alpha=0.1), db.graphs.one_peer_exponential(NODES), 1, LOST),
            "faults need undirected graphs.*or the strategy 'push-pull'",
        ),
    ],
)
def test_what_makes_no_sense_raises(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        make()
