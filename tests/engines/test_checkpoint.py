"""Interrupted runs end with the numbers of runs that were never interrupted."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from orbax.checkpoint import CheckpointManager
from xla import kept_in

import decibel as db
from decibel.engines._checkpoint import CheckpointWarning
from decibel.engines._run import Run

GRAPH = db.graphs.ring(4)
METHOD = db.ed(alpha=0.05, theta=0.5)


def problem(seed=5):
    data = np.random.default_rng(seed).normal(size=(4, 6, 3))
    return db.Problem(lambda x, batch: jnp.mean((x - batch) ** 2), upper_data=data, x0=jnp.zeros(3))


PROBLEM = problem()
OPTIONS = {"batch_size": 2, "eval_every": 10, "metrics": ["consensus_x"]}


@pytest.fixture(scope="module")
def whole():
    return db.solve(PROBLEM, METHOD, GRAPH, steps=60, **OPTIONS)


def assert_same(result, whole):
    for a, b in zip(jax.tree.leaves(result.state), jax.tree.leaves(whole.state), strict=True):
        np.testing.assert_array_equal(a, b)
    for column in whole.trace:
        if column != "seconds":
            np.testing.assert_array_equal(result.trace[column], whole.trace[column])


def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(tmp_path, whole):
    db.solve(PROBLEM, METHOD, GRAPH, steps=30, checkpoint=tmp_path, **OPTIONS)
    assert_same(db.solve(PROBLEM, METHOD, GRAPH, steps=60, checkpoint=tmp_path, resume=True, **OPTIONS), whole)


def test_every_file_of_a_checkpoint_is_on_the_disk(tmp_path, monkeypatch):
    """Its names, too: a power cut right after the run takes nothing away."""
    synced, fsync = set(), os.fsync

    def note(number):
        synced.add(os.fstat(number).st_ino)
        fsync(number)

    monkeypatch.setattr(os, "fsync", note)
    db.solve(PROBLEM, METHOD, GRAPH, steps=60, checkpoint=tmp_path, **OPTIONS)
    there = [tmp_path, *tmp_path.rglob("*")]
    assert len(there) > 10 and {path.stat().st_ino for path in there} <= synced


def test_what_a_killed_process_left_is_removed(tmp_path):
    for name in ("30.orbax-checkpoint-tmp", "40.orbax-checkpoint-tmp-1699", "aside/20-1"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "part").write_text("of a checkpoint")
    db.solve(PROBLEM, METHOD, GRAPH, steps=20, checkpoint=tmp_path, **OPTIONS)
    assert not list(tmp_path.glob("*.orbax-checkpoint-tmp*")) and (tmp_path / "aside" / "20-1" / "part").exists()


def test_a_run_moves_from_a_cluster_to_the_simulator(tmp_path, whole):
    db.solve(PROBLEM, METHOD, GRAPH, steps=30, checkpoint=tmp_path, engine=db.Cluster(devices=4), **OPTIONS)
    moved = db.solve(PROBLEM, METHOD, GRAPH, steps=60, checkpoint=tmp_path, resume=True, **OPTIONS)
    np.testing.assert_allclose(np.asarray(moved.nodes.x), np.asarray(whole.nodes.x), rtol=1e-12)


def test_resume_without_a_checkpoint_begins(tmp_path, whole):
    fresh = db.solve(PROBLEM, METHOD, GRAPH, steps=60, checkpoint=tmp_path / "new", resume=True, **OPTIONS)
    assert_same(fresh, whole)


@pytest.mark.slow_except("cut")
@pytest.mark.parametrize("damage", ["cut", "gone"])
def test_a_damaged_checkpoint_is_passed_over(tmp_path, whole, damage):
    db.solve(PROBLEM, METHOD, GRAPH, steps=40, checkpoint=tmp_path, **OPTIONS)
    newest = max((p for p in tmp_path.iterdir() if p.name.isdigit()), key=lambda p: int(p.name))
    for file in (p for p in (newest / "state").rglob("*") if p.is_file()):
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2]) if damage == "cut" else file.unlink()
    with pytest.warns(CheckpointWarning, match="the checkpoint of step 40 cannot be read"):
        result = db.solve(PROBLEM, METHOD, GRAPH, steps=60, checkpoint=tmp_path, resume=True, **OPTIONS)
    assert_same(result, whole)


def test_a_site_promises_a_damaged_checkpoint_once(tmp_path, monkeypatch, whole):
    """Where all sites start from one agreed step, a site that cannot read it must not offer it after a restart."""
    db.solve(PROBLEM, METHOD, GRAPH, steps=40, checkpoint=tmp_path, **OPTIONS)
    for file in (p for p in (tmp_path / "40" / "state").rglob("*") if p.is_file()):
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    promised = []

    def agreed(self, saved):
        promised.append(max(saved))
        self.holds_one_node = True
        return [max(saved)]

    def lost(self, steps):
        raise ConnectionError("all sites start from step 40")

    monkeypatch.setattr(Run, "restore_order", agreed)
    with monkeypatch.context() as patch, pytest.raises(ConnectionError):
        patch.setattr(Run, "plan_goal", lost)
        with pytest.warns(CheckpointWarning, match="the checkpoint of step 40 cannot be read"):
            db.solve(PROBLEM, METHOD, GRAPH, steps=60, checkpoint=tmp_path, resume=True, **OPTIONS)
    assert [path.name.partition("-")[0] for path in (tmp_path / "aside").iterdir()] == ["40"]
    result = db.solve(PROBLEM, METHOD, GRAPH, steps=60, checkpoint=tmp_path, resume=True, **OPTIONS)
    assert promised[0] == 40 > promised[1]
    assert_same(result, whole)


ENTRIES = 100_000


def large():
    """One level of ENTRIES entries at four nodes, whose state is far larger than anything else."""
    data = np.random.default_rng(0).normal(size=(4, 3, 1))
    wide = db.Problem(lambda x, batch: ((x - batch.mean(0)) ** 2).sum(), upper_data=data, x0=jnp.zeros(ENTRIES))
    return {"problem": wide, "method": db.ed(alpha=0.1), "graph": GRAPH, "eval_every": 2, "metrics": []}


@pytest.fixture
def live(monkeypatch):
    """The bytes of all arrays when a state begins to be read, and after, less those of before the test."""
    gc.collect()
    held, seen, restore = live_bytes(), [], CheckpointManager.restore

    def watched(self, step, args):
        reads_state = "state" in args
        if reads_state:
            seen.append(live_bytes() - held)
        found = restore(self, step, args=args)
        if reads_state:
            seen.append(live_bytes() - held)
        return found

    monkeypatch.setattr(CheckpointManager, "restore", watched)
    return seen


def live_bytes():
    return sum(array.nbytes for array in jax.live_arrays())


@pytest.mark.slow
@pytest.mark.parametrize("engine", [db.Simulator(), db.Cluster(devices=4)], ids=["simulator", "cluster"])
def test_resuming_never_holds_two_states(tmp_path, live, engine):
    expected = db.solve(**large(), steps=6, engine=engine).x
    db.solve(**large(), steps=4, engine=engine, checkpoint=tmp_path)
    found = db.solve(**large(), steps=6, engine=engine, checkpoint=tmp_path, resume=True)
    np.testing.assert_array_equal(found.x, expected)
    state = sum(leaf.nbytes for leaf in jax.tree.leaves(found.state))
    assert len(live) == 2 and live[0] < 0.5 * state < state < live[1] < 1.5 * state


@pytest.mark.slow_except("cluster")
@pytest.mark.parametrize("engine", [db.Simulator(), db.Cluster(devices=4)], ids=["simulator", "cluster"])
def test_where_no_checkpoint_can_be_read_the_run_begins_again(tmp_path, whole, engine):
    db.solve(PROBLEM, METHOD, GRAPH, steps=20, checkpoint=tmp_path, engine=engine, **OPTIONS)
    for file in (p for p in tmp_path.glob("*/state/**/*") if p.is_file()):
        file.write_bytes(b"")
    with pytest.warns(CheckpointWarning, match="cannot be read"):
        found = db.solve(PROBLEM, METHOD, GRAPH, steps=60, checkpoint=tmp_path, resume=True, engine=engine, **OPTIONS)
    np.testing.assert_allclose(found.nodes.x, whole.nodes.x, rtol=1e-12, atol=1e-12)
    assert found.trace.rows == whole.trace.rows


def test_another_run_raises_with_what_changed(tmp_path):
    db.solve(PROBLEM, METHOD, GRAPH, steps=10, checkpoint=tmp_path, **OPTIONS)
    limited = db.single(db.strategies.edge_ed(2.0), alpha=0.05)
    changes = {
        "settings": (PROBLEM, db.ed(alpha=0.06, theta=0.5), GRAPH, {}),
        "method": (PROBLEM, limited, GRAPH, {}),
        "graph": (PROBLEM, METHOD, db.graphs.complete(4), {}),
        "seed": (PROBLEM, METHOD, GRAPH, {"seed": 1}),
        "faults": (PROBLEM, METHOD, GRAPH, {"faults": db.faults.drop(0.1)}),
        "upper_data": (problem(seed=6), METHOD, GRAPH, {}),
    }
    for name, (given, method, graph, more) in changes.items():
        with pytest.raises(ValueError, match=f"checkpoint holds another run: .*{name} .*changed"):
            db.solve(given, method, graph, steps=20, checkpoint=tmp_path, resume=True, **OPTIONS, **more)


def test_ctrl_c_saves_and_the_run_goes_on(tmp_path, whole):
    before = signal.getsignal(signal.SIGINT)

    def press(step, row):
        if step == 20:
            signal.raise_signal(signal.SIGINT)

    result = db.solve(PROBLEM, METHOD, GRAPH, steps=60, checkpoint=tmp_path, callbacks=[press], **OPTIONS)
    assert result.status is db.Status.INTERRUPTED and result.step == 20
    assert signal.getsignal(signal.SIGINT) is before
    assert_same(db.solve(PROBLEM, METHOD, GRAPH, steps=60, checkpoint=tmp_path, resume=True, **OPTIONS), whole)


def test_a_second_ctrl_c_ends_at_once(tmp_path):
    def press_twice(step, row):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        db.solve(PROBLEM, METHOD, GRAPH, steps=60, checkpoint=tmp_path, callbacks=[press_twice], **OPTIONS)


WORKER = """
import sys
import jax
jax.config.update("jax_enable_x64", True)
import time
from test_checkpoint import GRAPH, METHOD, OPTIONS, PROBLEM
import decibel as db
def slowly(step, row):
    print(step, flush=True)
    time.sleep(float(sys.argv[2]))
steps, folder = int(sys.argv[3]), sys.argv[1]
result = db.solve(PROBLEM, METHOD, GRAPH, steps=steps, checkpoint=folder, resume=True, callbacks=[slowly], **OPTIONS)
print("stopped", result.message, flush=True)
"""


def start(folder: Path, pause: float, steps: int = 60) -> subprocess.Popen:
    command = [sys.executable, "-c", WORKER, str(folder), str(pause), str(steps)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **kept_in(folder.parent / "compiled")}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


@pytest.mark.slow
def test_terminating_saves_and_the_run_goes_on(tmp_path, whole):
    with start(tmp_path / "run", 0.2) as worker:
        for line in worker.stdout:
            if line.strip() == "20":
                worker.send_signal(signal.SIGTERM)
                break
        rest = worker.stdout.read()
    assert worker.returncode == 0 and "received a signal to terminate" in rest
    assert_same(db.solve(PROBLEM, METHOD, GRAPH, steps=60, checkpoint=tmp_path / "run", resume=True, **OPTIONS), whole)


@pytest.mark.slow
def test_killed_at_random_moments_it_still_ends_the_same(tmp_path):
    """Six kills, each after one to three rows more; some fall into the writing of a checkpoint."""
    rng, steps = np.random.default_rng(0), 300
    for _ in range(6):
        with start(tmp_path / "run", 0.05, steps) as worker:
            for _ in range(rng.integers(1, 4)):
                worker.stdout.readline()
            time.sleep(rng.uniform(0.0, 0.05))
            assert worker.poll() is None, "the run was over before it could be killed"
            worker.kill()
    result = db.solve(PROBLEM, METHOD, GRAPH, steps=steps, checkpoint=tmp_path / "run", resume=True, **OPTIONS)
    assert_same(result, db.solve(PROBLEM, METHOD, GRAPH, steps=steps, **OPTIONS))
