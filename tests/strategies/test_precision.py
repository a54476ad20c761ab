"""Numerics that last: 100,000 steps in float32, and under matrix products of reduced precision.

Every test has a contrast, the two-step rule as the papers print it, which drifts or breaks on the same problem.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from quadratics import random_quadratic

import decibel as db

NODES, STEPS, EARLY, RATE = 10, 100_000, 5_000, 0.05
RING = db.graphs.ring(NODES)
QUADRATIC = random_quadratic(NODES, p=3, q=3, seed=2)
QUADRATIC = QUADRATIC._replace(e=QUADRATIC.e + 7.0)  # far from zero, where float32 is coarse
SOLUTION = QUADRATIC.single_solution()
METHODS = {"ed": db.ed(alpha=RATE), "extra": db.extra(alpha=RATE)}


def rounded(array):
    """What a matrix unit of reduced precision sees of its operand."""
    return array.astype(jnp.bfloat16).astype(array.dtype)


def measured(problem, method, solution, levels="x"):
    """(errors, drifts): at EARLY, at half time and at the end, the distance to the solution and mean(c)."""
    metrics = [db.metrics.distance(solution), *(f"invariant_{level}" for level in levels)]
    result = db.solve(problem, method, RING, steps=STEPS, eval_every=EARLY, metrics=metrics, progress=False)
    assert result.nodes.x.dtype == jnp.float32
    rows = [1, STEPS // EARLY // 2, STEPS // EARLY]
    drifts = [result.trace[f"invariant_{level}"][rows].max() for level in levels]
    return np.sqrt(result.trace["distance"])[rows], np.max(drifts)


def printed(name, *, multiply, see=lambda array: array):
    """Errors of the two-step rule in float32, at EARLY and at the end; `see` rounds what the gradient multiplies."""
    W, R, e = (jnp.asarray(array, jnp.float32) for array in (RING.W, QUADRATIC.R, QUADRATIC.e))

    def direction(s):
        return jnp.float32(RATE) * jnp.einsum("nij,nj->ni", see(R), see(s - e))

    def step(carry, _):
        s, before, d_before = carry
        d = direction(s)
        if name == "ed":
            after = multiply(W, 2 * s - before - (d - d_before))
        else:
            after = multiply(W, 2 * s - before) - (d - d_before)
        return (after, s, d), jnp.sqrt(jnp.mean(jnp.sum((after - SOLUTION.astype(np.float32)) ** 2, 1)))

    start = jnp.zeros_like(e)
    d = direction(start)
    first = multiply(W, start - d) if name == "ed" else multiply(W, start) - d
    _, errors = jax.lax.scan(step, (first, start, d), None, length=STEPS - 1)
    return np.asarray(errors)[[EARLY, -1]]


@pytest.fixture(autouse=True)
def optimized(monkeypatch):
    """How numbers are rounded is what these tests are about, so their machine code is that of users."""
    compile = jax.stages.Lowered.compile
    options = {"xla_backend_optimization_level": 3}  # which the other tests leave out
    monkeypatch.setattr(jax.stages.Lowered, "compile", lambda self: compile(self, options))


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_single_level_stays_where_it_was(name):
    (early, half, end), drift = measured(QUADRATIC.single(dtype=jnp.float32), METHODS[name], SOLUTION)
    assert early < 5e-5 and half < 2 * early and end < 2 * early
    assert drift < 1e-7
    before, after = printed(name, multiply=jnp.matmul)
    assert after > 0.1 and after > 5 * before > 100 * early


@pytest.mark.slow
@pytest.mark.parametrize("lower", METHODS)
def test_sparkle_stays_where_it_was(lower):
    problem = QUADRATIC.problem(dtype=jnp.float32)
    method = db.sparkle(lower, alpha=0.05, beta=0.2, gamma=0.2, theta=0.5)
    (early, half, end), drift = measured(problem, method, QUADRATIC.solution(), "xyz")
    assert early < 5e-5 and half < 2 * early and end < 2 * early
    assert drift < 1e-6


@pytest.mark.slow_except("extra")
@pytest.mark.parametrize("name", METHODS)
def test_reduced_products_in_the_losses(name):
    """The model in bfloat16, forward and backward; the state and what neighbours exchange in float32."""

    def loss(x, batch):
        R, e = jnp.mean(batch["R"], 0), jnp.mean(batch["e"], 0)
        return 0.5 * jnp.vdot(rounded(x - e), rounded(R) @ rounded(x - e))

    data = {"R": QUADRATIC.R[:, None], "e": QUADRATIC.e[:, None]}
    problem = db.Problem(loss, upper_data=data, x0=jnp.zeros(3, jnp.float32))
    (early, half, end), drift = measured(problem, METHODS[name], SOLUTION)
    assert 1e-4 < early < 0.2  # the loss itself is rounded, so the solution moved a little
    assert half < 1.5 * early and end < 1.5 * early
    assert drift < 1e-6
    _, broken = printed(name, multiply=lambda W, s: rounded(W) @ rounded(s), see=rounded)
    assert not broken < 20 * end + 2.0  # NaN counts


@pytest.mark.slow
def test_reduced_products_in_both_levels():
    """SPARKLE with every product of both losses rounded: Hessian products too."""

    def lower(x, y, batch):
        H, B, c = (jnp.mean(batch[name], 0) for name in "HBc")
        low = rounded(y)
        return 0.5 * jnp.vdot(low, rounded(H) @ low) - jnp.vdot(low, rounded(B) @ rounded(x) + c)

    def upper(x, y, batch):
        M, a, R, e = (jnp.mean(batch[name], 0) for name in "MaRe")
        return 0.5 * sum(jnp.vdot(rounded(s), rounded(Q) @ rounded(s)) for Q, s in ((M, y - a), (R, x - e)))

    data = {name: array[:, None] for name, array in QUADRATIC._asdict().items()}
    start = jnp.zeros(3, jnp.float32)
    problem = db.Problem(upper, lower, upper_data=data, lower_data=data, x0=start, y0=start)
    method = db.sparkle("ed", "extra", alpha=0.05, beta=0.2, gamma=0.2, theta=0.5)
    (early, half, end), drift = measured(problem, method, QUADRATIC.solution(), "xyz")
    assert 1e-4 < early < 0.5 and half < 1.5 * early and end < 1.5 * early
    assert drift < 1e-5


def test_a_start_in_half_precision_is_carried_in_float32():
    data = {"R": QUADRATIC.R[:, None], "e": QUADRATIC.e[:, None]}
    problem = db.Problem(lambda x, batch: jnp.sum(x**2), upper_data=data, x0=jnp.ones(3, jnp.bfloat16))
    assert problem.x0.dtype == jnp.float32
