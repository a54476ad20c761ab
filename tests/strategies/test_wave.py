"""Wave: EXTRA by link, exact where messages are late or lost, nodes differ in speed, leave, return or are set back."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from quadratics import Quadratic, random_quadratic
from wave_reference import wave

import decibel as db
from decibel.engines._program import RunConfig
from decibel.graphs._graph import Levels
from decibel.methods._single_level import SingleLevel
from decibel.strategies._local import with_local_steps

NODES, SLOW, CHUNK = 8, 0, 50  # the steps of a compiled program, which many tests share
RING = db.graphs.ring(NODES)
DRAWN = random_quadratic(NODES, seed=1, spread=2.0)
SCALE = np.where(np.arange(NODES) == SLOW, 2.0, 1.0)[:, None, None]
# The node that tests slow down has the largest curvature on every level.
QUADRATIC = DRAWN._replace(H=SCALE * DRAWN.H, R=SCALE * DRAWN.R, M=SCALE * DRAWN.M)
RATES = {"alpha": 0.03, "beta": 0.1, "gamma": 0.1}
LATE, LOST, SLOWED = db.faults.late((1, 5)), db.faults.drop(0.2, one_way=True), db.faults.slow(SLOW, 10)


def run(
    strategy="wave", faults=None, *, steps=CHUNK, graph=RING, quadratic=QUADRATIC, updates="simultaneous", **options
):
    method = db.sparkle(strategy, **RATES, updates=updates)
    options = {"eval_every": min(steps, CHUNK), "metrics": []} | options
    return db.solve(QUADRATIC.problem(), method, graph, steps=steps, faults=faults, **options)


def single(strategy="wave", faults=None, *, steps=CHUNK, alpha=0.2, graph=RING, **options):
    method = SingleLevel(alpha, 1.0, db.strategies.strategy(strategy))
    options = {"eval_every": min(steps, CHUNK), "metrics": []} | options
    return db.solve(QUADRATIC.single(), method, graph, steps=steps, faults=faults, **options)


def error(result, quadratic=QUADRATIC, nodes=slice(None)):
    return np.abs(np.asarray(result.nodes.x)[nodes] - quadratic.solution()).max()


def assert_same(a, b, atol=0.0):
    for one, other in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(one, other, atol=atol, rtol=0)


def test_the_slow_node_of_these_tests_has_the_largest_curvature():
    for matrices in (QUADRATIC.H, QUADRATIC.R):
        assert np.linalg.eigvalsh(matrices).max(1).argmax() == SLOW


@pytest.mark.slow_except("ring")
@pytest.mark.parametrize(
    ("graph", "updates"),
    [
        (RING, "simultaneous"),
        (db.graphs.star(NODES), "alternating"),
        (db.graphs.erdos_renyi(NODES, 0.5), "alternating"),
    ],
    ids=["ring", "star", "random"],
)
def test_without_faults_it_is_extra(graph, updates):
    found, expected = (run(name, graph=graph, updates=updates) for name in ("wave", "extra"))
    assert_same(found.nodes, expected.nodes, atol=1e-12)


def test_it_is_extra_from_any_start_and_with_proximal_maps():
    start = jnp.asarray([3.0, -2.0, 5.0])
    data = {"R": QUADRATIC.R[:, None], "e": QUADRATIC.e[:, None]}

    def loss(x, batch):
        return 0.5 * (x - batch["e"][0]) @ (batch["R"][0] @ (x - batch["e"][0]))

    for prox in (None, db.prox.l1(0.3)):
        problem = db.Problem(loss, upper_data=data, x0=start, prox_x=prox)
        found, expected = (
            db.solve(problem, method, RING, steps=40, metrics=[])
            for method in (db.wave(alpha=0.2), db.extra(alpha=0.2))
        )
        assert_same(found.nodes.x, expected.nodes.x, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("τ", [1, 4])
def test_the_cluster_gives_the_simulators_bits(τ):
    faults, mixing = [LATE, LOST, SLOWED], with_local_steps(db.strategies.strategy("wave"), τ)
    here, there = (run(mixing, faults, engine=engine) for engine in (None, db.Cluster(devices=4)))
    assert_same(here.state, there.state)


# Against the reference: the same moves, message by message.

SPEEDS = {"even": {}, "one slow": {0: 3}, "three speeds": {0: 4, 3: 2, 5: 7}}


@pytest.mark.slow_except("one slow-1")
@pytest.mark.parametrize("delay", [0, 1, 3])
@pytest.mark.parametrize("speeds", SPEEDS)
def test_a_node_moves_when_it_is_done_with_what_has_come_by_then(speeds, delay):
    periods = SPEEDS[speeds]
    begins = 4
    faults = [db.faults.slow(node, factor, during=(begins, 100)) for node, factor in periods.items()]
    faults += [db.faults.late(delay)] if delay else []
    found = single("wave", faults, steps=40).nodes.x

    def step(i, x):
        return 0.2 * QUADRATIC.R[i] @ (x - QUADRATIC.e[i])

    expected = wave(
        step,
        np.zeros((NODES, 3)),
        RING.W,
        40,
        ends=lambda k, i: k < begins or (k - begins + 1) % periods.get(i, 1) == 0,
        delay=lambda k, i, j: delay,
    )
    np.testing.assert_allclose(found, expected, atol=1e-13)


def test_messages_that_are_lost_or_overtaken_are_left_out():
    """A link is silent for some steps, and delays grow and shrink, so that old messages arrive after newer ones."""
    lost = [db.faults.drop(links=[(0, 1)], during=(5, 15))]
    delays = [db.faults.late(3, during=(4, 6)), db.faults.late(1, during=(8, 10)), db.faults.late(4, during=(11, 13))]
    found = single("wave", lost + delays, steps=30).nodes.x
    expected = wave(
        lambda i, x: 0.2 * QUADRATIC.R[i] @ (x - QUADRATIC.e[i]),
        np.zeros((NODES, 3)),
        RING.W,
        30,
        delay=lambda k, i, j: 3 if 4 <= k < 6 else 1 if 8 <= k < 10 else 4 if 11 <= k < 13 else 0,
        lost=lambda k, i, j: {i, j} == {0, 1} and 5 <= k < 15,
    )
    np.testing.assert_allclose(found, expected, atol=1e-13)


@pytest.mark.slow
@pytest.mark.parametrize("τ", [2, 8])
def test_local_steps_use_what_has_come_when_they_begin(τ):
    periods, begins = {0: 3, 3: 2}, 4
    faults = [db.faults.slow(node, factor, during=(begins, 100)) for node, factor in periods.items()]
    found = single(with_local_steps(db.strategies.strategy("wave"), τ), [*faults, db.faults.late(1)], steps=40)
    step = lambda i, x: 0.2 * QUADRATIC.R[i] @ (x - QUADRATIC.e[i])  # noqa: E731
    ends = lambda k, i: k < begins or (k - begins + 1) % periods.get(i, 1) == 0  # noqa: E731
    given = dict(ends=ends, delay=lambda k, i, j: 1, local_steps=τ)
    expected = wave(step, np.zeros((NODES, 3)), RING.W, 40, **given)
    np.testing.assert_allclose(found.nodes.x, expected, atol=1e-9, rtol=0)
    whole = wave(step, np.zeros((NODES, 3)), RING.W, 400, share=1.0, **given)
    assert np.abs(whole).max() > 1e3, "with ρ not divided by τ it diverges"


# What stays exact.


@pytest.mark.slow
@pytest.mark.parametrize("code", [None, "4 bits", "limit"])
@pytest.mark.parametrize("τ", [2, 4, 8])
def test_local_steps_are_exact_with_a_slow_node_late_links_and_loss(τ, code):
    made = {"4 bits": db.privacy.quantize("wave", 4), "limit": db.strategies.wave(1e3)}.get(code, "wave")
    method = db.sparkle(made, **RATES, local_steps=τ)
    options = {"steps": 3000, "eval_every": 1500, "metrics": [], "faults": [SLOWED, LATE, LOST]}
    assert error(db.solve(QUADRATIC.problem(), method, RING, **options)) < 1e-8
    one, several = (db.cost(QUADRATIC.problem(), db.sparkle(made, **RATES, local_steps=n), RING) for n in (1, τ))
    assert several["gradients"] == τ * one["gradients"]
    assert (several["rounds"], several["bytes"]) == (one["rounds"], one["bytes"])


def test_a_limit_bounds_the_flows_of_local_steps():
    """Far below what honest nodes need, so that each stays within the links' limits of its own solution."""
    limited = with_local_steps(db.strategies.wave(0.05), 4)
    assert db.strategies.with_limit(limited, 0.05).name == limited.name
    x = np.asarray(single(limited, steps=400).nodes.x)
    gradients = np.einsum("nij,nj->ni", QUADRATIC.R, x - QUADRATIC.e)
    assert np.linalg.norm(gradients, axis=1).max() <= 2 * 0.05 + 1e-9


@pytest.mark.slow
def test_three_levels_are_exact_with_a_slow_node_late_links_and_loss():
    result = run("wave", [SLOWED, LATE, LOST], steps=6000)
    assert error(result) < 1e-8
    lower = QUADRATIC.lower_solution(QUADRATIC.solution())
    assert np.abs(np.asarray(result.nodes.y) - lower).max() < 1e-8


@pytest.mark.slow
@pytest.mark.parametrize(("delay", "steps"), [((1, 20), 4500), (20, 20000)], ids=["1-20", "20"])
def test_exact_with_every_link_late(delay, steps):
    assert error(run("wave", db.faults.late(delay), steps=steps)) < 1e-10


@pytest.mark.slow
@pytest.mark.parametrize(
    ("faults", "updates"),
    [
        ([db.faults.slow(None, 2.0, random=True), db.faults.slow(SLOW, 20.0, random=True), LATE, LOST], "simultaneous"),
        (db.faults.drop(0.5), "alternating"),
        ([db.faults.pause(probability=0.3), db.faults.late((1, 8), 0.5)], "alternating"),
    ],
    ids=["random", "drop", "pause"],
)
def test_exact_under_every_fault(faults, updates):
    assert error(run("wave", faults, steps=12000, updates=updates)) < 1e-10


@pytest.mark.slow
def test_a_node_leaves_and_returns():
    """Those who stay reach their own solution; when the node is back, all reach that of all."""
    stayed = [node for node in range(NODES) if node != 3]
    away = [LOST, db.faults.leave(3, during=(500, 4000))]
    theirs = Quadratic(*(part[stayed] for part in QUADRATIC))
    apart = run("wave", away, steps=4000)
    assert error(apart, theirs, stayed) < 1e-10
    assert error(apart, nodes=stayed) > 1e-2
    assert error(run("wave", away, steps=8000)) < 1e-10


@pytest.mark.slow
@pytest.mark.parametrize("faults", [(), (LATE, LOST, SLOWED)], ids=["calm", "faults"])
def test_a_node_is_set_back_by_150_steps(faults):
    """Its state, and what it remembers of its links, are those of 150 steps ago; nobody is told."""
    config = RunConfig(faults=faults)
    run = db.Simulator().start(QUADRATIC.problem(), db.sparkle("wave", **RATES), Levels(x=RING), config)
    for _ in range(50 // CHUNK):
        run.advance(CHUNK)
    old = jax.tree.map(lambda leaf: np.array(leaf[5]), run.state)
    for _ in range(150 // CHUNK):
        run.advance(CHUNK)
    before = np.asarray(run.state.x.s.tree)
    run.state = jax.tree.map(lambda leaf, old: leaf.at[5].set(old), run.state, old)
    assert np.abs(before[5] - np.asarray(run.state.x.s.tree)[5]).max() > 1e-2
    for _ in range(6000 // CHUNK):
        run.advance(CHUNK)
    assert np.abs(np.asarray(run.state.x.s.tree) - QUADRATIC.solution()).max() < 1e-10


@pytest.mark.slow
def test_float32_stays_at_rounding_for_100_000_steps():
    problem, exact = QUADRATIC.problem(dtype=jnp.float32), QUADRATIC.solution()
    start, config = Levels(x=RING), RunConfig()
    run, errors = db.Simulator().start(problem, db.sparkle("wave", **RATES), start, config), []
    for _ in range(50):
        run.advance(2000)
        errors.append(np.abs(np.asarray(run.state.x.s.tree) - exact).max() / np.abs(exact).max())
    assert max(errors[2:]) < 1e-5
    assert max(errors[-10:]) < 2 * max(errors[2:12]) + 1e-6


@pytest.mark.slow
def test_edge_flows_use_late_messages():
    """Where they were counted as lost, nodes would never have agreed."""
    assert error(run("edge-ed", db.faults.late(1), steps=3000)) < 1e-10
    assert error(run(db.strategies.edge_ed(100.0), [LATE, LOST], steps=4000)) < 1e-10


# Time.


@pytest.mark.slow
def test_simulated_time_is_a_column_where_nodes_are_slow():
    found = run("wave", SLOWED)
    np.testing.assert_array_equal(found.trace["simulated_time"], [0, CHUNK])
    waits = run("extra", SLOWED)
    np.testing.assert_array_equal(waits.trace["simulated_time"], [0, 10 * CHUNK])
    mixed = db.solve(
        QUADRATIC.problem(), db.sparkle("wave", "ed", **RATES), RING, steps=4, faults=SLOWED, metrics=[], eval_every=4
    )
    assert mixed.trace["simulated_time"][-1] == 40
    assert "simulated_time" not in run("wave", LATE, steps=4).trace


def test_lockstep_methods_wait_and_keep_their_numbers():
    dropped = db.faults.drop(0.3)
    assert_same(run("ed", [SLOWED, dropped]).state, run("ed", dropped).state)


def test_a_slow_node_computes_and_sends_less():
    slow, none = (run("wave", faults).trace for faults in (SLOWED, None))
    for column in ("samples", "gradients", "bytes"):
        assert slow[column][-1] == pytest.approx(none[column][-1] * (7 + 0.1) / 8)


@pytest.mark.slow
def test_random_times_have_their_mean():
    several = db.faults.slow([0, 1], 4.0, random=True)
    result = single("wave", several, steps=2000)
    share = result.trace["gradients"][-1] / 2000  # of the nodes that ended a step in a unit of time
    assert share == pytest.approx((6 + 2 / 4) / 8, abs=0.01)
    waits = single("ed", db.faults.slow(0, 4.0, random=True), steps=2000).trace["simulated_time"][-1] / 2000
    assert waits == pytest.approx(4.0, rel=0.1)


def test_windows_of_slowness_and_the_last_of_several_counts():
    faults = [db.faults.slow(None, 5, during=(10, 20)), db.faults.slow(2, 3, during=(10, 15))]
    assert single("ed", faults, steps=30).trace["simulated_time"][-1] == 20 + 50
    assert single("ed", [db.faults.slow(0, 5), db.faults.slow(None, 3)], steps=10).trace["simulated_time"][-1] == 30


def first_below(result, tolerance=1e-6, column="step"):
    errors = np.asarray(result.trace["worst"])
    assert errors[-1] < tolerance
    return np.asarray(result.trace[column])[np.flatnonzero(errors >= tolerance).max() + 1]


def worst(snapshot):
    return jnp.abs(snapshot.state.x.s.tree - QUADRATIC.single_solution()).max()


@pytest.mark.slow
def test_one_node_ten_times_slower_costs_at_most_two_and_a_half_times_the_time():
    graph, options = RING.lazy(), {"alpha": 0.05, "eval_every": 20, "metrics": [worst], "steps": 2000}
    calm = first_below(single("wave", graph=graph, **options))
    slow = first_below(single("wave", SLOWED, graph=graph, **options), column="simulated_time")
    lockstep = first_below(single("extra", SLOWED, graph=graph, **options), column="simulated_time")
    assert slow <= 2.5 * calm
    assert lockstep >= 9 * calm


@pytest.mark.slow
def test_a_run_resumes_exactly(tmp_path):
    options = {"faults": [LATE, LOST, SLOWED]}
    whole = run("wave", steps=2 * CHUNK, **options)
    run("wave", steps=CHUNK, checkpoint=tmp_path, **options)
    last = run("wave", steps=2 * CHUNK, checkpoint=tmp_path, resume=True, **options)
    assert_same(whole.state, last.state)
    np.testing.assert_array_equal(whole.trace["simulated_time"], last.trace["simulated_time"])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: db.faults.slow(0, 0), "factor=0"),
        (lambda: db.faults.slow(0, 2.5), "factor=2.5 must be an integer"),
        (lambda: db.faults.late((3, 2)), "delay="),
        (lambda: run("wave", db.faults.slow(NODES, 2), steps=1), "node 8"),
        (lambda: run("wave", steps=1, graph=db.graphs.one_peer_exponential(NODES)), "symmetric W"),
    ],
)
def test_what_makes_no_sense_raises(make, message):
    with pytest.raises(ValueError, match=message):
        make()
