"""Callbacks see a run from its begin to its end, and loggers write what their own libraries read back."""

from __future__ import annotations

import importlib.util
import json
import math
import sys

import numpy as np
import pytest
from quadratics import random_quadratic

import decibel as db

QUADRATIC = random_quadratic(4, seed=5)
PROBLEM = QUADRATIC.problem(samples=6)
GRAPH = db.graphs.ring(4)
METHOD = db.sparkle("ed", alpha=0.05, beta=0.1, gamma=0.1, theta=0.5, updates="simultaneous")
OPTIONS = {"batch_size": 2, "eval_every": 10, "metrics": ["consensus_x", "upper"], "progress": False}


def solve(*callbacks, steps=30, **options):
    return db.solve(PROBLEM, METHOD, GRAPH, steps=steps, callbacks=callbacks, **{**OPTIONS, **options})


def entries(path):
    return [json.loads(line, parse_constant=pytest.fail) for line in path.read_text().splitlines()]


class Witness(db.Callback):
    def __init__(self, stop=math.inf, fail=math.inf):
        self.heard, self.stop, self.fail = [], stop, fail

    def begin(self, about, graphs):
        self.heard.append(("begin", about["method"], about.get("resumed"), graphs.nodes))

    def see(self, step, snapshot):
        self.heard.append(("see", step, np.asarray(snapshot.nodes.x).shape))

    def __call__(self, step, row):
        if step >= self.fail:
            raise RuntimeError("the disk is full")
        self.heard.append(("row", step, row["step"]))
        return step >= self.stop

    def end(self, status, message):
        self.heard.append(("end", status, message))


def test_a_callback_sees_begin_states_rows_and_end():
    witness = Witness()
    solve(witness, steps=20)
    size = np.shape(PROBLEM.x0)
    told = [(("see", step, (4, *size)), ("row", step, step)) for step in (0, 10, 20)]
    assert witness.heard == [
        ("begin", "sparkle-ed", None, 4),
        *(item for pair in told for item in pair),
        ("end", db.Status.COMPLETED, None),
    ]


def test_a_callback_may_end_the_run_and_all_are_told():
    first, second, plain = Witness(stop=10), Witness(), []
    result = solve(first, second, lambda step, row: plain.append(step))
    assert result.step == 10 and plain == [0, 10]
    assert second.heard[-2:] == [("row", 10, 10), ("end", db.Status.STOPPED, None)]


def test_everyone_hears_of_the_end_after_an_exception():
    first, second = Witness(), Witness(fail=10)
    with pytest.raises(RuntimeError, match="the disk is full"):
        solve(first, second)
    assert first.heard[-1] == second.heard[-1] == ("end", db.Status.FAILED, "RuntimeError: the disk is full")


def test_one_who_fails_to_begin_does_not_keep_others_from_ending():
    class Late(db.Callback):
        def begin(self, about, graphs):
            raise RuntimeError("no room")

        def end(self, status, message):
            pytest.fail("it never began")

    witness = Witness()
    with pytest.raises(RuntimeError, match="no room"):
        solve(witness, Late())
    assert witness.heard[-1] == ("end", db.Status.FAILED, "RuntimeError: no room")


def test_a_run_that_turns_non_finite_says_so_at_the_end():
    witness = Witness()
    wild = db.sparkle("ed", alpha=1e6, beta=1e6, gamma=1e6)
    with pytest.warns(db.NonFiniteWarning):
        db.solve(PROBLEM, wild, GRAPH, steps=100, callbacks=[witness], **OPTIONS)
    assert witness.heard[-1][:2] == ("end", db.Status.DIVERGED) and witness.heard[-1][2].startswith("non-finite")


def test_what_cannot_be_called_raises():
    with pytest.raises(TypeError, match=r"callbacks holds a str: give functions of \(step, row\), or db\.loggers\."):
        solve("log.jsonl")


def test_jsonl_holds_the_trace_the_graph_and_how_far_nodes_are_apart(tmp_path):
    states = []

    class Keep(db.Callback):
        def see(self, step, snapshot):
            states.append(np.array(snapshot.nodes.x))

    result = solve(db.loggers.JSONL(tmp_path / "new" / "log.jsonl"), Keep())
    begin, *rows, end = entries(tmp_path / "new" / "log.jsonl")
    assert begin["kind"] == "begin" and begin["about"]["method"] == "sparkle-ed" and begin["about"]["seed"] == 0
    assert begin["graph"] == {"name": "ring", "nodes": 4, "edges": [[0, 1], [0, 3], [1, 2], [2, 3]]}
    assert end == {"kind": "end", "status": "completed", "message": None}
    assert [row["step"] for row in rows] == [0, 10, 20, 30]
    for index, (row, x) in enumerate(zip(rows, states, strict=True)):
        assert row["kind"] == "row" and set(row["row"]) == set(result.trace)
        assert all(row["row"][name] == result.trace[name][index] for name in result.trace)
        apart = np.linalg.norm((x - x.mean(0)).reshape(4, -1), axis=1)
        np.testing.assert_allclose(row["nodes"], apart, rtol=1e-10, atol=1e-14)


def test_jsonl_is_on_disk_after_every_row(tmp_path):
    counts = []
    path = tmp_path / "log.jsonl"
    solve(db.loggers.JSONL(path), lambda step, row: counts.append(len(entries(path))))
    assert counts == [2, 3, 4, 5]


def test_numbers_that_are_not_finite_are_null(tmp_path):
    def odd(snapshot):
        return {"nan": float("nan"), "infinite": float("inf"), "one": 1.0}

    path = tmp_path / "log.jsonl"
    solve(db.loggers.JSONL(path), metrics=[odd], steps=10)
    row = entries(path)[1]["row"]
    assert row["nan"] is None and row["infinite"] is None and row["one"] == 1.0


def test_a_changing_graph_is_drawn_with_all_its_links(tmp_path):
    method = db.sparkle("gt", alpha=0.05, beta=0.1, gamma=0.1)
    path, graph = tmp_path / "log.jsonl", db.graphs.one_peer_exponential(4)
    db.solve(PROBLEM, method, graph, steps=10, callbacks=[db.loggers.JSONL(path)], **OPTIONS)
    assert entries(path)[0]["graph"]["edges"] == [[0, 1], [0, 2], [0, 3], [1, 2], [1, 3], [2, 3]]


def test_a_continued_log_is_that_of_a_run_that_never_stopped(tmp_path):
    """The killed run wrote rows after its last checkpoint, and half a line."""
    whole, path, folder = tmp_path / "whole.jsonl", tmp_path / "log.jsonl", tmp_path / "checkpoint"
    solve(db.loggers.JSONL(whole), steps=60)
    solve(db.loggers.JSONL(path), steps=30, checkpoint=folder)
    lines = path.read_text().splitlines()
    beyond = lines[-2].replace('"step": 30', '"step": 40')
    path.write_text("\n".join([*lines[:-1], beyond, lines[-2][:25]]))
    solve(db.loggers.JSONL(path), steps=60, checkpoint=folder, resume=True)
    begin, *rows, end = entries(path)
    _, *expected, _ = entries(whole)
    assert begin["about"]["resumed"] == 30 and end["message"] is None
    plain = lambda entry: {**entry, "row": {k: v for k, v in entry["row"].items() if k != "seconds"}}  # noqa: E731
    assert list(map(plain, rows)) == list(map(plain, expected))


def test_a_new_run_replaces_the_log(tmp_path):
    path = tmp_path / "log.jsonl"
    solve(db.loggers.JSONL(path))
    solve(db.loggers.JSONL(path), steps=10)
    assert [entry.get("step") for entry in entries(path)] == [None, 0, 10, None]


@pytest.mark.parametrize(
    ("make", "module", "extra"),
    [
        (lambda: db.loggers.TensorBoard("folder"), "tensorboardX", "tensorboard"),
        (lambda: db.loggers.WandB("project"), "wandb", "wandb"),
        (lambda: db.loggers.MLflow(), "mlflow", "mlflow"),
    ],
)
def test_a_missing_library_is_named_with_its_extra(make, module, extra, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError) as refusal:
        make()
    assert str(refusal.value).endswith(f'needs {module}: pip install "decibel-opt[{extra}]".')


def real(module):
    """A logger's own library; warnings of its making are not ours."""
    return pytest.importorskip(module, reason=f"{module} is an extra that is not installed", exc_type=ImportError)


@pytest.mark.filterwarnings("ignore")
def test_tensorboard_reads_the_events_back(tmp_path):
    real("tensorboardX")
    result = solve(db.loggers.TensorBoard(tmp_path))
    if importlib.util.find_spec("tensorboard") is None:
        pytest.skip("tensorboard, which reads the files back, is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path), size_guidance={"scalars": 0})
    events.Reload()
    assert set(events.Tags()["scalars"]) == set(result.trace) - {"step"}
    for name in set(result.trace) - {"step"}:
        read = events.Scalars(name)
        assert [event.step for event in read] == [0, 10, 20, 30]
        np.testing.assert_allclose([event.value for event in read], result.trace[name], rtol=1e-6)
    about = events.Tensors("about/text_summary")[0].tensor_proto.string_val[0].decode()
    assert json.loads(about.split("```json\n")[1].split("\n```")[0])["method"] == "sparkle-ed"


def wandb_records(raw):
    """The records of a .wandb file: LevelDB's log format after seven bytes of header, in blocks of 32 KiB."""
    place, whole = 7, b""
    while place + 7 <= len(raw):
        if 32768 - place % 32768 < 7:
            place += 32768 - place % 32768
            continue
        size, kind = int.from_bytes(raw[place + 4 : place + 6], "little"), raw[place + 6]
        whole += raw[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # a full record, or the last part of one
            yield whole
            whole = b""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_wandb_reads_the_offline_run_back(tmp_path):
    real("wandb")
    result = solve(db.loggers.WandB("bilevel", dir=str(tmp_path)))
    from wandb.proto import wandb_internal_pb2

    history, config = [], {}
    for data in wandb_records(next(tmp_path.rglob("*.wandb")).read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        name = lambda item: item.key or ".".join(item.nested_key)  # noqa: E731
        if record.HasField("history"):
            history.append({name(item): json.loads(item.value_json) for item in record.history.item})
        if record.HasField("run"):
            config |= {name(item): json.loads(item.value_json) for item in record.run.config.update}
    assert [row["_step"] for row in history] == [0, 10, 20, 30]
    for column in result.trace:
        np.testing.assert_allclose([row[column] for row in history], result.trace[column])
    assert config["method"] == "sparkle-ed" and config["settings"]["alpha"] == pytest.approx(0.05)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_mlflow_reads_the_database_back(tmp_path):
    mlflow = real("mlflow")
    real("sqlalchemy")
    uri = f"sqlite:///{tmp_path / 'runs.db'}"
    result = solve(db.loggers.MLflow("bilevel", uri=uri))
    client = mlflow.MlflowClient(tracking_uri=uri)
    (run,) = client.search_runs([client.get_experiment_by_name("bilevel").experiment_id])
    assert run.info.status == "FINISHED" and run.data.params["method"] == "sparkle-ed"
    assert float(run.data.params["settings.alpha"]) == pytest.approx(0.05)
    for column in set(result.trace) - {"step"}:
        read = sorted(client.get_metric_history(run.info.run_id, column), key=lambda point: point.step)
        assert [point.step for point in read] == [0, 10, 20, 30]
        np.testing.assert_allclose([point.value for point in read], result.trace[column])


def test_settings_are_told_in_words(tmp_path):
    """What pages show has neither parentheses of Python nor names of classes."""
    for name in db.CATALOG:
        for value in db.CATALOG[name]().settings_in_words.values():
            assert not isinstance(value, str) or not set(value) & set("()=_"), (name, value)
    words = db.sparkle(
        "ed", alpha=0.1, beta=0.1, gamma=0.1, hypergradient=db.hypergradient.difference(0.01)
    ).settings_in_words
    assert words["hypergradient"] == "differences of width 0.01"
    assert db.interact(alpha=0.1, beta=0.1, hypergradient=db.hypergradient.cg(3)).settings_in_words[
        "hypergradient"
    ] == ("conjugate gradients, steps 3")
    assert db.graphs.ring(5).words == "ring, 5 nodes, 5 edges"
