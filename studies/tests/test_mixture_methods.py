"""Planned mixtures, gradient alignment and what runs at equal gradients cost."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decibel as db
from decibel_studies.experiments.apps_mixtures_gradients import SETUPS, arms
from decibel_studies.experiments.mixture_methods import Aligned, Path, Planned
from decibel_studies.experiments.mixture_runs import mixture_task, strategy_of
from decibel_studies.experiments.schedules import Linear

SETUP = SETUPS["smoke"]


def test_a_path_goes_through_its_points_in_equal_times():
    path = Path.through(np.array([1.0, 0.0]), np.array([0.0, 1.0]), np.array([0.0, 1.0]), steps=8)
    shares = [np.asarray(path(jnp.int32(k))) for k in (0, 2, 4, 6, 8, 9)]
    np.testing.assert_allclose(shares, [[1, 0], [0.5, 0.5], [0, 1], [0, 1], [0, 1], [0, 1]])
    np.testing.assert_allclose(Path.through(np.array([0.3, 0.7]), steps=8)(jnp.int32(5)), [0.3, 0.7])


def test_methods_take_as_many_gradients():
    """So many steps that the gradients are at least the budget, by less than a row of them."""
    setup = SETUPS["full"]
    costs = {1.25: 3000, 1.0: 3750, 1.125: 3340}
    assert {arm.steps for arm in arms(setup)} == set(costs.values())
    assert all(0 <= cost * steps - setup.gradients < cost * setup.rows for cost, steps in costs.items())


@pytest.fixture(scope="module")
def task():
    return mixture_task(SETUP.texts, "scores", seed=3)


@pytest.mark.slow
def test_alignment_is_the_inner_product_with_the_target(task):
    """After a step on all samples the mean of the nodes' scores is α ⟨∇L_d, ∇L_target⟩; a step that rests leaves it."""
    problem = task.problem
    method = Aligned(0.5, Linear(1e-3, 10), 2, strategy_of(SETUP))
    first, second = (db.solve(problem, method, db.graphs.ring(2), steps=steps, metrics=[]) for steps in (1, 2))
    windows = problem.lower_data.tree["windows"]
    model = problem.lower.model
    gradient = jax.grad(lambda y, windows: model.losses(y, jnp.asarray(windows)).mean())
    agreements = [
        sum(jnp.vdot(a, b) for a, b in zip(jax.tree.leaves(own), jax.tree.leaves(target), strict=True))
        for own, target in (
            (gradient(problem.y0, windows[node]), gradient(problem.y0, problem.upper_data.tree[node]))
            for node in range(2)
        )
    ]
    np.testing.assert_allclose(first.x, 0.5 * np.array(agreements), rtol=1e-6)
    np.testing.assert_array_equal(first.x, second.x)
    assert [run.trace.last["gradients"] for run in (first, second)] == [2, 3]


@pytest.mark.slow
def test_a_planned_mixture_trains_as_a_single_level_with_its_shares():
    free, single = (mixture_task(SETUP.texts, kind, seed=3) for kind in ("free", "single"))
    falling = Linear(1e-3, 10)
    planned = Planned(falling, Path.through(SETUP.uniform, steps=3), strategy_of(SETUP))
    ring, options = db.graphs.ring(2), dict(steps=3, metrics=[])
    first = db.solve(free.problem, planned, ring, **options)
    second = db.solve(
        single.problem, db.adam_ed(alpha=falling).with_strategies(lambda _: strategy_of(SETUP)), ring, **options
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12), first.y, second.x)
    np.testing.assert_allclose(first.x, SETUP.uniform)


def test_sampled_text_has_the_shares_of_the_target():
    setup = replace(SETUP, windows=200)
    domains = mixture_task(setup.texts, "sampled", seed=3).problem.upper_data.tree["domain"]
    np.testing.assert_allclose([np.bincount(node) / len(node) for node in domains], [setup.aim] * 2, atol=5e-3)
