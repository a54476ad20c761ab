"""Where the copy of a state goes that a run returns to, and what is said when memory ends."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from quadratics import random_quadratic

import decibel as db
from decibel.engines import memory
from decibel.engines.program import Asked
from decibel.engines.simulator import Simulator

PROBLEM, RING = random_quadratic(8, seed=2).problem(), db.graphs.ring(8)
TOO_LARGE = db.sparkle("ed", alpha=50.0, beta=50.0, gamma=50.0)


@pytest.fixture
def device_with(monkeypatch):
    """Devices that say how much of their memory is in use."""

    def pretend(limit, used):
        monkeypatch.setattr(memory, "statistics", lambda device: {"bytes_limit": limit, "bytes_in_use": used})

    return pretend


@pytest.fixture
def copies(monkeypatch):
    """The leaves that are copied on a device."""
    seen, copy = [], jnp.copy
    monkeypatch.setattr(memory.jnp, "copy", lambda leaf: seen.append(leaf.shape) or copy(leaf))
    return seen


def last_good(engine):
    with pytest.warns(db.NonFiniteWarning):
        return db.solve(PROBLEM, TOO_LARGE, RING, steps=400, eval_every=50, metrics=[], engine=engine)


@pytest.mark.parametrize("engine", [db.Simulator(), db.Cluster(devices=4)], ids=["simulator", "cluster"])
def test_a_run_returns_to_the_same_state_from_the_host(engine, monkeypatch):
    near = last_good(engine)
    monkeypatch.setattr(memory, "fits", lambda tree, beside: False)
    far = last_good(engine)
    assert 0 < near.step == far.step < 400
    for a, b in zip(jax.tree.leaves(near.state), jax.tree.leaves(far.state), strict=True):
        np.testing.assert_array_equal(a, b)
        assert a.sharding == b.sharding


def test_the_copy_lies_on_the_device_while_it_fits_there_with_what_the_step_needs(device_with, copies):
    state = {"y": jnp.ones((4, 100)), "x": jnp.zeros(50)}  # 3,600 bytes
    for free, on_device in ((100_000, True), (10_000, True), (9_999, False), (5_400, False)):  # a tenth is left alone
        copies.clear()
        device_with(100_000, 100_000 - free)
        back = memory.copied(state, lambda: 5_400)()
        assert bool(copies) is on_device
        assert jax.tree.all(jax.tree.map(lambda a, b: a is not b and bool((a == b).all()), state, back))


def test_what_a_step_needs_is_refused_before_anything_is_copied_to_the_host(device_with, monkeypatch):
    monkeypatch.setattr(memory, "_on_host", lambda array: pytest.fail("copied"))
    device_with(100_000, 95_000)
    with pytest.raises(MemoryError, match="does not hold 4 nodes"):
        memory.copied({"y": jnp.ones((4, 100))}, lambda: 5_001)


@pytest.mark.parametrize("block", [1, 16, 100, 2**28])
def test_a_copy_on_the_host_outlives_what_it_was_made_of(device_with, monkeypatch, block):
    monkeypatch.setattr(memory, "BLOCK", block)
    device_with(10, 10)
    one, as_it_was = jnp.arange(10.0).reshape(5, 2), np.arange(10.0).reshape(5, 2)
    back = memory.copied(one, lambda: 0)
    jax.jit(lambda a: a + 1, donate_argnums=0)(one)
    np.testing.assert_array_equal(back(), as_it_was)


@pytest.mark.parametrize("moment", ["start", "advance"])
def test_a_full_device_is_said_in_one_sentence(moment, monkeypatch):
    def full(*_):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1 bytes.")

    start = lambda: Simulator().start(PROBLEM, TOO_LARGE, db.Levels(x=RING), Asked())  # noqa: E731
    run = start()
    if moment == "advance":
        monkeypatch.setattr(memory, "copied", full)
    else:
        monkeypatch.setattr(memory.jnp, "copy", full)
    with pytest.raises(
        MemoryError, match=r"^The memory .* 8 nodes .*: use fewer nodes, db\.Simulator\(node_chunk=.*\.$"
    ):
        run.advance(1) if moment == "advance" else start()


def test_other_errors_of_a_device_stay_what_they_are():
    with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"), memory.in_words(3):
        raise jax.errors.JaxRuntimeError("INTERNAL: something else")
