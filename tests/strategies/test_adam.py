"""Adam's steps on a level: rivals as they are printed, the fixed point of adam-ed, and the bias of its rivals."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from quadratics import assert_all_at, assert_sums_to_zero, random_quadratic

import decibel as db
from decibel.methods._single_level import SingleLevel
from decibel.strategies import adam_ed, strategy

NODES, CHUNK = 8, 20  # the steps of a compiled program, which tests share
QUADRATIC = random_quadratic(NODES)
PROBLEM = QUADRATIC.single()
RING = db.graphs.ring(NODES)
W = RING.W
SOLUTION = np.tile(QUADRATIC.single_solution(), (NODES, 1))


def gradient(x):
    return np.einsum("nij,nj->ni", QUADRATIC.R, x - QUADRATIC.e)


def run(name, steps, rate, problem=PROBLEM, **options):
    options = {"eval_every": min(steps, CHUNK), "metrics": []} | options
    return db.solve(problem, db.CATALOG[name](alpha=rate), RING, steps=steps, progress=False, **options)


def falling(k):
    """From 0.03 to zero, so that Adam comes to rest."""
    return 0.03 * jnp.maximum(1 - k / 2000, 0.0) ** 2


class Moments:
    """Adam's, in NumPy."""

    def __init__(self, shape):
        self.m, self.v, self.t = np.zeros(shape), np.zeros(shape), 0

    def average(self, g):
        self.t += 1
        self.m = 0.9 * self.m + 0.1 * g
        return self.m / (1 - 0.9**self.t)

    def scale(self, size):
        self.v = 0.99 * self.v + 0.01 * size**2
        return np.sqrt(self.v / (1 - 0.99**self.t)) + 1e-8


def test_dadam_is_the_printed_recursion():
    s, adam = np.zeros((NODES, 3)), Moments((NODES, 3))
    for _ in range(60):
        g = gradient(s)
        s = W @ (s - 0.05 * adam.average(g) / adam.scale(g))
    np.testing.assert_allclose(run("dadam", 60, 0.05).nodes.x, s, rtol=0, atol=1e-9)


def test_gt_adam_is_the_printed_recursion():
    """With h⁰ = 0 and the gradient before the first one zero."""
    s, h, before, adam = np.zeros((NODES, 3)), np.zeros((NODES, 3)), np.zeros((NODES, 3)), Moments((NODES, 3))
    for _ in range(60):
        g = gradient(s)
        h, before = W @ h + g - before, g
        s = W @ s - 0.05 * adam.average(h) / adam.scale(h)
    np.testing.assert_allclose(run("gt-adam", 60, 0.05).nodes.x, s, rtol=0, atol=1e-9)


def test_second_moments_of_the_averaged_difference_leave_the_fixed_point():
    method = SingleLevel(falling, 1.0, adam_ed(averaged=True))
    result = db.solve(PROBLEM, method, RING, steps=2000, metrics=[], eval_every=CHUNK, progress=False)
    np.testing.assert_allclose(result.nodes.x, SOLUTION, rtol=0, atol=1e-10)


def test_only_corrected_methods_end_at_the_solution():
    result = run("adam-ed", 2000, falling)
    np.testing.assert_allclose(result.nodes.x, SOLUTION, rtol=0, atol=1e-10)
    assert_sums_to_zero(result.state.x.carry[0])
    np.testing.assert_allclose(run("gt-adam", 2000, falling).nodes.x, SOLUTION, rtol=0, atol=1e-6)
    assert np.abs(np.asarray(run("dadam", 2000, falling).nodes.x) - SOLUTION).max() > 0.1


@pytest.mark.slow
def test_all_levels_of_sparkle():
    method = db.sparkle("adam-ed", alpha=falling, beta=falling, gamma=falling)
    result = db.solve(QUADRATIC.problem(), method, RING, steps=2000, metrics=[], eval_every=100)
    assert_all_at(result.nodes.x, QUADRATIC.solution(), 1e-5)


def test_a_step_size_of_zero_stands_still():
    for name in ("adam-ed", "gt-adam", "dadam"):
        result = run(name, CHUNK, 0.0)
        np.testing.assert_array_equal(result.nodes.x, 0.0)
        assert all(not np.any(np.asarray(c.tree)) for c in result.state.x.carry)


@pytest.mark.slow
def test_faults_leave_adam_ed_exact():
    result = run("adam-ed", 2000, falling, faults=[db.faults.drop(0.2), db.faults.pause(probability=0.1)])
    np.testing.assert_allclose(result.nodes.x, SOLUTION, rtol=0, atol=1e-9)


def test_what_does_not_fit_is_rejected():
    with pytest.raises(ValueError, match=r"momentum=1 must be at least 0 and below 1."):
        adam_ed(momentum=1)
    with pytest.raises(ValueError, match=r"needs w_ii ≥ 0.3333, and complete has 0.125: use graph.lazy\(\)."):
        db.solve(PROBLEM, db.adam_ed(), db.graphs.complete(NODES), steps=1)
    with pytest.raises(
        ValueError, match=r"strategy 'adam-gt' makes steps of its own, which cannot be wrapped: wrap one"
    ):
        db.privacy.quantize("adam-gt")
    assert not strategy("adam-gt").allows(db.prox.nonnegative())
