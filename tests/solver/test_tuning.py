"""Step sizes by search: the best candidate wins, and every score is the score of a real run."""

from __future__ import annotations

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from quadratics import random_quadratic

import decibel as db

QUADRATIC = random_quadratic(4, seed=2)
PROBLEM, GRAPH = QUADRATIC.problem(samples=4), db.graphs.ring(4)
METHOD = db.sparkle("ed", alpha=0.02, beta=0.05, gamma=0.05, theta=0.5, updates="simultaneous")
DISTANCE = db.metrics.distance(QUADRATIC.solution())


def test_scores_are_those_of_real_runs():
    tuned = db.tune(
        PROBLEM,
        METHOD,
        GRAPH,
        steps=30,
        metric=DISTANCE,
        batch_size=2,
        seeds=(0, 1),
        search={"alpha": [0.01, 0.2], "beta": [0.05, 0.3]},
    )
    assert len(tuned.table) == 4 and [r["distance"] for r in tuned.table] == sorted(r["distance"] for r in tuned.table)
    for row in (tuned.table[0], tuned.table[-1]):
        method = db.sparkle("ed", **{k: row[k] for k in ("alpha", "beta", "gamma", "theta")}, updates="simultaneous")
        options = {"steps": 30, "batch_size": 2, "eval_every": 30, "metrics": [DISTANCE]}
        ends = [db.solve(PROBLEM, method, GRAPH, seed=s, **options).trace["distance"][-1] for s in (0, 1)]
        np.testing.assert_allclose(row["distance"], np.mean(ends), rtol=1e-9)
        np.testing.assert_allclose(row["spread"], np.ptp(ends), rtol=1e-6)
    assert tuned.method.alpha == tuned.table[0]["alpha"] and tuned.score == tuned.table[0]["distance"]


@pytest.mark.slow
def test_random_search_beats_the_start_and_bounds_weights():
    tuned = db.tune(PROBLEM, METHOD, GRAPH, budget=16, steps=60, metric=DISTANCE, seeds=(0,), at_once=5)
    own = next(row for row in tuned.table if row["alpha"] == 0.02 and row["beta"] == 0.05)
    assert len(tuned.table) >= 16 and tuned.score < own["distance"]
    assert all(row["theta"] <= 1 for row in tuned.table)
    assert "alpha" in str(tuned) and tuned.to_pandas().shape == (len(tuned.table), 6)


def test_divergence_scores_infinity_and_all_divergent_raises():
    tuned = db.tune(PROBLEM, METHOD, GRAPH, steps=400, metric=DISTANCE, seeds=(0,), search={"beta": [0.1, 1e4]})
    assert tuned.table[-1]["distance"] == np.inf and tuned.method.beta == 0.1
    with pytest.raises(ValueError, match="all 1 settings diverged"):
        db.tune(PROBLEM, METHOD, GRAPH, steps=400, metric=DISTANCE, seeds=(0,), search={"beta": [1e4]})


@pytest.mark.slow
@pytest.mark.parametrize("wide", [True, False], ids=["x64", "x32"])
def test_large_seeds_score_as_real_runs(wide):
    with jax.enable_x64(wide):
        samples = np.random.default_rng(0).normal(size=(4, 50, 2))
        loss = lambda x, batch: 0.5 * ((x - batch) ** 2).sum(-1).mean()  # noqa: E731
        problem, method = db.Problem(loss, upper_data=samples, x0=jnp.zeros(2)), db.ed(alpha=0.5)
        options, seeds = {"steps": 4, "batch_size": 2}, (2**31, 2**32 - 1)
        tuned = db.tune(problem, method, GRAPH, seeds=seeds, search={"alpha": [0.5]}, metric="upper", **options)
        runs = [db.solve(problem, method, GRAPH, seed=s, metrics=["upper"], eval_every=4, **options) for s in seeds]
    ends = [run.trace["upper"][-1] for run in runs]
    assert abs(ends[0] - ends[1]) > 1e-4
    np.testing.assert_allclose(tuned.score, np.mean(ends), rtol=1e-9 if wide else 1e-5)


def test_a_seed_out_of_range_raises():
    with pytest.raises(ValueError, match="seeds=-1 must be an integer from 0 to 4294967295"):
        db.tune(PROBLEM, METHOD, GRAPH, seeds=(0, -1))


def test_what_cannot_be_tuned_raises():
    scheduled = db.ed(alpha=lambda k: 0.1 / (1 + jnp.asarray(k, float)), theta=lambda k: 1.0)
    with pytest.raises(ValueError, match="ed has no constant step sizes to tune"):
        db.tune(QUADRATIC.single(), scheduled, GRAPH)
    with pytest.raises(ValueError, match="search names 'delta'"):
        db.tune(PROBLEM, METHOD, GRAPH, search={"delta": [1.0]})
    with pytest.raises(ValueError, match="search='best' is not known"):
        db.tune(PROBLEM, METHOD, GRAPH, search="best")


def test_the_grid_covers_the_range():
    tuned = db.tune(
        QUADRATIC.single(), db.ed(alpha=0.1, theta=0.5), GRAPH, budget=9, steps=50, search="grid", seeds=(0,)
    )
    assert len(tuned.table) == 9
    assert {round(row["alpha"], 6) for row in tuned.table} == {0.003162, 0.1, 3.162278}


@pytest.mark.slow
def test_moments_average_over_the_second_half():
    search = {"alpha": [0.05]}
    options = {"metric": DISTANCE, "batch_size": 2, "seeds": (3,), "search": search}
    tuned = db.tune(PROBLEM, METHOD, GRAPH, steps=40, moments=4, **options)
    method = db.sparkle("ed", alpha=0.05, beta=0.05, gamma=0.05, theta=0.5, updates="simultaneous")
    trace = db.solve(PROBLEM, method, GRAPH, steps=40, batch_size=2, eval_every=5, metrics=[DISTANCE], seed=3).trace
    np.testing.assert_allclose(tuned.score, trace["distance"][[5, 6, 7, 8]].mean(), rtol=1e-9)


class TestWidening:
    SMALL = db.sparkle("ed", alpha=1e-5, beta=1e-4, gamma=1e-4, updates="simultaneous")

    def test_a_start_that_is_far_too_small_is_left_behind(self):
        small = db.ed(alpha=1e-5)
        tuned = db.tune(QUADRATIC.single(), small, GRAPH, budget=12, steps=60)
        first = [row for row in tuned.table if abs(np.log10(row["alpha"] / 1e-5)) <= 1.5]
        assert tuned.method.alpha > 1e-2 and len(first) >= 12
        assert tuned.score < min(row["upper"] for row in first)

    @pytest.mark.slow
    def test_where_all_diverge_smaller_steps_are_tried(self):
        huge = db.sparkle("ed", alpha=1e3, beta=1e3, gamma=1e3, updates="simultaneous")
        assert np.isfinite(db.tune(PROBLEM, huge, GRAPH, budget=6, steps=300, metric=DISTANCE).score)

    def test_values_that_were_named_are_all_that_is_tried(self):
        tuned = db.tune(PROBLEM, self.SMALL, GRAPH, steps=5, metric=DISTANCE, search={"beta": [1e-6, 1e-2]})
        assert len(tuned.table) == 2


@pytest.mark.slow
def test_an_average_that_is_off_and_the_rest_between_steps_are_searched_when_asked():
    plain = db.sparkle("ed", alpha=0.02, beta=0.05, gamma=0.05)
    search = {"theta": [0.5, 1.0], "upper_every": [1, 2]}
    tuned = db.tune(PROBLEM, plain, GRAPH, steps=20, metric=DISTANCE, seeds=(0,), search=search)
    tried = {(row["theta"], row["upper_every"]): row["distance"] for row in tuned.table}
    assert len(tried) == 4 and min(tried, key=tried.get) == (tuned.method.theta, tuned.method.upper_every)
    row = db.sparkle("ed", alpha=0.02, beta=0.05, gamma=0.05, theta=0.5, upper_every=2)
    end = db.solve(PROBLEM, row, GRAPH, steps=20, metrics=[DISTANCE]).trace.last["distance"]
    np.testing.assert_allclose(tried[0.5, 2], end, rtol=1e-9)
    with pytest.raises(ValueError, match="upper_every=0 must be a positive integer"):
        db.tune(PROBLEM, plain, GRAPH, steps=20, search={"upper_every": [0]})


class TestSeeds:
    SEARCH = {"search": {"alpha": [0.01]}, "steps": 3, "metric": "upper"}  # noqa: RUF012

    def ran(self, monkeypatch, problem, method, **options):
        class Seen(Exception):
            pass

        def see(*given, seeds, **rest):
            raise Seen(*seeds)

        monkeypatch.setattr("decibel.solver._tune.BatchRun", see)
        with pytest.raises(Seen) as seen:
            db.tune(problem, method, GRAPH, **self.SEARCH, **options)
        return list(seen.value.args)

    def test_one_where_nothing_is_random(self, monkeypatch):
        assert self.ran(monkeypatch, PROBLEM, METHOD) == [0]

    def test_two_with_batches(self, monkeypatch):
        assert self.ran(monkeypatch, PROBLEM, METHOD, batch_size=2) == [0, 1]

    def test_two_where_the_method_draws(self, monkeypatch):
        assert self.ran(monkeypatch, QUADRATIC.single(), db.proxskip(alpha=0.01)) == [0, 1]

    def test_two_where_a_loss_takes_a_key(self, monkeypatch):
        given = QUADRATIC.single()

        def noisy(x, batch, *, key=None):
            return given.upper(x, batch) + (0.0 if key is None else jax.random.normal(key, x.shape) @ x)

        problem = db.Problem(noisy, upper_data=given.upper_data, x0=given.x0)
        assert self.ran(monkeypatch, problem, db.ed(alpha=0.01)) == [0, 1]


@pytest.mark.parametrize("name", [name for name, entry in db.CATALOG.items() if not entry.mixture])
def test_step_sizes_may_be_traced(name):
    """A search varies numbers inside a compiled program: no check of a method may compare them in Python."""
    method = db.CATALOG[name]()
    numbers = jax.tree.map(lambda leaf: jnp.asarray(leaf) if isinstance(leaf, float) else leaf, method)
    again = eqx.filter_eval_shape(lambda traced: dataclasses.replace(traced), numbers)
    assert jax.tree.structure(again) == jax.tree.structure(numbers)


def test_a_best_value_at_the_edge_is_said():
    rows = (
        {"alpha": 1.0, "beta": 0.1, "upper": 1.0, "spread": 0.0},
        {"alpha": 0.1, "beta": 0.1, "upper": 2.0, "spread": 0.0},
    )
    tuned = db.Tuned(METHOD, 1.0, "upper", rows)
    assert tuned.at_edge == ("alpha",)  # of beta only one value was tried
    assert str(tuned).endswith("The best alpha lies at the edge of what was tried: search further.")
