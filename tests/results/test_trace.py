"""A trace on disk: what was saved comes back, nothing is pickled, nothing half-written is left or believed."""

from __future__ import annotations

import json
import stat
import zipfile

import numpy as np
import pytest
from quadratics import random_quadratic

import decibel as db
from decibel.results._trace import Trace


@pytest.fixture(scope="module")
def result():
    method = db.sparkle("ed", "gt", alpha=0.05, beta=0.1, gamma=0.1, theta=0.5)
    problem = random_quadratic(4, p=2, q=2).problem(samples=3)
    options = dict(steps=12, eval_every=4, batch_size=2, seed=7, metrics=["consensus_x"])
    return db.solve(problem, method, db.graphs.ring(4), **options)


def test_columns_come_back(result, tmp_path):
    path = result.trace.save(tmp_path / "deep" / "run")
    assert path == tmp_path / "deep" / "run.npz"
    loaded = Trace.load(path)
    assert list(loaded) == list(result.trace) and loaded["step"].tolist() == [0, 4, 8, 12]
    for name in loaded:
        np.testing.assert_array_equal(loaded[name], result.trace[name])
    assert loaded.provenance == json.loads(json.dumps(result.trace.provenance))


def test_provenance(result):
    record = result.trace.provenance
    assert record["method"] == "sparkle-ed-gt" and record["seed"] == 7 and record["batch_size"] == 2
    assert record["settings"]["alpha"] == 0.05 and record["settings"]["lower"] == "ed"
    assert record["nodes"] == 4 and record["steps"] == 12 and "ring" in record["graph"]["y"]
    assert record["versions"]["jax"] and record["versions"]["numpy"] == np.__version__ and record["date"]
    json.dumps(record)  # plain values only


def test_a_saved_trace_is_an_ordinary_file(result, tmp_path):
    """Others may read it wherever they could read a file that was simply written."""
    (tmp_path / "plain").write_text("")
    path = result.trace.save(tmp_path / "run.npz")
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE((tmp_path / "plain").stat().st_mode)


@pytest.mark.parametrize("harm", ["cut", "flip", "other", "text"])
def test_a_damaged_file_raises(result, tmp_path, harm):
    path = result.trace.save(tmp_path / "run.npz")
    whole = bytearray(path.read_bytes())
    if harm == "cut":
        path.write_bytes(whole[: len(whole) // 2])
    elif harm == "flip":
        with zipfile.ZipFile(path) as archive:
            entry = archive.infolist()[0]
        middle = entry.header_offset + 30 + len(entry.filename) + entry.compress_size // 2
        whole[middle] ^= 0xFF
        path.write_bytes(whole)
    elif harm == "other":
        np.savez(path, a=np.ones(3))
    else:
        path.write_text("step,loss\n0,1\n")
    with pytest.raises(ValueError, match=r"run\.npz is not a trace saved by Decibel, or it is damaged"):
        Trace.load(path)
    with pytest.raises(FileNotFoundError):
        Trace.load(tmp_path / "none.npz")


def test_to_pandas(result):
    frame = result.trace.to_pandas()
    assert list(frame.columns) == list(result.trace) and frame["step"].tolist() == [0, 4, 8, 12]


def test_columns_and_rows(result):
    trace = Trace({"step": [0, 1], "loss": [2.0, 1.0]})
    trace.append({"step": 2, "loss": 0.5})
    assert trace["loss"].tolist() == [2.0, 1.0, 0.5] and len(trace) == 2
    with pytest.raises(KeyError, match="no column 'los': did you mean 'loss'"):
        trace["los"]
    with pytest.raises(ValueError, match="a row must have the columns step, loss, but has step"):
        trace.append({"step": 3})
    with pytest.raises(ValueError, match="columns have different lengths"):
        Trace({"step": [0], "loss": []})
    assert result.trace.last["step"] == 12


def test_runs_are_drawn_over_each_other():
    def result(method, values):
        trace = db.Trace({"step": range(len(values)), "upper": values, "bytes": [8.0 * i for i in range(len(values))]})
        return db.SavedResult(None, None, 0, 0, db.Status.COMPLETED, "", method, trace)

    figure = db.plot(
        [result("ed", [3.0, 1.0]), result("gt", [3.0, 2.0]), result("gt", [3.0, 2.5])], "upper", against="bytes"
    )
    (axis,) = figure.axes
    assert [line.get_label() for line in axis.lines] == ["ed", "gt", "gt, 3"]
    np.testing.assert_array_equal(axis.lines[1].get_xdata(), [0.0, 8.0])
    np.testing.assert_array_equal(axis.lines[1].get_ydata(), [3.0, 2.0])
    assert axis.get_xlabel() == "bytes sent per node"
    named = db.plot({"first": result("ed", [1.0])}, "upper")
    assert [line.get_label() for line in named.axes[0].lines] == ["first"]


@pytest.mark.parametrize(
    "nothing, said", [([], "nothing to plot"), ([3], "result 1 is a int"), (3, "result 1 is a int")]
)
def test_what_is_no_result_is_not_drawn(nothing, said):
    with pytest.raises((ValueError, TypeError), match=said):
        db.plot(nothing)
