"""Whole silos without a common clock on a virtual clock, network and disk (`simulation`): what must hold under every
schedule; planted bugs that are found are in `test_simulation.py`."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from simulation import Schedule, World
from simulation.async_node import ALPHA, ENTRIES, WaveNode, solution
from simulation.node import Problem, weights
from simulation.schedule import ASYNC_KINDS

import decibel as db
from decibel.network._links import LinkState

RING = tuple(tuple(sorted(((i - 1) % 4, (i + 1) % 4))) for i in range(4))


def run(seed, kind=None):
    world = World(Schedule.of(seed, kind, asynchronous=True))
    world.run()
    return world


def nodes_of(levels):
    problem, slots = Problem.of(4, levels), weights(RING)
    return problem, [WaveNode(problem, i, slots[i]) for i in range(4)]


def together(nodes):
    """A step in which every node has every message of the same step."""
    sent = [node.waves() for node in nodes]
    tied = np.ones(2, bool), np.full(2, LinkState.TIED)
    for i, node in enumerate(nodes):
        node.step(lambda level, i=i: (np.stack([sent[j][level][RING[j].index(i)] for j in RING[i]]), *tied))


def test_a_simulated_node_is_the_products():
    data, nodes = nodes_of(1)
    loss = lambda x, one: 0.5 * jnp.sum(one["a"] * (x - one["b"]) ** 2)  # noqa: E731
    own = [{"a": data.a[i], "b": data.b[i]} for i in range(4)]
    problem = db.Problem(loss, upper_data=own, x0=jnp.zeros(ENTRIES))
    expected = db.solve(problem, db.wave(alpha=ALPHA), db.graphs.ring(4), steps=25, metrics=[], progress=False)
    for _ in range(25):
        together(nodes)
    np.testing.assert_allclose([node.s[0] for node in nodes], expected.nodes.x, rtol=0, atol=1e-12)


def test_simulated_nodes_end_at_the_solution():
    problem, nodes = nodes_of(2)
    for _ in range(400):
        together(nodes)
    np.testing.assert_allclose([node.s for node in nodes], [solution(problem)] * 4, rtol=0, atol=1e-12)


@pytest.mark.slow_except("async-calm", "async-lossy", "async-hostile")
@pytest.mark.parametrize("kind", ASYNC_KINDS)
def test_what_must_hold_holds(kind):
    run(0, kind)


@pytest.mark.slow
def test_what_must_hold_holds_under_many_schedules():
    for seed in range(20):
        run(seed)


def test_a_seed_replays_exactly():
    one, other = [seed for seed in range(20) if not Schedule.of(seed, "async-storm").rests][:2]  # those are short
    digests = [run(seed, "async-storm").digest for seed in (one, other, one)]
    assert digests[0] == digests[2] != digests[1]
