"""Momentum, STORM, SPIDER and GRACE against NumPy on the samples that were drawn, and mutants that must be caught."""

from __future__ import annotations

from functools import cache, partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from quadratics import random_quadratic

import decibel as db
from decibel import estimators, hypergradient
from decibel.core._ledger import Ledger
from decibel.core._vector import Vector
from decibel.oracles._oracle import Oracle
from decibel.oracles.estimators import COIN

NODES, SAMPLES, BATCH, Q = 3, 12, 2, 4
RNG = np.random.default_rng(0)
DATA = {"h": RNG.uniform(0.5, 3.0, (NODES, SAMPLES, Q)), "c": RNG.normal(size=(NODES, SAMPLES, Q))}
SEEDS = jnp.arange(100)
POINTS = RNG.normal(size=(14, 2, NODES, Q))  # step, level, node: x and y that jump


def lower(x, y, batch):
    """∇_y g = mean(h) y − mean(c) x: both the curvature and the rest depend on the sample."""
    return jnp.sum(0.5 * jnp.mean(batch["h"], 0) * y**2 - jnp.mean(batch["c"], 0) * x * y)


def upper(x, y, batch):
    return jnp.sum((y - x) ** 2) + jnp.mean(batch["c"])


def problem(data=DATA):
    start = dict(x0=jnp.zeros(Q), y0=jnp.zeros(Q))
    return db.Problem(upper, lower, upper_data={"c": data["c"]}, lower_data=data, **start)


PROBLEM = problem()


def oracle(k, problem=PROBLEM, batch_size=BATCH, seed=0):
    nodes = jnp.arange(NODES, dtype=jnp.int32)
    return Oracle(problem, nodes, jax.random.fold_in(jax.random.key(seed), k), batch_size, Ledger())


def directions(draw, point):
    return (draw.at(*point).v,)


@eqx.filter_jit
def runs(estimator, points, problem, ways=directions):
    """The estimate after every step, (seeds, steps, nodes, q)."""

    def step(seed, memory, now):
        k, x, y = now
        estimate, memory = estimator(k, memory, (Vector(x), Vector(y)), oracle(k, problem, seed=seed), ways)
        return memory, estimate[-1].tree

    def run(seed):
        start = Vector(points[0, 0]), Vector(points[0, 1])
        zero = jax.tree.map(jnp.zeros_like, jax.eval_shape(lambda: ways(oracle(0, problem).draw(), start)))
        along = jnp.arange(len(points), dtype=jnp.int32), points[:, 0], points[:, 1]
        return jax.lax.scan(partial(step, seed), estimator.start(start, zero), along)[1]

    return jax.vmap(run)(SEEDS)


def estimates(estimator, points=POINTS, problem=PROBLEM, ways=directions):
    return np.asarray(runs(estimator, jnp.asarray(points), problem, ways))[0]


def on(batch, point):
    """∇_y g by hand on samples of leaves (nodes, batch, q)."""
    x, y = point
    return np.asarray(batch["h"]).mean(1) * y - np.asarray(batch["c"]).mean(1) * x


@cache
def samples(k, some=False):
    """What the estimator's draw of step k holds."""
    return jax.tree.map(np.asarray, _drawn(jnp.int32(k), some))


@partial(jax.jit, static_argnums=1)
def _drawn(k, some):
    draw = oracle(k).draw_for_variance_reduction() if some else oracle(k).draw()
    return draw.lower.parts[0]


def momentum_by_hand(theta):
    m, out = 0.0, []
    for k, point in enumerate(POINTS):
        m = (1 - theta) * m + theta * on(samples(k), point)
        out.append(m)
    return np.stack(out)


def storm_by_hand(theta):
    out = [on(samples(0), POINTS[0])]
    for k in range(1, len(POINTS)):
        now, before = on(samples(k), POINTS[k]), on(samples(k), POINTS[k - 1])
        out.append(now + (1 - theta) * (out[-1] - before))
    return np.stack(out)


def spider_by_hand(period):
    out = []
    for k, point in enumerate(POINTS):
        if k % period == 0:
            out.append(on(DATA, point))
        else:
            batch = samples(k, some=True)
            out.append(out[-1] + on(batch, point) - on(batch, POINTS[k - 1]))
    return np.stack(out)


def coins(probability):
    keys = [jax.random.fold_in(jax.random.fold_in(jax.random.key(0), k), COIN) for k in range(len(POINTS))]
    return [k == 0 or bool(jax.random.bernoulli(key, probability)) for k, key in enumerate(keys)]


def grace_by_hand(probability, theta):
    out, tossed = [], coins(probability)
    for k, point in enumerate(POINTS):
        if tossed[k]:
            out.append(on(DATA, point))
        else:
            batch = samples(k, some=True)
            out.append(on(batch, point) + (1 - theta) * (out[-1] - on(batch, POINTS[k - 1])))
    assert probability in (0.0, 1.0) or 2 < sum(tossed) < len(tossed) - 2
    return np.stack(out)


def test_samples_are_drawn_afresh_each_step_and_at_each_node():
    drawn = np.stack([samples(k)["h"] for k in range(8)])
    assert drawn.shape == (8, NODES, BATCH, Q)
    assert len({tuple(sample) for sample in drawn.reshape(-1, Q)}) > SAMPLES
    for node in range(NODES):
        known = {tuple(sample) for sample in DATA["h"][node]}
        assert {tuple(sample) for sample in drawn[:, node].reshape(-1, Q)} <= known


def test_further_draws_have_samples_of_their_own():

    @jax.jit
    def batches():
        draw = oracle(0).draw()
        further = [draw, draw.fresh_lower(0), draw.fresh_lower(1), draw.again(0), draw.again(1)]
        return [[batch.parts[0]["c"] for batch in (other.upper, other.lower)] for other in further]

    upper, lower = (np.stack(level) for level in zip(*batches(), strict=True))
    np.testing.assert_array_equal(upper[1], upper[0])
    assert len({batch.tobytes() for batch in lower}) == 5 and not np.array_equal(upper[3], upper[0])


CASES = {
    "plain": (estimators.plain(), lambda: momentum_by_hand(1.0)),
    "momentum": (estimators.momentum(0.3), lambda: momentum_by_hand(0.3)),
    "storm": (estimators.storm(0.3), lambda: storm_by_hand(0.3)),
    "spider": (estimators.spider(5), lambda: spider_by_hand(5)),
    "spider of ⌈√n⌉": (estimators.spider(), lambda: spider_by_hand(4)),
    "grace": (estimators.grace(0.4, 0.3), lambda: grace_by_hand(0.4, 0.3)),
    "grace as PAGE": (estimators.grace(0.4), lambda: grace_by_hand(0.4, 0.0)),
    "grace without coins": (estimators.grace(0.0, 0.3), lambda: grace_by_hand(0.0, 0.3)),
}


@pytest.mark.slow_except("momentum", "storm", "spider", "grace", "grace without coins")
@pytest.mark.parametrize("name", CASES)
def test_follows_the_recursion_on_the_drawn_samples(name):
    estimator, by_hand = CASES[name]
    np.testing.assert_allclose(estimates(estimator), by_hand(), atol=1e-12)


def test_theta_may_be_a_schedule():
    weights = 1 / (1.0 + np.arange(len(POINTS)))
    estimator = estimators.momentum(lambda k: 1 / (1.0 + k.astype(float)))
    found = estimates(estimator)
    m = 0.0
    for k, theta in enumerate(weights):
        m = (1 - theta) * m + theta * on(samples(k), POINTS[k])
    np.testing.assert_allclose(found[-1], m, atol=1e-12)
    np.testing.assert_allclose(m, np.mean([on(samples(k), p) for k, p in enumerate(POINTS)], 0), atol=1e-12)


@pytest.mark.slow
def test_spider_is_exact_where_only_offsets_differ():
    """With one curvature for all samples and x at rest, a difference on *any* same sample is the exact change, so that
    SPIDER never leaves the full gradient."""
    data = DATA | {"h": np.broadcast_to(DATA["h"][:, :1], DATA["h"].shape)}
    points = POINTS.copy()
    points[:, 0] = points[0, 0]
    expected = np.stack([on(data, point) for point in points])
    np.testing.assert_allclose(estimates(estimators.spider(5), points, problem(data)), expected, atol=1e-12)


def with_random_series(draw, point):
    here = draw.at(*point)
    return here.v, hypergradient.neumann(5, 4.0, randomized=True)(here)


@pytest.mark.slow
def test_spider_is_unmoved_where_the_point_rests():
    """Also for a hypergradient whose truncation is drawn: the same k at both points."""
    points = np.broadcast_to(POINTS[:1], POINTS.shape)
    found = estimates(estimators.spider(5), points, ways=with_random_series)
    np.testing.assert_allclose(found[:5], np.broadcast_to(found[0], found[:5].shape), atol=1e-12)


@pytest.mark.slow
def test_svr_interact_is_exact_where_samples_share_their_second_derivatives():
    """Batches of one, yet every difference is the exact change: the run is INTERACT's."""
    quadratic = random_quadratic(NODES, seed=7)
    base = quadratic.problem(personal=True, samples=5)
    noisy = lambda name: getattr(quadratic, name)[:, None] + RNG.normal(size=(NODES, 5, 4))  # noqa: E731
    start = dict(x0=base.x0, y0=base.y0, personal=True)
    data = dict(
        upper_data=base.upper_data.tree | {"a": noisy("a")}, lower_data=base.lower_data.tree | {"c": noisy("c")}
    )
    noisy_problem = db.Problem(base.upper, base.lower, **data, **start)
    rates = dict(alpha=0.1, beta=0.2, hypergradient=hypergradient.exact())
    quiet = dict(steps=30, eval_every=30, metrics=[], progress=False)
    graph = db.graphs.path(NODES)
    method = db.svr_interact(**rates, period=4)
    full = db.solve(noisy_problem, db.interact(**rates), graph, **quiet)
    found = db.solve(noisy_problem, method, graph, batch_size=1, **quiet)
    gap = np.max([np.abs(a - b).max() for a, b in zip(found.nodes[:2], full.nodes[:2], strict=True)])
    assert gap < 1e-12


def test_variance_is_reduced():
    """Points that move slowly, as in a run: mean squared distance from the full gradient over many seeds."""
    points = POINTS[:1] + 0.02 * np.cumsum(POINTS, 0)
    truth = np.stack([on(DATA, point) for point in points])

    def error(estimator):
        found = np.asarray(runs(estimator, jnp.asarray(points), PROBLEM, directions))
        return np.mean((found - truth)[:, 8:] ** 2)  # after the start

    plain, momentum, storm, spider = (error(CASES[name][0]) for name in ("plain", "momentum", "storm", "spider"))
    assert spider < plain / 20 and storm < plain / 3 and storm < momentum, (plain, momentum, storm, spider)


@pytest.mark.parametrize("period", [0, -1, 2.5])
def test_periods_raise(period):
    with pytest.raises(ValueError, match="period"):
        estimators.spider(period)


@pytest.mark.parametrize("probability", [-0.1, 1.5])
def test_probabilities_raise(probability):
    with pytest.raises(ValueError, match="probability"):
        estimators.grace(probability)
