"""A NaN anywhere in a large array is found by whatever decides something from its largest or smallest entry."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decibel as db
from decibel.core._vector import largest, replicate, smallest
from decibel.results.metrics import Snapshot, invariant
from decibel.strategies import strategy
from decibel.tasks.hyperparameter import ValidationAccuracy

MANY = 4096
PLACES = [0, 1, 17, MANY // 2, MANY - 1]


def spoilt(place, dtype=jnp.float64):
    return jnp.asarray(np.random.default_rng(place).normal(size=MANY), dtype).at[place].set(jnp.nan)


@pytest.mark.slow_except("17-float32", "4095-float64")
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
@pytest.mark.parametrize("place", PLACES)
def test_reductions_keep_it(place, dtype):
    values = spoilt(place, dtype)
    for reduce in (largest, smallest):
        assert jnp.isnan(reduce(values)) and jnp.isnan(jax.jit(reduce)(values))
        rows = jax.jit(jax.vmap(reduce))(jnp.stack([values, jnp.ones_like(values)]))
        assert jnp.isnan(rows[0]) and rows[1] == 1 and rows.dtype == dtype


def test_reductions_are_those_of_numpy():
    values = np.random.default_rng(0).normal(size=MANY)
    assert float(largest(jnp.asarray(values))) == values.max() and float(smallest(jnp.asarray(values))) == values.min()
    assert float(largest(jnp.asarray([1.0, jnp.inf]))) == np.inf and float(smallest(jnp.asarray([3.0]))) == 3.0


@pytest.mark.slow_except("2-17", "8-4095")
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_a_quantized_message_tells_it(bits, place):
    code = db.privacy.quantize("ed", bits).move.code
    row = jax.jit(code.encode)(spoilt(place), jax.random.key(0), jax.random.key(1))
    assert jnp.isnan(code.decode(row, jax.random.key(0), MANY, jnp.float64)).all()


@pytest.mark.parametrize("place", PLACES)
def test_the_invariant_shows_it(place):
    level = strategy("ed").start(replicate(jnp.zeros(MANY), 3))
    level = level._replace(carry=(replicate(spoilt(place), 3),))
    state = db.ed(alpha=0.1).start(level.s, None)._replace(x=level)
    problem = db.Problem(lambda x, batch: (x * batch).sum(), upper_data=np.ones((3, 1, 1)), x0=jnp.zeros(MANY))
    assert jnp.isnan(jax.jit(lambda state: invariant("x")(Snapshot(problem, state)))(state))


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
    state = db.sparkle("ed", alpha=0.1, beta=0.1, gamma=0.1).start(replicate(spoilt(7), 3), replicate(problem.y0, 3))
    assert jnp.isnan(ValidationAccuracy(jnp.exp, 0.1)(Snapshot(problem, state))["least_coefficient"])
