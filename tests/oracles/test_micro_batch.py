"""Losses evaluated a few samples at a time: the same numbers, in less memory."""

from __future__ import annotations

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decibel as db
from decibel.engines._program import RunConfig
from decibel.problem._batch import Batch

NODES, WIDTH = 4, 6
RNG = np.random.default_rng(5)
INPUTS, TARGETS = RNG.normal(size=(NODES, 23, WIDTH)), RNG.normal(size=(NODES, 23))
UNEQUAL = [(INPUTS[i, : 11 + 4 * i], TARGETS[i, : 11 + 4 * i]) for i in range(NODES)]
RING = db.graphs.ring(NODES)


def lower(x, y, batch):
    inputs, targets = batch
    return jnp.mean((jnp.tanh(inputs @ y) - targets) ** 2) + jnp.sum(jnp.exp(x) * y**2)


def upper(x, y, batch):
    inputs, targets = batch
    return jnp.mean((inputs @ y - targets) ** 2)


def problem(data, **options):
    start = {"x0": jnp.zeros(WIDTH), "y0": jnp.ones(WIDTH)}
    return db.Problem(upper, lower, upper_data=data, lower_data=data, **start, **options)


METHODS = {
    "sparkle": db.sparkle("ed", alpha=0.05, beta=0.1, gamma=0.1),
    "difference": db.sparkle("gt", alpha=0.05, beta=0.1, gamma=0.1, hypergradient=db.hypergradient.difference(1e-3)),
    "penalty": db.sparkle("ed", alpha=0.05, beta=0.1, gamma=0.1, hypergradient=db.hypergradient.penalty(10.0)),
    "interact": db.interact(alpha=0.05, beta=0.1),
}


@pytest.mark.slow_except("sparkle-all")
@pytest.mark.parametrize("case", ["all", "drawn", "unequal", "chunks"])
@pytest.mark.parametrize("name", METHODS)
def test_the_numbers_are_those_of_the_whole_batch(name, case):
    """Also where the last piece is shorter. INTERACT always uses all samples, so it is never drawn."""
    given = problem(UNEQUAL if case == "unequal" else (INPUTS, TARGETS), personal=name == "interact")
    engine = db.Simulator(node_chunk=3) if case == "chunks" else None
    drawn = case in ("drawn", "chunks") and name != "interact"
    options = {"batch_size": 13 if drawn else None, "engine": engine, "metrics": [], "steps": 12}
    whole, pieces = (db.solve(given, METHODS[name], RING, micro_batch=size, **options) for size in (None, 4))
    for level in "xy":
        one, other = (getattr(result.nodes, level) for result in (whole, pieces))
        np.testing.assert_allclose(other, one, rtol=1e-11, atol=1e-12)
    assert whole.trace["samples"][-1] == pieces.trace["samples"][-1]
    assert whole.trace["gradients"][-1] == pieces.trace["gradients"][-1]


@pytest.mark.parametrize("samples", [8, 11, 3])
def test_a_loss_sees_few_samples_at_once(samples):
    seen = []

    def loss(x, batch):
        seen.append(batch.shape[0])
        return jnp.mean(batch) * x

    values = jnp.asarray(RNG.normal(size=samples))
    found = Batch((values,), micro_batch=4).mean(loss, 2.0)
    np.testing.assert_allclose(found, 2.0 * values.mean(), rtol=1e-12)
    assert max(seen) == min(4, samples)


def test_every_piece_has_its_own_key():
    def noise(x, batch, *, key=None):
        return jax.random.normal(key)

    key = jax.random.key(3)
    found = Batch((jnp.zeros(11),), keys=key, micro_batch=4).mean(noise, 0.0)
    one, two, three = (jax.random.normal(jax.random.fold_in(key, k)) for k in range(3))
    np.testing.assert_allclose(found, (4 * one + 4 * two + 3 * three) / 11, rtol=1e-12)


def test_bfloat16_gradients_are_summed_in_the_precision_of_the_state():
    """1,024 pieces of 1/1024 each: a sum in bfloat16 would stop at a quarter."""
    batch = Batch((jnp.ones((1024, 1), jnp.float32),), micro_batch=1, narrow=True)
    gradient = jax.grad(lambda x: batch.mean(lambda x, b: jnp.mean(b @ x), x))(jnp.ones(1, jnp.float32))
    np.testing.assert_allclose(gradient, 1.0, rtol=1e-6)
    assert gradient.dtype == jnp.float32


@pytest.mark.parametrize("wrong", [0, -1, 2.5, True])
def test_wrong_sizes_raise(wrong):
    with pytest.raises(ValueError, match=r"micro_batch=.* must be a positive integer"):
        db.solve(problem((INPUTS, TARGETS)), METHODS["sparkle"], RING, steps=1, micro_batch=wrong)


def network_loss(x, y, batch):
    inputs, targets = batch
    for weight in y[:-1]:
        inputs = jax.nn.gelu(inputs @ weight)
    return jnp.mean((inputs @ y[-1] - targets) ** 2) + jnp.sum(jnp.exp(x)) * 1e-3 * sum(jnp.sum(w**2) for w in y)


def temporaries(micro_batch, method):
    """Bytes beside the program and the state of a compiled step on 64 samples of wide activations."""
    data = RNG.normal(size=(2, 64, 16)).astype(np.float32), RNG.normal(size=(2, 64, 1)).astype(np.float32)
    sizes = [16, 256, 256, 256, 1]
    y0 = [jnp.zeros(pair, jnp.float32) for pair in pairwise(sizes)]
    # Tiled, so that activations are far larger than the weights.
    tile = lambda leaf: np.tile(leaf, (1, 64, 1))  # noqa: E731
    data = tuple(map(tile, data))
    given = db.Problem(
        network_loss, network_loss, upper_data=data, lower_data=data, x0=jnp.zeros(1, jnp.float32), y0=y0
    )
    graphs = db.Levels(db.graphs.ring(2))
    run = db.Simulator().start(given, method, graphs, RunConfig(micro_batch=micro_batch))
    return run.compile(1).temp_bytes


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sparkle", "penalty"])
def test_temporaries_are_a_quarter(name):
    whole, pieces = (temporaries(size, METHODS[name]) for size in (None, 8 * 64))
    assert pieces <= whole / 4, (pieces, whole)
