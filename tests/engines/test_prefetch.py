"""Streams give the numbers of samples in memory, bit for bit, whether read ahead or in the middle of a step."""

from __future__ import annotations

import subprocess
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from streamed import COUNTS, NODES, Failing, Noted, lower, problem, samples, sources, upper
from xla import environment

import decibel as db
from decibel.engines import _prefetch
from decibel.engines._program import RunConfig
from decibel.graphs._graph import Levels

GRAPH = db.graphs.ring(NODES)
UPPER, LOWER, EQUAL = samples(), samples(seed=1), samples((6,) * NODES)
AHEAD, INSIDE = db.CATALOG["sparkle-ed"](), db.CATALOG["ma-dsbo"](lower_steps=2)
EVERY = 4  # steps of a chunk, here the same everywhere: a program of this length is compiled once for all tests
OPTIONS = {"batch_size": 3, "eval_every": EVERY, "metrics": [], "seed": 4}


def in_memory(**options):
    return problem(UPPER, LOWER, **options)


def streamed(**options):
    return problem(sources(UPPER), sources(LOWER), **options)


def states(given, method, *, steps=3 * EVERY, graph=GRAPH, **options):
    result = db.solve(given, method, graph, steps=steps, **OPTIONS | options)
    assert result.step == steps
    return [np.asarray(leaf) for leaf in jax.tree.leaves(result.state)]


def assert_same(found, expected):
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)


def start(given, method, batch_size=3, **options):
    return db.Simulator().start(given, method, Levels(x=GRAPH), RunConfig(batch_size, **options))


# What is streamed, the same in memory, the method, and how it runs.
STREAMED = {
    "STORM": (streamed(), in_memory(), db.CATALOG["dsvrbgd"](), {"sampling": "shuffle-once"}),
    "STORM of two levels": (streamed(), in_memory(), db.CATALOG["vrdbo"](), {}),
    "inner loops": (streamed(), in_memory(), INSIDE, {}),
    "Neumann series": (streamed(), in_memory(), db.CATALOG["gossip-dsbo"](), {"sampling": "shuffle-once"}),
    "local steps": (streamed(), in_memory(), db.CATALOG["sparkle-led"](), {}),
    "one source": (problem(sources(UPPER)), problem(UPPER), AHEAD, {}),
    "nodes of one size": (problem(sources(EQUAL)), problem(EQUAL), AHEAD, {}),
    "personal": (streamed(personal=True), in_memory(personal=True), db.CATALOG["lopa"](), {}),
    "one level of two": (problem(UPPER, sources(LOWER)), in_memory(), AHEAD, {}),
    "chunks of nodes": (streamed(), in_memory(), AHEAD, {"engine": db.Simulator(node_chunk=2)}),
    "members": (streamed(), in_memory(), AHEAD, {"engine": db.Simulator(members=(0, 1, 3))}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", STREAMED)
def test_a_streamed_run_equals_one_in_memory(name):
    one, other, method, options = STREAMED[name]
    assert_same(states(one, method, **options), states(other, method, **options))


def test_a_single_level_and_data_as_a_function():
    def loss(x, batch):
        return jnp.mean((batch["a"] @ x - batch["b"]) ** 2)

    method, read = db.CATALOG["gt-hsgd"](), sources(UPPER)
    given = lambda data: db.Problem(loss, upper_data=data, x0=jnp.zeros(3))  # noqa: E731
    assert_same(states(given(lambda node: read[node]), method), states(given(UPPER), method))


@pytest.mark.slow
def test_random_losses_in_pieces():
    """A loss that takes a key, evaluated on two samples at a time."""
    method = AHEAD

    def noisy(x, y, batch, *, key=None):
        noise = 0.0 if key is None else jax.random.normal(key, y.shape) @ y
        return lower(x, y, batch) + noise

    given = {"x0": jnp.zeros(3), "y0": jnp.zeros(3)}
    one, other = (
        db.Problem(upper, noisy, upper_data=data, lower_data=data, **given) for data in (sources(UPPER), UPPER)
    )
    found = states(one, method, micro_batch=2)
    assert_same(found, states(other, method, micro_batch=2))
    assert not np.array_equal(found[0], states(problem(UPPER), method, micro_batch=2)[0])


def test_what_is_read_ahead():
    """Where rows are a function of the step, few calls read those of many steps; elsewhere every step calls."""
    assert start(streamed(), AHEAD).reads_ahead and not start(streamed(), INSIDE).reads_ahead
    storm = start(streamed(), db.CATALOG["dsvrbgd"]())
    assert storm.reads_ahead
    read = sources(UPPER)
    states(problem(read, LOWER), AHEAD, steps=2 * EVERY)
    assert len(read[0].calls) == 1 + 2  # the first sample, then once for each chunk
    assert sum(map(len, read[0].calls)) == 1 + 2 * EVERY * 3


@pytest.mark.slow
@pytest.mark.parametrize("sampling", ["random", "shuffle-once"])
def test_a_limit_of_bytes_cuts_chunks_into_equal_parts(monkeypatch, sampling):
    expected = states(in_memory(), AHEAD, steps=20, sampling=sampling)
    step = start(streamed(), AHEAD)
    bytes_of_step = sum(
        data.nodes * data.host.sample_bytes * sum(sizes)
        for data, sizes in zip(step._streams, step._reads.sizes, strict=True)
    )
    monkeypatch.setattr(_prefetch, "READ_AHEAD_BYTES", 2 * 5 * bytes_of_step)
    assert step._parts(12) == [4, 4, 4] and step._parts(5) == [5] and step._parts(11) == [4, 4, 3]
    assert step._parts(10**6) == [5] * 200_000
    assert_same(states(streamed(), AHEAD, steps=20, eval_every=12, sampling=sampling), expected)
    monkeypatch.setattr(_prefetch, "READ_AHEAD_BYTES", 1)
    assert step._parts(3) == [1, 1, 1]


@pytest.mark.slow
@pytest.mark.parametrize("method", [AHEAD, INSIDE], ids=["sparkle-ed", "ma-dsbo"])
def test_resume_within_a_chunk(tmp_path, method):
    expected = states(in_memory(), method)
    db.solve(streamed(), method, GRAPH, steps=EVERY + 2, checkpoint=tmp_path, **OPTIONS)
    resumed = db.solve(streamed(), method, GRAPH, steps=3 * EVERY, checkpoint=tmp_path, resume=True, **OPTIONS)
    assert_same([np.asarray(leaf) for leaf in jax.tree.leaves(resumed.state)], expected)


def test_a_checkpoint_knows_its_sources(tmp_path):
    db.solve(streamed(), AHEAD, GRAPH, steps=EVERY, checkpoint=tmp_path, **OPTIONS)
    for changed in (samples((7, 5, 9, 8)), samples(seed=2)):
        with pytest.raises(ValueError, match="checkpoint holds another run: upper_data"):
            given = problem(sources(changed), sources(LOWER))
            db.solve(given, AHEAD, GRAPH, steps=2 * EVERY, checkpoint=tmp_path, resume=True, **OPTIONS)


@pytest.mark.slow_except("sparkle-ed")
@pytest.mark.parametrize("method", [AHEAD, INSIDE], ids=["sparkle-ed", "ma-dsbo"])
def test_rows_of_a_node_do_not_depend_on_nodes_or_engine(method):
    def rows(nodes, engine):
        read = sources(samples((*COUNTS, *COUNTS)[:nodes]))
        given = problem(lambda node: read[node], nodes=nodes)
        db.solve(given, method, db.graphs.ring(nodes), steps=EVERY, engine=engine, **OPTIONS)
        return [np.sort(np.concatenate(source.calls[1:])) for source in read]

    few, many, spread = rows(4, db.Simulator()), rows(8, db.Simulator()), rows(8, db.Cluster(devices=8))
    for a, b in zip(few, many[:4], strict=True):
        np.testing.assert_array_equal(a, b)
    assert_same(spread, many)


@pytest.mark.slow
@pytest.mark.parametrize("sampling", ["random", "shuffle-once"])
@pytest.mark.parametrize("devices", [8, 2])
def test_the_cluster_reads_the_same(devices, sampling):
    read = sources(samples((*COUNTS, *COUNTS)))
    graph, engine = db.graphs.ring(8), db.Cluster(devices=devices)
    found = [
        db.solve(given, AHEAD, graph, steps=EVERY, engine=engine, sampling=sampling, **OPTIONS | {"metrics": ["upper"]})
        for given in (problem(lambda node: read[node]), problem([source.tree for source in read]))
    ]
    assert_same(*([np.asarray(leaf) for leaf in jax.tree.leaves(result.state)] for result in found))
    np.testing.assert_allclose(*(result.trace["upper"] for result in found), rtol=1e-12)


@pytest.mark.slow_except("False")
@pytest.mark.parametrize("personal", [False, True])
def test_losses_are_measured_in_passes(monkeypatch, personal):
    monkeypatch.setattr("decibel.problem._streams.PASS_BYTES", 3 * NODES * 32)
    method = db.CATALOG["lopa"]() if personal else AHEAD
    one, other = (
        db.solve(given(personal=personal), method, GRAPH, steps=EVERY, **OPTIONS | {"metrics": ["upper", "lower"]})
        for given in (streamed, in_memory)
    )
    for name in ("upper", "lower"):
        np.testing.assert_allclose(one.trace[name], other.trace[name], rtol=1e-12)


@pytest.mark.slow
def test_a_default_run_makes_no_pass():
    read = sources(UPPER)
    result = db.solve(problem(read, LOWER), AHEAD, GRAPH, steps=EVERY, batch_size=3)
    assert "lower" in result.trace and "upper" not in result.trace
    assert sum(map(len, read[0].calls)) == 1 + EVERY * 3


@pytest.mark.slow
def test_runs_side_by_side():
    search = [{"alpha": 0.01}, {"alpha": 0.02}]
    one, other = (
        db.tune(given, AHEAD, GRAPH, steps=4, batch_size=3, search=search, seeds=(0,))
        for given in (streamed(), in_memory())
    )
    np.testing.assert_allclose(one.score, other.score, rtol=1e-12)


# What goes wrong


def threads():
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("decibel")]


@pytest.mark.slow
@pytest.mark.parametrize("engine", [db.Simulator(), db.Cluster(devices=4)], ids=["simulator", "cluster"])
@pytest.mark.parametrize("method", [AHEAD, INSIDE], ids=["sparkle-ed", "ma-dsbo"])
def test_an_exception_of_a_source_reaches_the_caller(method, engine):
    read = [Failing(tree, 4 if node == 2 else -1) for node, tree in enumerate(UPPER)]
    with pytest.raises(OSError, match="the disk is gone") as caught:
        db.solve(problem(read, LOWER), method, GRAPH, steps=100, engine=engine, **OPTIONS)
    assert caught.value.__notes__ == ["upper_data: raised by the source of node 2."]
    assert not threads()


@pytest.mark.slow_except("sparkle-ed")
@pytest.mark.parametrize("method", [AHEAD, INSIDE], ids=["sparkle-ed", "ma-dsbo"])
def test_after_an_error_the_state_is_the_last_good_one(method):
    trees = samples()
    read = [Failing(tree, 3) for tree in trees]
    run = start(problem(read), method)
    if method is INSIDE:
        for source in read:
            source.at = len(source.calls) + 100
    steps = 0
    with pytest.raises(OSError, match="the disk is gone"):
        while run.advance(EVERY) is not None:
            steps += EVERY
    assert steps > 0 and run.step == steps
    expected = start(problem(trees), method)
    for _ in range(steps // EVERY):
        expected.advance(EVERY)
    assert_same(jax.tree.leaves(run.state), jax.tree.leaves(expected.state))
    for source in read:
        source.at = -1
    run.advance(EVERY)  # and the run can go on
    expected.advance(EVERY)
    assert_same(jax.tree.leaves(run.state), jax.tree.leaves(expected.state))
    run.close(finished=True)


@pytest.mark.slow_except("sparkle-ed")
@pytest.mark.parametrize(("method", "value"), [(AHEAD, np.nan), (INSIDE, np.inf)], ids=["sparkle-ed", "ma-dsbo"])
def test_batches_are_checked_as_they_come(method, value):
    trees = samples()
    trees[1]["a"][3, 2] = value
    with pytest.raises(
        ValueError, match=r"^upper_data holds a NaN or infinity at node 1, sample 3: clean or drop it\.$"
    ):
        db.solve(problem(sources(trees)), method, GRAPH, steps=50, **OPTIONS)


def test_an_error_while_a_loss_is_measured():
    trees = samples()
    trees[3]["b"][5] = np.nan
    with pytest.raises(ValueError, match="node 3, sample 5"):
        db.solve(problem(sources(trees)), AHEAD, GRAPH, steps=EVERY, **OPTIONS | {"metrics": ["upper"]})


@pytest.mark.parametrize("stop", [False, True])
def test_no_thread_outlives_a_run(stop):
    seen = []

    def watch(step, row):
        seen.append((step, threads()))
        return stop and step > 0

    result = db.solve(streamed(), AHEAD, GRAPH, steps=2 * EVERY, callbacks=[watch], **OPTIONS)
    assert result.step == (EVERY if stop else 2 * EVERY)
    assert dict(seen)[EVERY] == ["decibel-stream_0"] and not threads()


def test_a_run_that_diverges_ends():
    method = db.sparkle("ed", alpha=1e9, beta=1e9, gamma=1e9, theta=0.9)
    with pytest.warns(db.NonFiniteWarning):
        result = db.solve(streamed(), method, GRAPH, steps=100, **OPTIONS)
    assert result.status == db.Status.DIVERGED and not threads()


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (
            "stationarity",
            r"^metric 'stationarity' needs all samples at once, and upper_data is a stream: .*leave it out\.$",
        ),
        ("lower_error", r"^metric 'lower_error' needs all samples at once"),
    ],
)
def test_metrics_that_need_all_samples_raise(name, sentence):
    with pytest.raises(ValueError, match=sentence):
        db.solve(streamed(), AHEAD, GRAPH, steps=1, **OPTIONS | {"metrics": [name]})


def test_a_node_over_several_devices_raises():
    with pytest.raises(ValueError, match=r"^shard=2 cannot be combined with streams, and upper_data is one: leave out"):
        db.solve(streamed(), AHEAD, GRAPH, steps=1, engine=db.Cluster(shard=2), **OPTIONS)


def test_full_batches_raise():
    with pytest.raises(
        ValueError,
        match=r"^batch_size is missing, and upper_data is a stream: give the number of samples in a batch\.$",
    ):
        db.solve(streamed(), AHEAD, GRAPH, steps=1)
    spider = db.CATALOG["svr-interact"]()
    with pytest.raises(
        ValueError, match=r"^lower_data is a stream, and the method uses all samples .*, or give arrays\."
    ):
        db.solve(streamed(personal=True), spider, GRAPH, steps=1, batch_size=3)


# Memory

BOUNDED = """
import resource
import jax, numpy as np, jax.numpy as jnp, decibel as db
from decibel.engines import _prefetch
from decibel.problem import _streams

READ_AHEAD_BYTES = 32 * 2**20
_prefetch.READ_AHEAD_BYTES, _streams.PASS_BYTES = READ_AHEAD_BYTES, READ_AHEAD_BYTES // 2
ENTRIES, NODES, BATCH = 2048, 4, 32  # 8 KB a sample, 1 MB a step
COUNT = 10 * READ_AHEAD_BYTES // (4 * ENTRIES * NODES)

class Virtual:
    def __init__(self, count):
        self.count = count
    def __len__(self):
        return self.count
    def __getitem__(self, indices):
        return np.sin(indices[:, None].astype(np.float32) * np.arange(ENTRIES, dtype=np.float32))

def run(count, steps):
    read = [Virtual(count) for _ in range(NODES)]
    loss = lambda x, batch: jnp.mean((batch @ x - 1) ** 2)
    problem = db.Problem(loss, upper_data=read, x0=jnp.zeros(ENTRIES, jnp.float32))
    options = dict(steps=steps, eval_every=200, batch_size=BATCH, metrics=["upper"])
    assert db.solve(problem, db.ed(alpha=1e-5), db.graphs.ring(NODES), **options).step == steps
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

before = run(8, 1)
print((run(COUNT, 400) - before) / READ_AHEAD_BYTES)
"""


@pytest.mark.slow
def test_memory_is_bounded():
    """A stream of ten times the limit of what is read ahead, all of which is read, in steps and in passes."""
    done = subprocess.run(
        [sys.executable, "-c", BOUNDED], env=environment(), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 7  # what is in use, what is read, and each on its way to the device


def test_sources_are_not_read_before_they_are_needed():
    read = sources(UPPER, Noted)
    problem(read)
    assert all([call.tolist() for call in source.calls] == [[0]] for source in read)
