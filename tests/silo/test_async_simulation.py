"""Whole silos without a common clock on a virtual clock, network and disk (`simulation`): what must hold under every
schedule; planted bugs that are found are in `test_simulation.py`."""

from __future__ import annotations

import numpy as np
import pytest
from simulation import Schedule, World
from simulation.async_node import ALPHA, WaveNode, largest_flow, solution
from simulation.coded_links import CODES
from simulation.node import Problem, weights
from simulation.schedule import ASYNC_KINDS

import decibel as db
from decibel.network._links import LinkStatus

RING = tuple(tuple(sorted(((i - 1) % 4, (i + 1) % 4))) for i in range(4))


def run(seed, kind=None):
    world = World(Schedule.of(seed, kind, asynchronous=True))
    world.run()
    return world


def nodes_of(levels, **more):
    problem, slots = Problem.of(4, levels), weights(RING)
    return problem, [WaveNode(problem, i, RING[i], slots[i], **more) for i in range(4)]


def together(nodes, step=0):
    """A step in which every node has every message of the same step."""
    sent = [node.waves(step, 1) for node in nodes]
    tied = np.ones(2, bool), np.full(2, LinkStatus.CONTINUE)
    for i, node in enumerate(nodes):
        node.step(lambda level, i=i: (np.stack([sent[j][level][RING[j].index(i)] for j in RING[i]]), *tied))


def test_a_simulated_node_is_the_products():
    data, nodes = nodes_of(1)
    problem = data.of_library()
    expected = db.solve(problem, db.wave(alpha=ALPHA), db.graphs.ring(4), steps=25, metrics=[], progress=False)
    for _ in range(25):
        together(nodes)
    np.testing.assert_allclose([node.s[0] for node in nodes], expected.nodes.x, rtol=0, atol=1e-12)


@pytest.mark.slow_except("plain")
@pytest.mark.parametrize("code", ["", *CODES], ids=lambda code: code or "plain")
def test_simulated_nodes_end_at_the_solution(code):
    problem, nodes = nodes_of(2, code=code, limit=largest_flow(Problem.of(4, 2)))
    for step in range(400):
        together(nodes, step)
    error = 1e-6 if code else 1e-12
    np.testing.assert_allclose([node.s for node in nodes], [solution(problem)] * 4, rtol=0, atol=error)
    assert np.linalg.norm([node.used for node in nodes], axis=-1).max() < ALPHA * largest_flow(problem)


@pytest.mark.parametrize("code", ["", pytest.param("4 bits", marks=pytest.mark.slow)])
def test_a_simulated_node_keeps_flows_within_the_limit(code):
    _, nodes = nodes_of(1, code=code, limit=0.1)
    for step in range(20):
        together(nodes, step)
    sizes = np.linalg.norm([node.used for node in nodes], axis=-1)
    assert 0.999 * 0.1 * ALPHA < sizes.max() < 1.001 * 0.1 * ALPHA


def seeds_of(kind, *, coded):
    """Those of short schedules."""
    schedules = [Schedule.of(seed, kind) for seed in range(100)]
    return [one.seed for one in schedules if bool(one.code) == coded and not one.rests]


@pytest.mark.slow_except("async-calm", "async-lossy", "async-hostile")
@pytest.mark.parametrize("kind", ASYNC_KINDS)
def test_what_must_hold_holds(kind):
    run(seeds_of(kind, coded=False)[0], kind)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ASYNC_KINDS)
def test_what_must_hold_holds_of_messages_in_code(kind):
    for seed in seeds_of(kind, coded=True)[:4]:
        run(seed, kind)


@pytest.mark.slow
def test_what_must_hold_holds_under_many_schedules():
    for seed in range(20):
        run(seed)


@pytest.mark.parametrize("coded", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_seed_replays_exactly(coded):
    one, other = seeds_of("async-storm", coded=coded)[:2]
    digests = [run(seed, "async-storm").digest for seed in (one, other, one)]
    assert digests[0] == digests[2] != digests[1]
