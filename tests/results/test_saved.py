"""Models in files: what comes back is what was saved, and a file that lies is not believed."""

from __future__ import annotations

import json
import zipfile

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from quadratics import random_quadratic

import decibel as db
from decibel.core._files import read_arrays
from decibel.results import _saved as saved
from decibel.results._trace import Trace

RING = db.graphs.ring(6)


def assert_same(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for one, other in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


@pytest.fixture(scope="module")
def result():
    problem = random_quadratic(6, seed=1).problem()
    return db.solve(problem, db.sparkle("ed", alpha=0.02, beta=0.1, gamma=0.1), RING, steps=10, eval_every=5)


def test_a_result_comes_back(result, tmp_path):
    path = result.save(tmp_path / "deep" / "model")
    assert path.name == "model.npz" and [file.name for file in path.parent.iterdir()] == ["model.npz"]
    for problem in (None, result.problem):
        found = db.Result.load(path, problem)
        assert_same((found.x, found.y), (result.x, result.y))
        assert (found.step, found.status, found.message, found.method) == (10, "completed", "", "sparkle-ed")
        assert found.trace.provenance == json.loads(json.dumps(result.trace.provenance, default=str))
        for name in result.trace:
            np.testing.assert_array_equal(found.trace[name], result.trace[name])


def test_without_the_rows_of_the_trace(result, tmp_path):
    found = db.Result.load(result.save(tmp_path / "model", trace=False))
    assert found.trace.rows == 0 and found.trace.provenance["seed"] == 0
    assert_same((found.x, found.y), (result.x, result.y))


def test_personal_and_single_levels(tmp_path):
    quadratic = random_quadratic(6, seed=1)
    for problem, method in (
        (quadratic.problem(personal=True), db.interact(alpha=0.05, beta=0.1)),
        (quadratic.single(), db.ed(alpha=0.05)),
    ):
        result = db.solve(problem, method, RING, steps=2, metrics=[])
        found = db.Result.load(result.save(tmp_path / "model"), problem)
        assert_same((found.x, found.y), (result.x, result.y))


class Layer(eqx.Module):
    weight: jax.Array
    more: list


def save(tmp_path, x, y=None):
    about = {"method": "ed", "step": 1, "steps_done": 1, "status": "stopped", "message": "ümlaut"}
    return saved.save(tmp_path / "model", {"x": x, "y": y}, about, Trace({"step": [0, 1]}, {"seed": 3}))


def problem_of(x0):
    loss = lambda x, batch: sum(jnp.sum(leaf.astype(float)) for leaf in jax.tree.leaves(x)) + jnp.sum(batch)  # noqa: E731
    return db.Problem(loss, upper_data=np.ones((2, 1)), x0=x0)


def test_any_pytree_of_any_dtype(tmp_path):
    tree = {
        "a/b": Layer(jnp.ones((2, 3), jnp.bfloat16), [jnp.zeros(()), {7: jnp.arange(3.0, dtype=jnp.float16)}]),
        "a": {"b": (jnp.zeros((0, 4)), None, jnp.ones(1, jnp.float32))},
    }
    path = save(tmp_path, tree)
    found = db.Result.load(path)
    assert found.y is None and found.message == "ümlaut" and found.trace.provenance == {"seed": 3}
    found = found.x
    assert_same(found["a/b"]["weight"], tree["a/b"].weight)
    assert_same(found["a/b"]["more"], [jnp.zeros(()), {7: tree["a/b"].more[1][7]}])
    assert found["a"]["b"][1] is None
    assert_same(found["a"]["b"][2], tree["a"]["b"][2])
    assert_same(saved._like("x", tree, _leaves(path, "x")), tree)


def _leaves(path, level):
    arrays = read_arrays(path, None)
    return saved._leaves(level, json.loads(arrays[saved.ABOUT].tobytes())["levels"][level], arrays)


@pytest.mark.parametrize(
    ("start", "sentence"),
    [
        ({"w": jnp.ones(3), "b": jnp.ones(2)}, "x of the file has other leaves than x0 of the problem"),
        ({"w": jnp.ones(4)}, r'x of the file has the shape \(3,\) at \["w"\] and x0 \(4,\)'),
    ],
)
def test_another_problem_raises(start, sentence, tmp_path):
    path = save(tmp_path, {"w": jnp.ones(3)})
    with pytest.raises(ValueError, match=sentence):
        db.Result.load(path, problem_of(start))


def test_a_level_more_or_less_raises(result, tmp_path):
    with pytest.raises(ValueError, match="do not both have a level y: give the problem that was solved"):
        db.Result.load(save(tmp_path, result.x), result.problem)


def test_what_is_no_result_raises(tmp_path, result):
    with pytest.raises(FileNotFoundError, match=r"is not a file: give the path of a result that Result\.save wrote"):
        db.Result.load(tmp_path / "none.npz")
    result.trace.save(tmp_path / "trace.npz")
    (tmp_path / "text.npz").write_text("no")
    np.savez(tmp_path / "objects.npz", about=np.array([{}], object))
    for name in ("trace", "text", "objects"):
        with pytest.raises(ValueError, match="is not a result saved by Decibel, or it is damaged"):
            db.Result.load(tmp_path / f"{name}.npz")


def rewritten(path, name, change, **options):
    """The same file with one entry changed."""
    with zipfile.ZipFile(path) as file:
        entries = {entry: file.read(entry) for entry in file.namelist()}
    entries[name] = change(entries[name])
    with zipfile.ZipFile(path, "w", **options) as file:
        for entry, content in entries.items():
            file.writestr(entry, content)
    return path


@pytest.mark.parametrize("how", ["shape", "compressed", "short", "overlapping"])
def test_nothing_is_allocated_for_a_file_that_claims_more_than_it_holds(how, tmp_path, monkeypatch):
    path = save(tmp_path, jnp.ones(1000))
    largest, real = [], np.frombuffer
    monkeypatch.setattr(saved.np, "frombuffer", lambda data, dtype: largest.append(len(data)) or real(data, dtype))
    if how == "shape":
        rewritten(path, "x/0.npy", lambda content: content.replace(b"(1000,)", b"(9999,)"))
    elif how == "short":
        rewritten(path, "x/0.npy", lambda content: content[:-8])
    elif how == "compressed":
        rewritten(path, "x/0.npy", lambda content: content + bytes(10**7), compression=zipfile.ZIP_DEFLATED)
    else:
        raw = path.read_bytes()
        size = len(np.ones(1000).tobytes()) + 128
        path.write_bytes(raw.replace(size.to_bytes(4, "little"), (10**9).to_bytes(4, "little")))
    largest.clear()
    with pytest.raises(ValueError, match="is not a result saved by Decibel, or it is damaged"):
        db.Result.load(path)
    assert not largest or max(largest) <= path.stat().st_size


@pytest.mark.parametrize("path", [[[10**9]], [[-1]], ["a"] * 10_000, [{"a": 1}], [[0, 1]], [1.5]])
def test_nothing_is_allocated_for_a_path_that_no_model_has(path, result, tmp_path):
    """A sequence is made as long as the largest of its places says."""
    file = result.save(tmp_path / "model")
    with np.load(file) as entries:
        arrays = dict(entries)
    about = json.loads(arrays["about"].tobytes())
    about["levels"]["x"] = [{**about["levels"]["x"][0], "path": path}]
    np.savez(file, **arrays | {"about": np.frombuffer(json.dumps(about).encode(), np.uint8)})
    with pytest.raises(ValueError, match="is not a result saved by Decibel, or it is damaged"):
        db.Result.load(file)


def test_a_loaded_result_has_a_short_repr(tmp_path):
    saved = db.SavedResult({"w": np.zeros(1000)}, None, 3, 3, db.Status.COMPLETED, "", "ed", db.Trace({"upper": [2.0]}))
    assert repr(saved) == "SavedResult(ed, completed at step 3, upper=2)"
