"""Several runs in one program: what may differ between them, and what is refused in a sentence."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decibel as db

NODES = 3
RING = db.graphs.ring(NODES)
METHOD = db.ed(alpha=0.1)


def loss(x, batch):
    return 0.5 * jnp.mean(jnp.sum((x - batch) ** 2, -1))


def problem(seed: int = 0, nodes: int = NODES, dimension: int = 2) -> db.Problem:
    targets = np.random.default_rng(seed).normal(size=(nodes, 4, dimension))
    return db.Problem(loss, upper_data=targets, x0=jnp.zeros(dimension))


def batch(*problems: db.Problem, method: db.Method = METHOD, graph=RING, **options) -> db.BatchRun:
    return db.BatchRun(problems, method, graph, batch_size=2, seeds=range(len(problems)), **options)


def test_runs_are_those_of_solve():
    """With data, seeds and step sizes of their own, on a graph or on levels, and measured alike."""
    problems = [problem(0), problem(1)]
    many = batch(*problems, graph=db.Levels(x=RING), rates={"alpha": [0.1, 0.2]})
    costs = many.advance(10)
    chosen = db.metrics.resolve(["upper", "consensus_x"], *many.snapshot(0))
    for i, alpha in enumerate((0.1, 0.2)):
        alone = db.solve(
            problems[i], db.ed(alpha=alpha), RING, steps=10, batch_size=2, seed=i, metrics=["upper", "consensus_x"]
        )
        row = db.metrics.evaluate(chosen, many.snapshot(i))
        assert row == pytest.approx({name: alone.trace.last[name] for name in row}, rel=1e-9)
        assert all(costs[i][name] == alone.trace.last[name] for name in db.metrics.COSTS if name in costs[i])
    assert many.step == 10 and many.alive.all()


def test_a_run_that_diverged_stays_so_at_its_last_finite_state():
    """Ten steps of one run overflow; a single step from where it was would not."""
    many = batch(problem(0), problem(1), rates={"alpha": [0.1, 1e100]})
    start = jax.tree.map(lambda leaf: np.asarray(leaf[1]), many.state)
    for length in (10, 1):
        costs = many.advance(length)
        assert many.alive.tolist() == [True, False] and costs[0] is not None and costs[1] is None
        jax.tree.map(lambda leaf, first: np.testing.assert_array_equal(leaf[1], first), many.state, start)
    assert (np.asarray(many.state.x.s.tree)[0] != 0).all()


def test_a_run_whose_state_is_not_kept_diverges_alone():
    """It stays diverged, holds nothing of before, and the run beside it has the bits it always has."""
    rates = {"alpha": [0.1, 1e100]}
    many, kept = (batch(problem(0), problem(1), rates=rates, keep_finite=keep) for keep in (False, True))
    for length in (10, 1):
        costs = many.advance(length)
        kept.advance(length)
        assert many.alive.tolist() == [True, False] and costs[0] is not None and costs[1] is None
    found, expected = (np.asarray(each.state.x.s.tree) for each in (many, kept))
    np.testing.assert_array_equal(found[0], expected[0])
    assert not np.isfinite(found[1]).all() and np.isfinite(expected[1]).all()
    assert many.compile(10).temp_bytes < kept.compile(10).temp_bytes


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: batch(problem(nodes=4)), "graph has 3 nodes but the data have 4: give equal numbers."),
        (
            lambda: batch(problem(), method=db.dsoba(alpha=0.1, beta=0.1, gamma=0.1, theta=1.0)),
            "the problem has a single level",
        ),
        (lambda: batch(problem(), problem(dimension=3)), "differ in shape"),
    ],
)
def test_what_does_not_fit_gets_a_sentence(make, words):
    with pytest.raises(ValueError, match=words):
        make()
