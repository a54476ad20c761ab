"""Stopping on a metric: where it stops, what it keeps, and that a resumed run stops at the same row."""

from __future__ import annotations

from functools import cache

import jax
import numpy as np
import pytest
from quadratics import random_quadratic

import decibel as db
from decibel.results._trace import Trace

PROBLEM, RING = random_quadratic(6, seed=1).single(), db.graphs.ring(6)
METHOD = db.ed(alpha=0.02)


def valley(snapshot):
    """Falls, and then rises, as a loss on held-out samples does."""
    return (np.linalg.norm(snapshot.x) - lowest()) ** 2


@cache
def lowest():
    return float(np.linalg.norm(db.solve(PROBLEM, METHOD, RING, steps=30, eval_every=5, metrics=[]).x))


def solve(*callbacks, steps=200, **options):
    given = {"eval_every": 5, "metrics": [valley], "callbacks": callbacks, **options}
    return db.solve(PROBLEM, METHOD, RING, steps=steps, **given)


def stopping(**options):
    return db.EarlyStopping("valley", **{"patience": 4, **options})


def assert_equal(a, b):
    for one, other in zip(jax.tree.leaves(a.state), jax.tree.leaves(b.state), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.fixture(scope="module")
def stopped():
    return solve(stopping())


def test_a_run_stops_after_rows_without_improvement_and_keeps_the_best_state(stopped):
    values, steps = stopped.trace["valley"], stopped.trace["step"]
    best = int(np.argmin(values))
    assert stopped.status == "stopped" and len(values) == best + 5 and best > 0
    assert stopped.message == (
        f"valley has not improved in 4 rows: the best is {values[best]:.6g}, at step {steps[best]}"
    )
    assert stopped.best.step == steps[best] and stopped.step == steps[-1]
    assert_equal(stopped.best, solve(steps=int(steps[best])))
    assert_equal(stopped, solve(steps=stopped.step))
    assert valley(stopped.best) == values[best]


def test_without_it_nothing_is_kept(stopped):
    assert solve(steps=5).best is None
    alone = solve(stopping(keep_best=False))
    assert alone.best is None and alone.step == stopped.step


@pytest.mark.slow_except("9")
@pytest.mark.parametrize("rows", [3, 7, 9])
def test_a_resumed_run_stops_at_the_same_row_with_the_same_best_state(stopped, rows, tmp_path):
    """Before, at and after the best row."""
    solve(stopping(), steps=5 * rows, checkpoint=tmp_path)
    resumed = solve(stopping(), checkpoint=tmp_path, resume=True)
    assert (resumed.step, resumed.message) == (stopped.step, stopped.message)
    assert resumed.best.step == stopped.best.step
    assert_equal(resumed.best, stopped.best)
    assert_equal(resumed, stopped)


def test_a_run_that_has_stopped_stays_where_it_is_unless_more_patience_is_given(stopped, tmp_path):
    solve(stopping(), checkpoint=tmp_path)
    again = solve(stopping(), checkpoint=tmp_path, resume=True)
    assert (again.step, again.status, again.message) == (stopped.step, stopped.status, stopped.message)
    assert_equal(again.best, stopped.best)
    longer = solve(stopping(patience=6), checkpoint=tmp_path, resume=True)
    assert longer.step > stopped.step and longer.best.step == stopped.best.step
    assert solve(checkpoint=tmp_path, resume=True, steps=longer.step).best is None  # nobody asks for it


def test_another_metric_does_not_take_up_the_best_state_of_the_first(tmp_path):
    solve(stopping(), steps=45, checkpoint=tmp_path)
    other = solve(stopping(mode="max", patience=100), steps=45, checkpoint=tmp_path, resume=True)
    assert other.best is None


def test_counting_is_the_same_in_one_go_and_from_a_trace():
    rng = np.random.default_rng(0)
    for _ in range(50):
        values = rng.choice([*range(8), np.nan], size=rng.integers(1, 12)).tolist()
        patience = int(rng.integers(1, 5))
        once, later = (db.EarlyStopping("m", patience=patience, mode="max", min_delta=1) for _ in range(2))
        answers = [once(step, {"step": step, "m": value}) for step, value in enumerate(values)]
        assert later.resume(Trace({"step": range(len(values)), "m": values})) == answers[-1]
        assert (later.best, later.best_step, later.waited) == (once.best, once.best_step, once.waited)
        best, waited = -np.inf, 0
        for value, answer in zip(values, answers, strict=True):
            best, waited = (value, 0) if value > best + 1 else (best, waited + 1)
            assert answer == (waited >= patience)
        assert once.best == (None if best == -np.inf else best)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (
            lambda: db.EarlyStopping(1, patience=1),
            "metric=1 must be the name of a column of the trace, such as 'upper'.",
        ),
        (lambda: db.EarlyStopping("m", patience=0), "patience=0 must be a positive integer."),
        (lambda: db.EarlyStopping("m", patience=1, mode="least"), "mode='least' is not known: choose 'min' or 'max'."),
        (lambda: db.EarlyStopping("m", patience=1, min_delta=-1), "min_delta=-1 must be finite and not negative."),
        (
            lambda: solve(db.EarlyStopping("vally", patience=1)),
            "EarlyStopping('vally') needs that column in the trace: ",
        ),
        (
            lambda: solve(stopping(), stopping()),
            "callbacks holds two that keep the best state: give one of them keep_best=False.",
        ),
    ],
)
def test_what_is_wrong_raises(call, sentence):
    with pytest.raises((ValueError, TypeError)) as raised:
        call()
    assert str(raised.value).startswith(sentence)
