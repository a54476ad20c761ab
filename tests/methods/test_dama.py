"""DAMA against NumPy on the samples that were drawn, and the saddle points that it reaches."""

from __future__ import annotations

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import published_references as references
import pytest

import decibel as db
from decibel.core._ledger import Ledger
from decibel.engines._program import RunConfig
from decibel.oracles.estimators import COIN

NODES, SAMPLES, P, Q, STEPS = 6, 5, 3, 4, 50
GRAPH = db.graphs.erdos_renyi(NODES, 0.5, seed=3)
RNG = np.random.default_rng(2)
DATA = {
    "e": RNG.normal(size=(NODES, SAMPLES, P)),
    "B": 0.5 * RNG.normal(size=(NODES, SAMPLES, Q, P)),
    "c": RNG.normal(size=(NODES, SAMPLES, Q)),
}


def objective(x, y, batch):
    """½ ‖x − e‖² + yᵀ (B x + c) − Σ cosh y: y*(x) is not linear in x."""
    e, B, c = (jnp.mean(batch[name], 0) for name in "eBc")
    return 0.5 * jnp.sum((x - e) ** 2) + y @ (B @ x + c) - jnp.sum(jnp.cosh(y))


def problem(prox=None):
    return db.Problem.minimax(objective, data=DATA, x0=jnp.full(P, 0.5), y0=jnp.zeros(Q), prox_x=prox)


def test_dama_follows_the_recursion_on_the_drawn_samples():
    settings = dict(alpha=0.1, beta=0.2, theta=0.3)
    method = db.dama(**settings, probability=0.3)
    run = db.Simulator().start(problem(), method, db.Levels(x=GRAPH), RunConfig(2))

    @jax.jit
    def drawn(t):
        draw = run.program.oracle(t, Ledger()).draw_for_variance_reduction()
        return draw.upper.parts[0], draw.lower.parts[0]

    @cache
    def batches(t):
        return jax.tree.map(np.asarray, drawn(jnp.int32(t)))

    def gradients(t, i, x, y):
        above, below = [DATA] * 2 if t is None else batches(t)
        e, B = above["e"][i].mean(0), above["B"][i].mean(0)
        return x - e + B.T @ y, np.sinh(y) - below["B"][i].mean(0) @ x - below["c"][i].mean(0)

    @jax.jit
    @jax.vmap
    def coin(t):
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(0), t), COIN)
        return (t == 0) | jax.random.bernoulli(key, 0.3)

    coins = np.asarray(coin(jnp.arange(STEPS)))
    assert 5 < sum(coins) < 30
    run.advance(STEPS)
    start = np.full((NODES, P), 0.5), np.zeros((NODES, Q))
    expected = references.dama(gradients, *start, GRAPH.W, coins=coins, **settings)
    for level, wanted in zip((run.state.x, run.state.y), expected, strict=True):
        np.testing.assert_allclose(level.s.tree, wanted, atol=1e-9, rtol=0)
        assert np.ptp(wanted, 0).max() > 1e-3


def saddle(low=-np.inf):
    """By projected descent on max_y, whose y* = arsinh(B x + c)."""
    e, B, c = (DATA[name].mean((0, 1)) for name in "eBc")
    x = np.zeros(P)
    for _ in range(2000):
        x = np.maximum(x - 0.2 * (x - e + B.T @ np.arcsinh(B @ x + c)), low)
    return x


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ed", "extra", "gt"])
def test_dama_reaches_the_saddle_point(strategy):
    """On batches of one sample too: what all samples give now and then takes the noise away as the steps end."""
    method = db.dama(alpha=0.1, beta=0.2, strategy=strategy, probability=0.3)
    quiet = dict(eval_every=500, metrics=[], progress=False, batch_size=1)
    found = db.solve(problem(), method, GRAPH, steps=1500, **quiet).nodes
    np.testing.assert_allclose(found.x, np.tile(saddle(), (NODES, 1)), atol=1e-8)


@pytest.mark.slow
def test_dama_with_a_constraint_on_x():
    method = db.dama(alpha=0.1, beta=0.2, probability=0.3)
    quiet = dict(eval_every=500, metrics=[], progress=False, batch_size=1)
    found = db.solve(problem(db.prox.nonnegative()), method, GRAPH, steps=1500, **quiet).nodes.x
    expected = saddle(0.0)
    assert np.any(expected == 0) and np.abs(expected - saddle()).max() > 1e-3
    np.testing.assert_allclose(found, np.tile(expected, (NODES, 1)), atol=1e-8)
