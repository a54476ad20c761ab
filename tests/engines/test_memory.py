"""Where the copy of a state goes that a run returns to, and what is said when memory ends."""

from __future__ import annotations

import gc

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import typer
from quadratics import random_quadratic

import decibel as db
from decibel.cli._common import or_exit
from decibel.engines import _memory as memory
from decibel.engines import _run as run_module
from decibel.engines._program import Program, RunConfig

PROBLEM, RING = random_quadratic(8, seed=2).problem(), db.graphs.ring(8)
RATES = {"alpha": 50.0, "beta": 50.0, "gamma": 50.0}
TOO_LARGE, EDGES = db.sparkle("ed", **RATES), db.sparkle("edge-ed", **RATES)


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


def last_good(engine, method):
    with pytest.warns(db.NonFiniteWarning):
        return db.solve(PROBLEM, method, RING, steps=400, eval_every=50, metrics=[], engine=engine)


@pytest.mark.slow_except("cluster-sparkle-ed", "simulator-sparkle-edge-ed")
@pytest.mark.parametrize("method", [TOO_LARGE, EDGES], ids=lambda method: method.name)
@pytest.mark.parametrize("engine", [db.Simulator(), db.Cluster(devices=4)], ids=["simulator", "cluster"])
def test_a_run_returns_to_the_same_state_from_the_host(engine, method, monkeypatch):
    near = last_good(engine, method)
    monkeypatch.setattr(memory, "fits", lambda tree, reserved: False)
    far = last_good(engine, method)
    assert 0 < near.step == far.step < 400
    for a, b in zip(jax.tree.leaves(near.state), jax.tree.leaves(far.state), strict=True):
        np.testing.assert_array_equal(a, b)
        assert a.sharding == b.sharding


@pytest.mark.slow_except("from the start")
@pytest.mark.parametrize("resumed", [False, True], ids=["from the start", "from a checkpoint"])
def test_a_run_without_a_copy_computes_the_same_state_again(resumed, monkeypatch, tmp_path):
    """Steps that diverge late, so that several chunks are repeated."""
    copies, copied = [], memory.copied
    monkeypatch.setattr(memory, "copied", lambda tree, reserved: copies.append(1) or copied(tree, reserved))
    small = db.sparkle("ed", alpha=lambda k: jnp.where(k < 120, 0.05, 1e30), beta=0.1, gamma=0.1)
    options = {"steps": 200, "eval_every": 20, "metrics": []}
    if resumed:
        db.solve(PROBLEM, small, RING, **{**options, "steps": 40}, checkpoint=tmp_path)
        options |= {"checkpoint": tmp_path, "resume": True}
    ended = {}
    for keep in (False, True):
        copies.clear()
        with pytest.warns(db.NonFiniteWarning):
            ended[keep] = db.solve(PROBLEM, small, RING, engine=db.Simulator(keep_copy=keep), **options)
        assert bool(copies) is keep
    assert 80 < ended[False].step == ended[True].step < 200
    for a, b in zip(jax.tree.leaves(ended[False].state), jax.tree.leaves(ended[True].state), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("keep", [False, True])
def test_what_a_run_held_is_free_at_once_when_its_result_is_gone(keep):
    """Not when garbage is collected: the next run may need the room."""
    options = {"steps": 4, "eval_every": 2, "metrics": [], "engine": db.Simulator(keep_copy=keep)}
    method = db.sparkle("ed", alpha=0.05, beta=0.1, gamma=0.1)
    db.solve(PROBLEM, method, RING, **options)
    gc.collect()
    held = sum(leaf.nbytes for leaf in jax.live_arrays())
    gc.disable()
    try:
        result = db.solve(PROBLEM, method, RING, **options)
        assert sum(leaf.nbytes for leaf in jax.live_arrays()) > held
        del result
        assert sum(leaf.nbytes for leaf in jax.live_arrays()) == held
    finally:
        gc.enable()


def test_the_copy_lies_on_the_device_while_it_fits_there_with_what_the_step_needs(device_with, copies):
    state = {"y": jnp.ones((4, 100)), "x": jnp.zeros(50)}  # 3,600 bytes
    for free, on_device in ((100_000, True), (10_000, True), (9_999, False), (5_400, False)):  # a tenth is left alone
        copies.clear()
        device_with(100_000, 100_000 - free)
        back = memory.copied(state, 5_400)()
        assert bool(copies) is on_device
        assert jax.tree.all(jax.tree.map(lambda a, b: a is not b and bool((a == b).all()), state, back))


def test_what_has_no_room_raises_before_anything_is_copied_to_the_host(device_with, monkeypatch):
    state = {"y": jnp.ones((4, 2_000))}
    device_with(100_000, 95_000)
    monkeypatch.setattr(memory.jax, "device_put", lambda *_: pytest.fail("copied"))
    with pytest.raises(memory.OutOfMemory):
        memory.copied(state, 5_001)


def test_a_host_without_room_is_said_with_the_setting_that_gives_it_more(monkeypatch):
    def full(*_):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of host memory")

    monkeypatch.setattr(memory, "fits", lambda tree, reserved: False)
    state = jnp.ones(3)
    monkeypatch.setattr(memory.jax, "device_put", full)
    with pytest.raises(MemoryError, match=r"^A copy of the state, 0 GB, .*: raise XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB"):
        memory.copied(state, 0)


@pytest.mark.parametrize("shape", [(5, 2), (0, 3), ()], ids=str)
def test_a_copy_on_the_host_outlives_what_it_was_made_of(monkeypatch, shape):
    monkeypatch.setattr(memory, "fits", lambda tree, reserved: False)
    as_it_was = np.arange(np.prod(shape, dtype=int), dtype=float).reshape(shape)
    one = jnp.asarray(as_it_was)
    back = memory.copied(one, 0)
    jax.jit(lambda a: a + 1, donate_argnums=0)(one)
    np.testing.assert_array_equal(back(), as_it_was)


@pytest.mark.parametrize("engine", [db.Simulator(), db.Cluster(devices=4)], ids=["simulator", "cluster"])
@pytest.mark.parametrize("moment", ["start", "compile", "advance"])
def test_a_full_device_is_said_in_one_sentence(engine, moment, monkeypatch):
    def full(*_):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1 bytes.")

    start = lambda: engine.start(PROBLEM, TOO_LARGE, db.Levels(x=RING), RunConfig())  # noqa: E731
    run = start()
    where = {
        "start": (Program, "initial_state"),
        "compile": (run_module, "compile_chunk"),
        "advance": (memory, "copied"),
    }
    monkeypatch.setattr(*where[moment], full)
    with pytest.raises(MemoryError, match=r"^8 nodes and [^.]*: use fewer nodes, smaller batches.* devices\.$"):
        start() if moment == "start" else run.advance(1)


def test_other_errors_of_a_device_stay_what_they_are():
    with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"), memory.oom_hint("It is full."):
        raise jax.errors.JaxRuntimeError("INTERNAL: something else")


def test_a_command_ends_with_the_sentence(capsys):
    def full():
        raise MemoryError("It is full: use less.")

    with pytest.raises(typer.Exit) as ended:
        or_exit(full)
    assert ended.value.exit_code == 1
    assert "It is full: use less." in capsys.readouterr().err
