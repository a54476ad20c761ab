"""Sources: what is read of files and of other libraries' data sets, what is raised, and batches as they come."""

from __future__ import annotations

import itertools
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from streamed import NODES, Noted, lower, problem, samples, sources, upper

import decibel as db
from decibel.problem._streams import StreamData
from decibel.problem.sources import is_source

TREES = samples()
GRAPH = db.graphs.ring(NODES)
METHOD = db.CATALOG["sparkle-ed"]()
INDICES = np.array([4, 0, 4, 2])


def solve(given, method=METHOD, **options):
    return db.solve(given, method, GRAPH, **{"steps": 4, "batch_size": 3, "metrics": [], **options})


# Sources


def assert_rows(source, tree):
    assert len(source) == len(jax.tree.leaves(tree)[0])
    found = source[INDICES]
    assert jax.tree.structure(found) == jax.tree.structure(tree)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(tree), strict=True):
        np.testing.assert_array_equal(a, b[INDICES])
        assert a.dtype == b.dtype


@pytest.mark.parametrize("kind", ["contiguous", "columns", "swapped", "unaligned"])
def test_memory_maps_are_read_by_row(tmp_path, kind):
    array = np.random.default_rng(0).normal(size=(9, 6)).astype(">f8" if kind == "swapped" else float)
    path, offset = tmp_path / "array", 3 if kind == "unaligned" else 0
    path.write_bytes(b"\0" * offset + array.tobytes())
    mapped = np.memmap(path, array.dtype, "r", offset, array.shape)
    array, mapped = (array[:, 1:4], mapped[:, 1:4]) if kind == "columns" else (array, mapped)
    source = db.sources.arrays({"rows": mapped})
    assert_rows(source, {"rows": array})
    assert not isinstance(source[INDICES]["rows"], np.memmap) or not np.shares_memory(source[INDICES]["rows"], mapped)


def test_leaves_of_a_source_are_equally_long():
    with pytest.raises(
        ValueError, match=r"^db\.sources\.arrays has leaves with \[3, 4\] samples: give all equally many\.$"
    ):
        db.sources.arrays([np.ones(3), np.ones(4)])


class Items:
    def __len__(self):
        return 9

    def __getitem__(self, index):
        assert isinstance(index, int)
        return np.full(2, float(index)), index


class Many(Items):
    def __getitem__(self, index):
        raise AssertionError("reads all at once")

    def __getitems__(self, indices):
        return [Items()[index] for index in indices]


@pytest.mark.parametrize("dataset", [Items(), Many()])
def test_data_sets_of_single_items(dataset):
    assert_rows(db.sources.items(dataset), (np.repeat(np.arange(9.0)[:, None], 2, 1), np.arange(9)))


def test_torch_data_sets():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    rows, labels = np.arange(27.0).reshape(9, 3), np.arange(9)
    dataset = torch.utils.data.TensorDataset(torch.from_numpy(rows), torch.from_numpy(labels))
    assert_rows(db.sources.items(dataset), (rows, labels))


def test_grain_data_sets():
    grain = pytest.importorskip("grain", reason="grain is not installed")
    dataset = grain.MapDataset.source(np.arange(9)).map(lambda i: {"x": np.float64(i)})
    assert_rows(db.sources.items(dataset), {"x": np.arange(9.0)})


def test_hdf5_files(tmp_path):
    h5py = pytest.importorskip("h5py", reason="h5py is not installed")
    tree = {"a": np.arange(27.0).reshape(9, 3), "b": np.arange(9)}
    with h5py.File(tmp_path / "data.h5", "w") as file:
        for name, leaf in tree.items():
            file[name] = leaf
        file["short"] = np.arange(3)
    assert_rows(db.sources.hdf5(tmp_path / "data.h5", ["a", "b"]), tree)
    with pytest.raises(ValueError, match="equally many"):
        db.sources.hdf5(tmp_path / "data.h5")
    with pytest.raises(ValueError, match=r"no data set 'c': choose from \['a', 'b', 'short'\]"):
        db.sources.hdf5(tmp_path / "data.h5", ["c"])


class Table:
    """The part of a Hugging Face data set that is used."""

    def __init__(self, kind=None):
        self.kind = kind

    def with_format(self, kind):
        return Table(kind)

    def __len__(self):
        return 9

    def __getitem__(self, indices):
        assert self.kind == "numpy" and isinstance(indices, list)
        return {"x": np.asarray(indices, float), "y": np.asarray(indices)}


def test_hugging_face_data_sets():
    assert_rows(db.sources.hugging_face(Table()), {"x": np.arange(9.0), "y": np.arange(9)})


def test_real_hugging_face_data_sets():
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    tree = {"x": np.arange(9.0), "y": np.arange(9)}
    assert_rows(db.sources.hugging_face(datasets.Dataset.from_dict(tree)), tree)


def test_what_is_a_source():
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    yes = [Noted(TREES[0]), db.sources.arrays(np.ones(3)), db.sources.iterator([1]), Items()]
    no = [np.ones(3), jnp.ones(3), [1.0], (1.0,), {"a": 1.0}, "text", range(3), pandas.DataFrame([1.0]), 3.0, Items]
    assert all(map(is_source, yes)) and not any(map(is_source, no))


@pytest.mark.slow
def test_arrays_are_read_side_by_side(monkeypatch):
    """With the same rows; what one thread raises reaches the caller."""
    monkeypatch.setattr("decibel.problem._stream_backends.PARALLEL_FROM_BYTES", 0)
    whole = solve(problem(TREES))
    found = solve(problem([db.sources.arrays(tree) for tree in TREES]))
    np.testing.assert_array_equal(np.asarray(found.nodes.x), np.asarray(whole.nodes.x))
    trees = samples()
    trees[2]["b"][4] = np.inf
    with pytest.raises(ValueError, match="node 2, sample 4"):
        solve(problem([db.sources.arrays(tree) for tree in trees]), steps=50)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("decibel")]


# In a problem


def test_a_list_of_sources_is_not_copied():
    given = problem(sources(TREES))
    assert isinstance(given.upper_data, StreamData) and given.lower_data is given.upper_data
    assert given.nodes == NODES and given.upper_data.samples_per_node == 6.75
    assert not isinstance(problem(TREES).upper_data, StreamData)
    assert "read from sources, a sample float64[3], float64[], int64[]" in given._repr_html_()


def test_types_are_those_of_arrays():
    """Floats take the run's type, integers stay what they are."""
    x0 = jnp.zeros(3, jnp.float32)
    made = [
        db.Problem(upper, lower, upper_data=data, lower_data=data, x0=x0, y0=x0) for data in (TREES, sources(TREES))
    ]
    shapes = [jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), given.upper_data.sample) for given in made]
    assert shapes[0] == shapes[1] and shapes[0]["b"] == ((1,), jnp.float32)


class Broken(Noted):
    def __init__(self, tree, change):
        super().__init__(tree)
        self.change = change

    def __getitem__(self, indices):
        found = super().__getitem__(indices)
        return found if len(self.calls) == 1 else self.change(found)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            lambda rows: {"a": rows["a"]},
            r"node 0 gave .* unlike the first sample's .*: give all samples one structure\.$",
        ),
        (
            lambda rows: rows | {"a": rows["a"][:, :2]},
            r"gave an array \(3, 2\) of float32 where \(3, 3\) of float64 was",
        ),
        (
            lambda rows: rows | {"b": rows["b"][:1]},
            r"gave an array \(1,\) of float64 where \(3,\) .* row for each index\.$",
        ),
        (lambda rows: rows | {"kind": rows["kind"] * 1.0}, r"of float64 where \(3,\) of int64 was expected"),
    ],
)
def test_batches_are_like_the_first_sample(change, sentence):
    host = problem([Broken(tree, change) for tree in TREES]).upper_data.host
    with pytest.raises(ValueError, match=r"^upper_data: the source of .*" + sentence):
        host.read(0, [np.zeros((1, 3), np.int32)])


@pytest.mark.parametrize(
    ("data", "error", "sentence"),
    [
        ([Noted(TREES[0]), TREES[1]], TypeError, r"upper_data holds sources and a dict: give a source for every node"),
        (
            [Noted(TREES[0]), db.sources.iterator([TREES[0]])],
            TypeError,
            r"upper_data holds iterators and sources: give",
        ),
        ([db.sources.arrays(np.ones((0, 3)))], ValueError, r"upper_data has no samples at node 0: leave that node out"),
        ([db.sources.arrays(np.array(["a", "b"]))], TypeError, r"upper_data holds <U1 instead of numbers: encode"),
        (
            [db.sources.arrays(np.full(3, np.nan))],
            ValueError,
            r"upper_data holds a NaN or infinity at node 0, sample 0",
        ),
        (
            [Noted(TREES[0]), Noted({"b": np.ones(3)})],
            ValueError,
            r"the source of node 1 gave .*: give all samples one",
        ),
    ],
)
def test_wrong_sources_raise_at_once(data, error, sentence):
    with pytest.raises(error, match=sentence):
        problem(data)


@pytest.mark.parametrize("use", ["solve_lower", "hypergradient", "check"])
def test_what_needs_all_samples_raises(use):
    arguments = () if use == "check" else (jnp.zeros(3),)
    with pytest.raises(
        ValueError, match=rf"^{use} needs all samples at once, and upper_data is a stream: make a problem"
    ):
        getattr(problem(sources(TREES)), use)(*arguments)


# Iterators


def in_order(tree, size=3):
    """Batches of consecutive samples, without end."""
    for start in itertools.count(0, size):
        rows = np.arange(start, start + size) % len(tree["b"])
        yield {name: leaf[rows] for name, leaf in tree.items()}


def iterated(**options):
    return problem([db.sources.iterator(in_order(tree, **options)) for tree in TREES])


def test_each_draw_takes_the_next_batch():
    """Step k takes batch k: the gradient steps that NumPy takes on it."""

    def loss(x, batch):
        return jnp.mean((batch["a"] @ x - batch["b"]) ** 2)

    read = [db.sources.iterator(in_order(tree)) for tree in TREES]
    given = db.Problem(loss, upper_data=read, x0=jnp.zeros(3))
    found = db.solve(
        given, db.dsgd(alpha=0.1), db.graphs.complete(NODES), steps=9, eval_every=4, batch_size=3, metrics=[]
    )
    x, own = np.zeros(3), [in_order(tree) for tree in TREES]
    for _ in range(9):
        steps = []
        for batches in own:
            batch = next(batches)
            a = batch["a"].astype(float)
            steps.append(x - 0.1 * 2 / 3 * a.T @ (a @ x - batch["b"]))
        x = np.mean(steps, 0)
    np.testing.assert_allclose(found.x, x, rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sparkle-ed", pytest.param("ma-dsbo", marks=pytest.mark.slow)])
def test_iterators_in_chunks_of_any_length(name):
    """A step takes what comes next, whether it is read ahead or in the middle of a step."""
    method = db.CATALOG[name]()
    one, other = (solve(iterated(), method, steps=8, eval_every=every) for every in (8, 3))
    np.testing.assert_array_equal(np.asarray(one.nodes.x), np.asarray(other.nodes.x))
    assert not np.array_equal(np.asarray(one.nodes.x), np.asarray(solve(problem(TREES), method, steps=8).nodes.x))


def test_an_iterable_begins_again():
    trees = [list(itertools.islice(in_order(tree), 4)) for tree in TREES]
    assert solve(problem([db.sources.iterator(batches) for batches in trees]), steps=9).step == 9


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"checkpoint": "folder"},
            r"^checkpoint needs batches that can be drawn by index, and upper_data has iterators: ",
        ),
        ({"engine": db.Cluster(devices=2)}, r"^Cluster\(\) needs batches that can be drawn by index"),
        ({"sampling": "shuffle-once"}, r"^sampling='shuffle-once' cannot order the iterators of upper_data: "),
        (
            {"metrics": ["upper"]},
            r"^metric 'upper' is a mean over all samples, and upper_data has iterators: leave it out",
        ),
        (
            {"batch_size": 2},
            r"^upper_data: the iterator of node 0 gave 3 samples, and a batch has 2 \(batch_size\): give",
        ),
    ],
)
def test_what_iterators_cannot_do(options, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=sentence):
        solve(iterated(), **options)


def test_runs_side_by_side_do_not_share_iterators():
    with pytest.raises(ValueError, match=r"^a run beside others needs batches that can be drawn by index"):
        db.tune(iterated(), METHOD, GRAPH, budget=1, steps=2, batch_size=3)


def test_an_iterator_that_ends_raises():
    read = [db.sources.iterator(itertools.islice(in_order(tree), 5)) for tree in TREES]
    sentence = r"^db\.sources\.iterator ended after 5 batches and cannot begin again: give an endless one"
    with pytest.raises(ValueError, match=sentence) as caught:
        solve(problem(read), steps=20)
    assert caught.value.__notes__ == ["upper_data: raised by the iterator of node 0."]
    with pytest.raises(TypeError, match=r"^db\.sources\.iterator got a int: give an iterable of batches\.$"):
        db.sources.iterator(3)
