"""How derivatives are evaluated: some nodes at a time, in low precision, on batches that walk through an order."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decibel as db
from decibel.core import _keys as keys
from decibel.core._ledger import COLUMNS
from decibel.engines._program import SHUFFLE_KEYS, RunConfig

RING = db.graphs.ring(8)
RATES = {"alpha": 0.05, "beta": 0.1, "gamma": 0.1}


def regression(sizes, dtype=jnp.float64):
    rng = np.random.default_rng(0)
    data = [{"a": rng.normal(size=(n, 4)), "b": rng.normal(size=n), "number": np.arange(n)} for n in sizes]

    def lower(x, y, batch):
        return 0.5 * ((batch["a"] @ y - batch["b"]) ** 2).mean() + 0.5 * (jnp.exp(x) * y * y).sum()

    def upper(x, y, batch):
        return 0.5 * ((batch["a"] @ y - batch["b"]) ** 2).mean()

    return db.Problem(upper, lower, upper_data=data, lower_data=data, x0=jnp.zeros(4, dtype), y0=jnp.zeros(4, dtype))


def run(problem, engine=None, *, steps=20, method=None, graph=RING, **options):
    method = method or db.sparkle("ed", **RATES)
    return db.solve(problem, method, graph, steps=steps, eval_every=steps, metrics=[], engine=engine, **options)


def assert_alike(one, other, tolerance=1e-12):
    """The same states and the same costs."""
    for a, b in zip(jax.tree.leaves(one.state), jax.tree.leaves(other.state), strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)
    assert [one.trace.last[cost] for cost in COLUMNS] == [other.trace.last[cost] for cost in COLUMNS]


BATCHES = {"drawn": {"batch_size": 2}, "in order": {"batch_size": 2, "sampling": "shuffle-once"}, "all": {}}


@pytest.mark.slow
def test_chunks_of_nodes_take_the_gradients_of_f_once():
    """Once for p and u, though alternating updates ask for them at two z."""
    data, method, traced = np.ones((8, 4, 3)), db.sparkle("ed", **RATES, updates="alternating"), []

    def upper(x, y, batch):
        traced.append(1)
        return ((batch @ (x + y)) ** 2).mean()

    def lower(x, y, batch):
        return ((batch @ (y - x)) ** 2).mean() + (y**2).sum()

    problem = db.Problem(upper, lower, upper_data=data, lower_data=data, x0=jnp.zeros(3), y0=jnp.zeros(3))
    counts = []
    for chunk in (None, 4):
        made = db.Simulator(node_chunk=chunk).start(problem, method, db.Levels(x=RING), RunConfig(2))
        traced.clear()
        made.compile(1)
        counts.append(len(traced))
    assert counts[0] == counts[1] > 0


@pytest.mark.slow
def test_chunks_of_nodes_need_less_memory():
    """A wide hidden layer, so that what the pullback keeps outweighs the state."""
    rng = np.random.default_rng(0)
    data = rng.normal(size=(64, 50, 2)).astype(np.float32)

    def loss(x, y, batch):
        hidden = jnp.tanh(batch @ y["in"] * jnp.exp(x))
        return ((hidden @ y["out"]) ** 2).mean() + sum((leaf**2).sum() for leaf in y.values())

    y0 = {"in": jnp.ones((2, 256), jnp.float32), "out": jnp.ones(256, jnp.float32)}
    problem = db.Problem(loss, loss, upper_data=data, lower_data=data, x0=jnp.zeros((), jnp.float32), y0=y0)
    method = db.sparkle("ed", **RATES, updates="simultaneous")
    sizes = []
    for chunk in (None, 4):
        start = db.Simulator(node_chunk=chunk).start
        run = start(problem, method, db.Levels(x=db.graphs.ring(64)), RunConfig(50))
        sizes.append(run.compile(2).temp_bytes)
    assert sizes[1] < sizes[0] / 3


def test_a_walk_meets_every_sample_once_before_any_twice():
    sizes, batch = [12, 13, 14, 15, 16, 12, 20, 13], 4
    problem = regression(sizes)
    start = db.Simulator().start
    made = start(problem, db.sparkle("ed", **RATES), db.Levels(x=RING), RunConfig(batch, 3, sampling="shuffle-once"))
    data = made.program.problem.lower_data
    taken = [np.asarray(data.in_order(jnp.int32(k), batch).parts[0]["number"]) for k in range(24)]
    for node, size in enumerate(sizes):
        batches = size // batch
        once = np.concatenate([taken[k][node] for k in range(batches)])
        assert len(set(once.tolist())) == batches * batch and once.max() < size
        np.testing.assert_array_equal(taken[batches][node], taken[0][node])
    other = made.program.problem.upper_data.in_order(jnp.int32(0), batch).parts[0]["number"]
    assert not np.array_equal(other, taken[0])  # the levels' orders differ
    assert len({tuple(rows) for rows in taken[0].tolist()}) > 1  # and so do the nodes'


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2**32 - 1, np.int64(2**31)])
def test_every_accepted_seed_shuffles_the_samples(seed):
    problem, options = regression([12] * 8), {"batch_size": 4, "sampling": "shuffle-once", "seed": seed}
    here = run(problem, steps=1, **options)
    # The order is the one that the seed's own key gives.
    key = jax.random.fold_in(keys.key(seed), SHUFFLE_KEYS)
    order = problem.upper_data.shuffled(key, jnp.arange(8)).tree["number"]
    np.testing.assert_array_equal(here.problem.upper_data.tree["number"], order)


@pytest.mark.slow_except("bfloat16")
@pytest.mark.parametrize("precision", ["bfloat16", "tensorfloat32"])
def test_what_is_carried_stays_wide_and_its_mean_stays_zero(precision):
    problem = regression([12] * 8, jnp.float32)
    found, expected = (run(problem, steps=300, precision=choice) for choice in (precision, None))
    assert {leaf.dtype for leaf in jax.tree.leaves(found.state)} == {np.dtype("float32")}
    np.testing.assert_allclose(found.y, expected.y, atol=0.02)
    if precision == "bfloat16":
        assert np.abs(np.asarray(found.y) - np.asarray(expected.y)).max() > 1e-5  # it did compute in bfloat16
    for level in (found.state.x, found.state.y, found.state.z):
        np.testing.assert_allclose(np.asarray(level.carry[0].tree).mean(0), 0.0, atol=1e-6)


def _copied(problem):
    """The same problem with data of its own for the lower level."""
    return problem.replace_data(problem.upper_data, jax.tree.map(jnp.array, problem.lower_data))


@pytest.mark.slow
@pytest.mark.parametrize("engine", [db.Simulator(node_chunk=3), db.Cluster(devices=4)], ids=repr)
@pytest.mark.parametrize("batches", BATCHES.values(), ids=BATCHES)
def test_levels_on_the_same_data_give_the_numbers_and_costs_of_copies(engine, batches):
    problem = regression([4, 4, 5, 6, 3, 3, 7, 4])
    shared, apart = (run(one, engine, **batches) for one in (problem, _copied(problem)))
    assert_alike(shared, apart, 1e-13)


def test_levels_on_the_same_data_compute_once_what_they_share():
    """In a full batch, a y and aᵀ r of ∇_y g are those of ∇_y f; what is left are the two products of H z."""

    def products(problem):
        method = db.sparkle("ed", **RATES, updates="simultaneous")
        chunk = db.Simulator().start(problem, method, db.Levels(x=RING), RunConfig()).compile(2).chunk
        return chunk.as_text().count(" dot(")

    problem = regression([4] * 8)
    assert (products(problem), products(_copied(problem))) == (4, 6)
