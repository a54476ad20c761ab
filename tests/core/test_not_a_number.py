"""A NaN anywhere in a large array is found by whatever decides something from its largest or smallest entry."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decibel as db
from decibel.core._vector import max_or_nan, min_or_nan, replicate
from decibel.results.metrics import Snapshot, invariant
from decibel.strategies import strategy
from decibel.tasks.hyperparameter import ValidationAccuracy

MANY = 4096
PLACES = [0, 1, 17, MANY // 2, MANY - 1]


def spoilt(dtype=jnp.float64):
    """A row for each place, with a NaN there."""
    rows = jnp.asarray(np.random.default_rng(0).normal(size=(len(PLACES), MANY)), dtype)
    return rows.at[jnp.arange(len(PLACES)), jnp.asarray(PLACES)].set(jnp.nan)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_reductions_keep_it(dtype):
    rows = jnp.concatenate([spoilt(dtype), jnp.ones((1, MANY), dtype)])
    for found in jax.jit(jax.vmap(lambda row: (max_or_nan(row), min_or_nan(row))))(rows):
        found = np.asarray(found)
        assert np.isnan(found[:-1]).all() and found[-1] == 1 and found.dtype == dtype


def test_reductions_are_those_of_numpy():
    values = np.random.default_rng(0).normal(size=MANY)
    assert (
        float(max_or_nan(jnp.asarray(values))) == values.max()
        and float(min_or_nan(jnp.asarray(values))) == values.min()
    )
    assert float(max_or_nan(jnp.asarray([1.0, jnp.inf]))) == np.inf and float(min_or_nan(jnp.asarray([3.0]))) == 3.0


@pytest.mark.parametrize("bits", [2, 8])
def test_a_quantized_message_tells_it(bits):
    code = db.privacy.quantize("ed", bits).flow_form.code

    def received(message):
        row = code.encode(message, jax.random.key(0), jax.random.key(1))
        return code.decode(row, jax.random.key(0), MANY, jnp.float64)

    assert jnp.isnan(jax.jit(jax.vmap(received))(spoilt())).all()


def test_the_invariant_shows_it():
    level = strategy("ed").start(replicate(jnp.zeros(MANY), 3))
    problem = db.Problem(lambda x, batch: (x * batch).sum(), upper_data=np.ones((3, 1, 1)), x0=jnp.zeros(MANY))

    def of(row):
        state = db.ed(alpha=0.1).start(level.s, None)._replace(x=level._replace(carry=(replicate(row, 3),)))
        return invariant("x")(Snapshot(problem, state))

    assert jnp.isnan(jax.jit(jax.vmap(of))(spoilt())).all()


def personal(nodes):
    """Every node's own g is y², and at one of them NaN."""

    def lower(x, y, batch):
        return (y**2 * jnp.sqrt(batch.mean())).sum() + 0 * x.sum()

    data = np.ones((nodes, 1))
    data[nodes // 2] = -1
    start = dict(x0=jnp.zeros(1), y0=jnp.ones(1))
    upper = lambda x, y, batch: (x * y).sum()  # noqa: E731
    return db.Problem(upper, lower, upper_data=np.ones((nodes, 1)), lower_data=data, personal=True, **start)


@pytest.mark.slow
def test_a_lower_level_that_one_of_many_nodes_cannot_solve_raises():
    with pytest.raises(ValueError, match="solve_lower stopped at a relative ‖∇_y g‖ of nan"):
        personal(MANY).solve_lower(jnp.zeros(1))


def test_a_curvature_that_one_of_many_nodes_lacks_is_found():
    found = [finding.text for finding in personal(MANY).check().findings]
    assert any("g is not strongly convex in y: curvature of g in y between nan" in text for text in found)


def test_the_least_coefficient_shows_it():
    problem = db.Problem(
        lambda x, y, batch: (y - x).sum(),
        lambda x, y, batch: ((y - x) ** 2).sum(),
        upper_data=(np.ones((3, 2, MANY)), np.ones((3, 2))),
        lower_data=np.ones((3, 2)),
        x0=jnp.zeros(MANY),
        y0=jnp.zeros(MANY),
    )
    state = db.sparkle("ed", alpha=0.1, beta=0.1, gamma=0.1).start(replicate(spoilt()[2], 3), replicate(problem.y0, 3))
    assert jnp.isnan(ValidationAccuracy(jnp.exp, 0.1)(Snapshot(problem, state))["least_coefficient"])
