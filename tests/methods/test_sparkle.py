"""SPARKLE, D-SOBA, SOBA and the single-level methods against NumPy written from the papers, node by node."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import references
from quadratics import assert_all_at, random_quadratic
from references import MIXTURES, Curved

import decibel as db

NODES, CHUNK = 6, 20  # the steps of a compiled program, which many tests share
QUADRATIC = random_quadratic(NODES)
PROBLEM = QUADRATIC.problem()
CURVED = Curved(QUADRATIC)
RING = db.graphs.ring(NODES)
RATES = dict(alpha=0.05, beta=0.1, gamma=0.1, theta=0.4)
ORDERS = ("alternating", "simultaneous")
SINGLE = {"dsgd": "diffusion", "ed": "ed", "extra": "extra", "gt": "gt", "gnsd": "non-gt"}


def run(problem, method, graph, steps):
    return db.solve(problem, method, graph, steps=steps, eval_every=CHUNK, metrics=[], progress=False)


def agree(result, reference, tolerance=1e-9):
    """Every node's x, y and z."""
    for level, found, expected in zip("xyz", result.nodes, reference, strict=True):
        expected = np.broadcast_to(expected, found.shape)
        np.testing.assert_allclose(found, expected, atol=tolerance, rtol=0, err_msg=f"level {level}")
        assert np.abs(expected).max() > 0.05  # both moved


def follow(lower, upper, updates, steps):
    expected = references.sparkle(QUADRATIC, lower, upper, RING.W, updates=updates, steps=steps, **RATES)
    agree(run(PROBLEM, db.sparkle(lower, upper, updates=updates, **RATES), RING, steps), expected)


@pytest.mark.parametrize("lower", MIXTURES)
def test_every_strategy_below_and_above_follows_the_reference(lower):
    """Every strategy once for each level, the two orders in turn; the slow test takes other pairs, and further."""
    place = MIXTURES.index(lower)
    follow(lower, MIXTURES[(place + 1) % len(MIXTURES)], ORDERS[place % 2], 60)


@pytest.mark.slow
@pytest.mark.parametrize("updates", ORDERS)
@pytest.mark.parametrize("lower", MIXTURES)
def test_pairs_follow_the_reference(lower, updates):
    place = MIXTURES.index(lower)
    for upper in (MIXTURES[(place + turn) % len(MIXTURES)] for turn in (0, 2)):
        follow(lower, upper, updates, 300)


@pytest.mark.slow_except("alternating")
@pytest.mark.parametrize("updates", ORDERS)
def test_a_graph_per_level_and_a_curved_lower_level(updates):
    """H and J that change with the point, and graphs that must not be confused."""
    levels = db.Levels(x=db.graphs.path(NODES), y=db.graphs.star(NODES), z=RING)
    W = levels.x.W, levels.y.W, levels.z.W
    expected = references.sparkle(CURVED, "ed", "semi-gt", W, updates=updates, steps=300, **RATES)
    agree(run(CURVED.problem(), db.sparkle("ed", "semi-gt", updates=updates, **RATES), levels, 300), expected)


def test_levels_follow_each_other():
    two = db.Levels(x=RING, y=db.graphs.path(NODES))
    W = RING.W, two.y.W, two.y.W
    expected = references.sparkle(QUADRATIC, "extra", "ed", W, steps=100, **RATES)
    agree(run(PROBLEM, db.sparkle("extra", "ed", **RATES), two, 100), expected)


@pytest.mark.slow
@pytest.mark.parametrize("lower", ["extra", "gt"])
def test_schedules_as_step_sizes(lower):
    """A carry made of steps d that contain their own step size: a wrong place for α shows only when it changes."""
    rates = dict(
        alpha=optax.exponential_decay(0.08, 50, 0.5),
        beta=optax.piecewise_constant_schedule(0.15, {20: 0.5, 90: 0.5}),
        gamma=optax.cosine_decay_schedule(0.15, 400),
        theta=optax.linear_schedule(1.0, 0.2, 100),
    )
    by_hand = dict(
        alpha=lambda k: 0.08 * 0.5 ** (k / 50),
        beta=lambda k: 0.15 * (0.5 if k >= 20 else 1.0) * (0.5 if k >= 90 else 1.0),
        gamma=lambda k: 0.15 * 0.5 * (1 + np.cos(np.pi * min(k, 400) / 400)),
        theta=lambda k: 1.0 + (0.2 - 1.0) * min(k, 100) / 100,
    )
    expected = references.sparkle(QUADRATIC, lower, "ed", RING.W, steps=200, **by_hand)
    with jax.numpy_dtype_promotion("standard"):  # optax's own arithmetic needs it
        result = run(PROBLEM, db.sparkle(lower, "ed", **rates), RING, 200)
    agree(result, expected, 1e-6)  # some of its schedules are float32


@pytest.mark.slow_except("gt")
@pytest.mark.parametrize("name", ["gt", "diffusion"])
def test_one_peer_exponential(name):
    graph = db.graphs.one_peer_exponential(NODES)
    Ws = [phase.W for phase in graph.phases]
    expected = references.sparkle(QUADRATIC, name, name, lambda k: Ws[k % len(Ws)], steps=200, **RATES)
    agree(run(PROBLEM, db.sparkle(name, **RATES), graph, 200), expected)


@pytest.mark.slow_except("second order", "forward")
@pytest.mark.parametrize("forward", [None, False, True], ids=["second order", "central", "forward"])
def test_dsoba(forward):
    """δ is large, so that central and forward differences, and products, are three different algorithms."""
    how = {} if forward is None else dict(delta=0.2, forward=forward)
    method = db.dsoba(**RATES) if forward is None else db.dsoba_fo(**how, **RATES)
    expected = references.dsoba(CURVED, RING.W, steps=200, **how, **RATES)
    agree(run(CURVED.problem(), method, RING, 200), expected)
    for other in ({}, dict(delta=0.2), dict(delta=0.2, forward=True)):
        different = references.dsoba(CURVED, RING.W, steps=200, **other, **RATES)
        gap = np.abs(different[2] - expected[2]).max()
        assert gap == 0 if other == {k: v for k, v in how.items() if v} else gap > 1e-6


@pytest.mark.slow_except("1.0-ed", *(f"0.3-{name}" for name in SINGLE))
@pytest.mark.parametrize("name", SINGLE)
@pytest.mark.parametrize("theta", [1.0, 0.3])
def test_single_level(name, theta):
    method = getattr(db, name)(alpha=0.1, theta=theta)
    result = run(QUADRATIC.single(), method, RING, 400)
    expected = references.single_level(QUADRATIC, SINGLE[name], RING.W, alpha=0.1, theta=theta, steps=400)
    np.testing.assert_allclose(result.nodes.x, expected, atol=1e-9, rtol=0)
    error = np.abs(result.nodes.x - QUADRATIC.single_solution()).max()
    assert error > 1e-3 if name == "dsgd" else error < 1e-9
    assert result.nodes.y is None and result.y is None


@pytest.mark.slow_except("extra-gt")
@pytest.mark.parametrize(("lower", "upper"), [("ed", "ed"), ("extra", "gt"), ("semi-gt", "non-gt")])
def test_sparkle_reaches_the_solution(lower, upper):
    rates = dict(alpha=0.1, beta=0.2, gamma=0.2, theta=0.5)
    result = run(PROBLEM, db.sparkle(lower, upper, updates="simultaneous", **rates), RING, 1000)
    x = QUADRATIC.solution()
    y = QUADRATIC.lower_solution(x)
    z = np.linalg.solve(QUADRATIC.H.mean(0), QUADRATIC.fy(None, np.tile(y, (NODES, 1))).mean(0))
    agree(result, (x, y, z), 1e-10)
    np.testing.assert_allclose(result.x, x, atol=1e-10)


@pytest.mark.slow_except("alternating")
@pytest.mark.parametrize("updates", ORDERS)
def test_complete_graph_with_diffusion_is_centralized(updates):
    """All nodes hold the average after every exchange: the run of one node that holds the averaged losses."""
    complete = db.graphs.complete(NODES)
    result = run(CURVED.problem(), db.sparkle("diffusion", updates=updates, **RATES), complete, 200)
    alone = references.sparkle(_Averaged(CURVED), "local", "local", np.eye(NODES), updates=updates, steps=200, **RATES)
    agree(result, alone, 1e-10)


def test_soba():
    rates = dict(alpha=0.1, beta=0.2, gamma=0.2)
    agree(
        run(CURVED.problem(), db.soba(**rates), db.graphs.complete(NODES), 200),
        references.soba(CURVED, steps=200, **rates),
    )
    smoothed = references.soba(QUADRATIC, theta=0.3, steps=600, **rates)
    agree(run(PROBLEM, db.soba(theta=0.3, **rates), None, 600), smoothed)
    np.testing.assert_allclose(smoothed[0], QUADRATIC.solution(), atol=1e-6)


@pytest.mark.slow
def test_soba_of_one_node():
    one = random_quadratic(1, seed=3)
    result = run(one.problem(), db.soba(alpha=0.1, beta=0.2, gamma=0.2), None, 1500)
    np.testing.assert_allclose(result.x, one.solution(), atol=1e-10)


def test_a_start_away_from_zero_is_common_to_all():
    data = dict(upper_data=PROBLEM.upper_data, lower_data=PROBLEM.lower_data)
    problem = db.Problem(PROBLEM.upper, PROBLEM.lower, **data, x0=jnp.full(3, 2.0), y0=jnp.full(4, -1.0))
    rates = dict(alpha=0.1, beta=0.2, gamma=0.2)
    result = run(problem, db.sparkle("extra", "gt", updates="simultaneous", **rates), RING, 800)
    assert_all_at(result.nodes.x, QUADRATIC.solution(), 1e-10)


class _Averaged:
    """Every node's directions replaced by the average over nodes."""

    def __init__(self, problem):
        self.problem, self.nodes = problem, problem.nodes
        self.quadratic = problem.quadratic

    def __getattr__(self, name):
        each = getattr(self.problem, name)
        return lambda *point: np.broadcast_to(each(*point).mean(0), each(*point).shape)
