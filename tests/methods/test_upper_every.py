"""A lazy upper level: x and z move in every k-th step, y in every step."""

from __future__ import annotations

import jax
import numpy as np
import pytest
import references
import streamed
from quadratics import assert_all_at, random_quadratic

import decibel as db

difference, penalty = db.hypergradient.difference, db.hypergradient.penalty

NODES, CHUNK = 4, 20  # the steps of a compiled program, which tests share
QUADRATIC = random_quadratic(NODES)
PROBLEM = QUADRATIC.problem()
RING = db.graphs.ring(NODES)
RATES = dict(alpha=0.05, beta=0.1, gamma=0.1, theta=0.4)


def run(problem, method, graph, steps, **options):
    every = min(steps, CHUNK)
    return db.solve(problem, method, graph, steps=steps, eval_every=every, metrics=[], progress=False, **options)


def agree(result, reference, tolerance):
    """Every node's x, y and z."""
    for level, found, expected in zip("xyz", result.nodes, reference, strict=True):
        np.testing.assert_allclose(found, expected, atol=tolerance, rtol=0, err_msg=f"level {level}")


class Penalized:
    """The directions of the penalty form, by hand."""

    quadratic = QUADRATIC
    strength = 10.0

    def gx(self, x, y):
        return -np.einsum("nqp,nq->np", QUADRATIC.B, y)

    def v(self, x, y):
        return QUADRATIC.v(x, y)

    def p(self, x, y, z):
        copy = y - z / self.strength
        return self.strength * (QUADRATIC.v(x, y) - QUADRATIC.v(x, copy)) - QUADRATIC.fy(x, copy)

    def u(self, x, y, z):
        copy = y - z / self.strength
        return QUADRATIC.fx(x, copy) - self.strength * (self.gx(x, y) - self.gx(x, copy))


CASES = {
    "ed 4": ("ed", "ed", "simultaneous", 4, None),
    "extra 8": ("extra", "ed", "simultaneous", 8, None),
    "gt 4 alternating": ("gt", "extra", "alternating", 4, None),
    "difference 8": ("ed", "gt", "alternating", 8, difference()),
    "penalty 8": ("gt", "ed", "simultaneous", 8, penalty(10.0)),
}


@pytest.mark.slow_except("gt 4 alternating", "penalty 8")
@pytest.mark.parametrize("case", CASES)
def test_follows_the_reference(case):
    lower, upper, updates, every, form = CASES[case]
    reference = Penalized() if isinstance(form, type(penalty())) else QUADRATIC
    expected = references.sparkle(reference, lower, upper, RING.W, updates=updates, steps=60, every=every, **RATES)
    method = db.sparkle(lower, upper, updates=updates, hypergradient=form, upper_every=every, **RATES)
    agree(run(PROBLEM, method, RING, 60), expected, 1e-10)


def test_ends_at_the_solution():
    method = db.sparkle("ed", alpha=0.1, beta=0.2, gamma=0.2, updates="simultaneous", upper_every=4)
    result = run(PROBLEM, method, RING, 1500)
    assert_all_at(result.nodes.x, QUADRATIC.solution(), 1e-10)


@pytest.mark.slow
def test_local_steps_are_exact():
    method = db.sparkle("ed", alpha=0.05, beta=0.1, gamma=0.1, upper_every=4, local_steps=2)
    result = run(PROBLEM, method, RING, 1500)
    assert_all_at(result.nodes.x, QUADRATIC.solution(), 1e-10)


def test_a_phase_counts_the_exchanges_of_its_level():
    """With one phase for all levels and two phases, x and z would meet the same neighbour for ever."""
    graph = db.graphs.one_peer_exponential(NODES)
    matrices = [phase.W for phase in graph.phases]
    expected = references.sparkle(
        QUADRATIC, "gt", "gt", lambda turn: matrices[turn % len(matrices)], steps=60, every=4, **RATES
    )
    agree(run(PROBLEM, db.sparkle("gt", upper_every=4, **RATES), graph, 60), expected, 1e-10)


@pytest.mark.slow
def test_a_phase_counts_the_exchanges_of_its_level_link_by_link():
    late = db.faults.late(1, 0.0)  # which changes nothing, but messages go link by link
    method = db.sparkle("gt", upper_every=4, **RATES)
    changing = db.graphs.cycle(RING, db.graphs.star(NODES))
    result = db.solve(PROBLEM, method, changing, steps=60, eval_every=CHUNK, metrics=[], faults=late)
    matrices = [RING.W, db.graphs.star(NODES).W]
    expected = references.sparkle(QUADRATIC, "gt", "gt", lambda turn: matrices[turn % 2], steps=60, every=4, **RATES)
    agree(result, expected, 1e-10)


def costs_of_steps(form, steps=5):
    method = db.sparkle("ed", hypergradient=form, upper_every=4, **RATES)
    trace = db.solve(PROBLEM, method, RING, steps=steps, eval_every=1, metrics=[]).trace
    return [np.diff(trace[name]).tolist() for name in ("gradients", "hvps", "bytes", "rounds")]


@pytest.mark.slow
def test_a_resting_step_costs_no_product():
    gradients, hvps, *_ = costs_of_steps(None)
    assert gradients == [2, 1, 1, 1, 2] and hvps == [1, 0, 0, 0, 1]


def test_a_resting_step_costs_one_gradient():
    vectors = 2 * 8  # to two neighbours, of float64
    gradients, hvps, sent, rounds = costs_of_steps(penalty(10.0))
    assert gradients == [3, 1, 1, 1, 3] and hvps == [0] * 5
    assert sent == [vectors * (3 + 4 + 4), *[vectors * 4] * 3, vectors * (3 + 4 + 4)] and rounds == [2, 1, 1, 1, 2]
    mean = db.cost(PROBLEM, db.sparkle("ed", hypergradient=penalty(10.0), upper_every=4, **RATES), RING)
    assert mean["gradients"] == 1.5 and mean["bytes"] == vectors * (4 + 7 / 4)
    assert db.sparkle("ed", upper_every=4, **RATES).sends == "p/4 + q + q/4 numbers"


def test_a_resting_step_reads_nothing_of_the_upper_level():
    read = {level: streamed.sources(streamed.samples()) for level in ("upper", "lower")}
    problem = streamed.problem(read["upper"], read["lower"])
    method = db.sparkle("ed", upper_every=4, **RATES)
    before = {level: len(nodes[0].calls) for level, nodes in read.items()}
    run(problem, method, db.graphs.ring(streamed.NODES), 8, batch_size=2)
    calls = {level: len(nodes[0].calls) - before[level] for level, nodes in read.items()}
    assert calls == {"upper": 2, "lower": 8}


def test_adams_corrections_count_the_steps_of_their_level():
    method = db.sparkle("adam-ed", alpha=1e-2, beta=1e-2, gamma=1e-2, upper_every=4)
    state = run(PROBLEM, method, RING, 10).state
    assert [float(level.carry[-1].tree[0]) for level in (state.x, state.y, state.z)] == [3, 10, 3]


@pytest.mark.slow
@pytest.mark.parametrize("lower", ["edge-ed", "wave"])
def test_links_that_remember(lower, tmp_path):
    """Lost messages do no harm, and a run that continues from a checkpoint is the same."""
    method = db.sparkle(lower, alpha=0.1, beta=0.1, gamma=0.1, upper_every=3)
    faults = db.faults.drop(0.2, one_way=True)

    def solved(steps, **options):
        return db.solve(
            PROBLEM, method, RING, steps=steps, eval_every=500, metrics=[], faults=faults, progress=False, **options
        )

    whole = solved(3000)
    assert_all_at(whole.nodes.x, QUADRATIC.solution(), 1e-10)
    solved(1500, checkpoint=tmp_path)
    resumed = solved(3000, checkpoint=tmp_path, resume=True)
    for level in "xyz":
        assert np.array_equal(getattr(whole.nodes, level), getattr(resumed.nodes, level))


@pytest.mark.slow
def test_codes():
    method = db.sparkle(db.privacy.top_k("ed", 0.5), alpha=0.05, beta=0.05, gamma=0.05, upper_every=2)
    result = run(PROBLEM, method, RING, 1500)
    assert_all_at(result.nodes.x, QUADRATIC.solution(), 1e-8)


@pytest.mark.slow
def test_micro_batches():
    problem = random_quadratic(NODES).problem(samples=4)
    method = db.sparkle("ed", upper_every=2, **RATES)
    one, parts = (
        db.solve(problem, method, RING, steps=9, batch_size=4, micro_batch=size, metrics=[]) for size in (None, 2)
    )
    np.testing.assert_allclose(one.nodes.x, parts.nodes.x, atol=1e-13)


@pytest.mark.slow
def test_the_cluster_does_the_same():
    graph = db.graphs.cycle(RING, db.graphs.path(NODES))
    method = db.sparkle("gt", hypergradient=penalty(10.0), upper_every=3, **RATES)
    one = run(PROBLEM, method, graph, 20)
    devices = min(2, jax.device_count())
    other = db.solve(PROBLEM, method, graph, steps=20, metrics=[], engine=db.Cluster(devices=devices))
    agree(other, one.nodes, 1e-12)


def test_what_does_not_fit_is_rejected():
    with pytest.raises(ValueError, match="upper_every=0 must be a positive integer"):
        db.sparkle("ed", upper_every=0, **RATES)
    with pytest.raises(ValueError, match=r"upper_every=4 cannot be combined with db.faults.slow"):
        db.solve(
            PROBLEM, db.sparkle("wave", upper_every=4, **RATES), RING, steps=2, faults=db.faults.slow(0, 3), metrics=[]
        )
