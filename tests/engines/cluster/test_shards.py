"""One node on several devices: the simulator's numbers, half of every weight per device, and no weight gathered."""

from __future__ import annotations

import math
import re
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import decibel as db
from decibel.engines import _memory as memory
from decibel.engines._checkpoint import OtherRunError
from decibel.engines._program import RunConfig
from decibel.graphs._graph import Levels
from decibel.methods._single_level import SingleLevel
from decibel.strategies import STRATEGIES

NODES, INPUTS, HIDDEN, OUTPUTS = 4, 24, 16, 6
RING = db.graphs.ring(NODES)
RATES = {"alpha": 0.05, "beta": 0.1, "gamma": 0.1}
ED, GT = db.sparkle("ed", **RATES, theta=0.5), db.sparkle("gt", **RATES)
HALVES = db.Shards(2, smallest=HIDDEN * OUTPUTS)
COLUMNS = {"first": {"w": P(None, "shard"), "b": P("shard")}, "second": {"w": P("shard")}}
SIZES = {INPUTS * HIDDEN, HIDDEN * OUTPUTS}  # of the weights


def weights(seed, dtype=float):
    rng = np.random.default_rng(seed)
    layer = lambda *shape: {"w": (0.3 * rng.normal(size=shape)).astype(dtype), "b": np.zeros(shape[1], dtype)}  # noqa: E731
    return {"first": layer(INPUTS, HIDDEN), "second": layer(HIDDEN, OUTPUTS)}


def fit(y, batch):
    hidden = jnp.tanh(batch["a"] @ y["first"]["w"] + y["first"]["b"])
    return jnp.mean((hidden @ y["second"]["w"] + y["second"]["b"] - batch["b"]) ** 2)


def lower(x, y, batch):
    ridge = jax.tree.map(lambda rate, weight: jnp.sum(jnp.exp(rate) * weight**2), x, y)
    return fit(y, batch) + 0.5 * jax.tree.reduce(jnp.add, ridge)


def perceptron(dtype=float):
    """A ridge for each weight of a network with two layers."""
    rng = np.random.default_rng(0)
    data = {"a": rng.normal(size=(NODES, 20, INPUTS)), "b": rng.normal(size=(NODES, 20, OUTPUTS))}
    x0 = jax.tree.map(lambda leaf: np.full(leaf.shape, -3, dtype), weights(0))
    upper = lambda x, y, batch: fit(y, batch)  # noqa: E731
    return db.Problem(upper, lower, upper_data=data, lower_data=data, x0=x0, y0=weights(1, dtype))


PROBLEM = perceptron()
SINGLE = db.Problem(lambda x, batch: fit(x, batch), upper_data=PROBLEM.upper_data.tree, x0=weights(0))
SINGLE_ED, EDGES = db.ed(alpha=0.1), SingleLevel(0.1, 1.0, STRATEGIES["edge-ed"])


def solve(engine, method=ED, problem=PROBLEM, steps=12, **options):
    options = {"batch_size": 5, "metrics": [], "eval_every": 6, **options}
    return db.solve(problem, method, RING, **options, steps=steps, engine=engine)


def solve_single(engine, method=SINGLE_ED, **options):
    return solve(engine, method, SINGLE, **options)


def assert_close(found, expected, **tolerance):
    for a, b in zip(jax.tree.leaves(found.nodes), jax.tree.leaves(expected.nodes), strict=True):
        np.testing.assert_allclose(a, b, **tolerance)


@pytest.mark.slow
@pytest.mark.parametrize("method", [ED, GT], ids=lambda method: method.name)
@pytest.mark.parametrize("shard", [HALVES, db.Shards(2, COLUMNS, COLUMNS)], ids=["by-rule", "by-columns"])
def test_four_by_two_devices_give_the_simulators_numbers(method, shard):
    alone, split = solve(None, method), solve(db.Cluster(shard=shard), method)
    assert_close(split, alone, rtol=1e-11, atol=1e-13)
    for column in ("samples", "gradients", "hvps", "rounds", "bytes"):
        np.testing.assert_allclose(split.trace[column], alone.trace[column], rtol=1e-6)


@pytest.mark.slow
def test_in_single_precision():
    problem = perceptron(np.float32)
    assert_close(solve(db.Cluster(shard=2), problem=problem), solve(None, problem=problem), atol=1e-5)
    assert_close(solve(db.Cluster(shard=HALVES), problem=problem), solve(None, problem=problem), atol=1e-5)


def collectives(text):
    """(kind, entries) of every array that a collective of a compiled program gives."""
    found = Counter()
    for line in text.splitlines():
        match = re.search(
            r"= (.*?) (all-gather|all-reduce|all-to-all|reduce-scatter|collective-permute)(-start)?\(", line
        )
        for shape in re.findall(r"\w+\[([\d,]*)\]", match[1]) if match else ():
            found[match[2], math.prod(int(size) for size in shape.split(",") if size)] += 1
    return found


@pytest.mark.slow_except("sparkle-gt")
@pytest.mark.parametrize("method", [ED, GT], ids=lambda method: method.name)
def test_every_device_holds_half_of_each_weight_and_no_weight_is_gathered(method):
    run = db.Cluster(shard=HALVES).start(PROBLEM, method, Levels(x=RING), RunConfig(5))
    program, _, _ = run.compile(3)
    alone = db.Simulator().start(PROBLEM, method, Levels(x=RING), RunConfig(5))
    for _ in range(2):  # before the first step, and after some
        for leaf in jax.tree.leaves((run.state, run.program.problem.x0, run.program.problem.y0)):
            size = math.prod(leaf.shape[1:]) if leaf.shape[0] == NODES else leaf.size
            here = [part.data.size for part in leaf.addressable_shards]
            nodes = leaf.size // size
            assert here == [size // 2 if size in SIZES else size] * 8, (leaf.shape, here, nodes)
        run.advance(3)
        alone.advance(3)
    for a, b in zip(jax.tree.leaves(run.state), jax.tree.leaves(alone.state), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-12)
    found = collectives(program.as_text())
    assert found["collective-permute", sum(SIZES) * 3 // 2 + 3 * (HIDDEN + OUTPUTS)] > 0  # x, y and z in one buffer
    moved = {entries for kind, entries in found if kind in ("all-gather", "all-to-all")}
    assert moved and max(moved) <= 5 * HIDDEN, found  # activations of a batch
    assert not [entries for kind, entries in found if kind != "collective-permute" and entries in SIZES]


def test_the_parser_of_collectives_would_see_a_gathered_weight():
    mesh = db.Cluster(shard=2).mesh(NODES)
    split = jax.ShapeDtypeStruct((INPUTS, HIDDEN), float, sharding=jax.NamedSharding(mesh, P("shard")))
    gather = jax.jit(lambda w: w + 1, out_shardings=jax.NamedSharding(mesh, P()))
    assert collectives(gather.lower(split).compile().as_text()) == {("all-gather", INPUTS * HIDDEN): 1}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "options"),
    [
        (db.sparkle("edge-ed", **RATES), {}),
        (db.sparkle("ada-ed", alpha=0.01, beta=0.01, gamma=0.01), {}),
        (ED, {"faults": db.faults.drop(0.3)}),
        (ED, {"faults": db.faults.late(2, 0.3)}),
        (db.sparkle("edge-ed", **RATES), {"faults": [db.faults.drop(0.3, one_way=True)]}),
        (db.sparkle("edge-ed", **RATES), {"faults": [db.faults.late((1, 3))]}),
        (db.sparkle("wave", **RATES), {}),
        (
            db.sparkle("wave", **RATES),
            {"faults": [db.faults.drop(0.3, one_way=True), db.faults.late((1, 3)), db.faults.slow(1, 3)]},
        ),
    ],
    ids=["edge-ed", "ada-ed", "drop", "late", "edge-ed-drop", "edge-ed-late", "wave", "wave-faults"],
)
def test_links_and_faults(method, options):
    split = solve(db.Cluster(shard=HALVES), method, **options)
    # An adaptive step divides by what may be nearly zero, which magnifies rounding: so it is on one device per node.
    assert_close(split, solve(None, method, **options), atol=1e-6 if "ada" in method.name else 1e-12)


@pytest.mark.slow
def test_evaluation_and_results():
    alone = solve_single(None, metrics=None)
    split = solve_single(db.Cluster(shard=db.Shards(2, COLUMNS)), metrics=None)
    for column in set(alone.trace) - {"seconds"}:
        np.testing.assert_allclose(split.trace[column], alone.trace[column], rtol=1e-7)
    assert_close(split, alone, rtol=1e-11, atol=1e-13)
    for a, b in zip(jax.tree.leaves(split.x), jax.tree.leaves(alone.x), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-13)


@pytest.mark.slow
def test_a_split_run_resumes_exactly_and_on_other_devices(tmp_path):
    split, checkpoint = db.Cluster(shard=HALVES), {"checkpoint": tmp_path}
    saved = solve_single(split, steps=6, **checkpoint)
    for engine in (db.Cluster(devices=4), db.Simulator(), db.Cluster(shard=db.Shards(4, smallest=50))):
        assert_close(solve_single(engine, steps=6, resume=True, **checkpoint), saved, rtol=0, atol=0)
    resumed = solve_single(split, resume=True, **checkpoint)
    assert_close(resumed, solve_single(split), rtol=0, atol=0)
    assert jax.tree.leaves(resumed.nodes.x)[1].sharding.spec == P("nodes", "shard")


@pytest.mark.slow
def test_what_links_remember_resumes_only_in_the_same_parts(tmp_path):
    split, checkpoint = db.Cluster(shard=HALVES), {"checkpoint": tmp_path}
    solve_single(split, EDGES, steps=6, **checkpoint)
    with pytest.raises(OtherRunError, match="split over devices in another way: give the same shard"):
        solve_single(db.Simulator(), EDGES, resume=True, **checkpoint)
    resumed = solve_single(split, EDGES, resume=True, **checkpoint)
    assert_close(resumed, solve_single(split, EDGES), rtol=0, atol=0)
    assert_close(resumed, solve_single(None, EDGES), atol=1e-12)


@pytest.mark.slow
def test_a_diverged_run_returns_to_its_parts_from_the_host(monkeypatch):
    late = db.ed(alpha=lambda step: jnp.where(step < 20, 0.05, 1e30))
    ended = {}
    for fits in (True, False):
        monkeypatch.setattr(memory, "fits", lambda tree, reserved, fits=fits: fits)
        with pytest.warns(db.NonFiniteWarning):
            ended[fits] = solve_single(db.Cluster(shard=HALVES), late, steps=60)
    assert 0 < ended[True].step == ended[False].step < 60
    for a, b in zip(jax.tree.leaves(ended[True].state), jax.tree.leaves(ended[False].state), strict=True):
        np.testing.assert_array_equal(a, b)
        assert a.sharding == b.sharding


def start(shard, method=ED, nodes=NODES):
    return db.Cluster(shard=shard).start(PROBLEM, method, Levels(x=db.graphs.ring(nodes)), RunConfig(5))


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: db.Cluster(shard=0), "shard=0 must be a positive integer."),
        (lambda: db.Cluster(shard=2.0), "shard=2.0 must be a positive integer."),
        (lambda: start(3), "shard=3 does not divide the 8 devices: choose from 1, 2, 4, 8."),
        (
            lambda: db.Cluster(shard=2).mesh(6),
            "6 nodes cannot be distributed evenly over 8 devices with 2 devices per node: use Cluster(devices=6), or a "
            "multiple of 4 nodes.",
        ),
        (
            lambda: start(db.Shards(2, x={"third": P("shard")})),
            "Shards(x=...) has a spec for 'third', which x0 lacks: it has 'first/b', 'first/w', 'second/b', "
            "'second/w'.",
        ),
        (
            lambda: start(db.Shards(2, y={"first": P("shards")})),
            "Shards(y=...) at 'first/b' is ('shards',): name the axis 'shard' once, or not at all.",
        ),
        (
            lambda: start(db.Shards(2, y={"first": {"w": 1}})),
            "Shards(y=...) at 'first/w' is a int: give a jax.sharding.PartitionSpec, or None.",
        ),
        (
            lambda: start(db.Shards(4, y={"second": {"w": P(None, "shard")}})),
            "Shards(y=...) at 'second/w' is (None, 'shard'), and (16, 6) is not divisible by 4 there: choose another "
            "axis.",
        ),
        (
            lambda: start(2, db.sparkle(db.privacy.top_k("ed", 0.5), **RATES)),
            "Coded messages need whole vectors, and shard splits every node over devices: leave out shard, or codes, "
            "limits and scale_every.",
        ),
        (
            lambda: start(2, db.sparkle(db.strategies.edge_ed(limit=1.0), **RATES)),
            "Limited messages need whole vectors",
        ),
        (
            lambda: start(2, db.sparkle(db.strategies.wave(limit=1.0), **RATES)),
            "Wave messages need whole vectors",
        ),
    ],
)
def test_what_does_not_fit_raises(call, sentence):
    with pytest.raises((ValueError, TypeError)) as raised:
        call()
    assert str(raised.value).startswith(sentence)


def test_a_single_level_has_no_y():
    engine = db.Cluster(shard=db.Shards(2, y=P()))
    with pytest.raises(ValueError, match="needs a lower level, and the problem has none: leave out y"):
        engine.start(SINGLE, SINGLE_ED, Levels(x=RING), RunConfig(5))
