"""Models of which a part is trained: the same numbers as by hand, and frozen arrays are arguments."""

from __future__ import annotations

import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decibel as db
from decibel.engines._program import RunConfig
from decibel.engines._run import compile_chunk
from decibel.graphs._graph import Levels

NODES, RING = 4, db.graphs.ring(4)
ED = db.ed(alpha=0.05)
rng = np.random.default_rng(0)
DATA = {"a": rng.normal(size=(NODES, 10, 5)), "b": rng.normal(size=(NODES, 10))}


def model(seed=0):
    made = np.random.default_rng(seed)
    return {
        "body": {"w": made.normal(size=(5, 37)), "steps": np.arange(3), "act": jnp.tanh},
        "head": [made.normal(size=37), 0.5],
    }


def predict(m, batch):
    return m["body"]["act"](batch["a"] @ m["body"]["w"]) @ m["head"][0] + m["head"][1]


def loss(m, batch):
    return jnp.mean((predict(m, batch) - batch["b"]) ** 2)


def head(path, leaf):
    return path.startswith("head/")


def problem(part):
    return db.Problem(part.loss(loss, "x"), upper_data=DATA, x0=part.start)


def test_a_split_joins_to_the_model():
    whole = model()
    for choose in (head, {"body": False, "head": True}, lambda path, leaf: "act" not in path):
        part = db.trainable(whole, choose)
        again = part.join(part.start)
        assert jax.tree.structure(again) == jax.tree.structure(whole)
        assert jax.tree.all(jax.tree.map(lambda a, b: np.array_equal(a, b) if np.ndim(a) else a == b, again, whole))
    assert part.start["body"]["steps"] is None  # integers are not trained
    assert db.trainable(whole, head).start["body"] == {"w": None, "steps": None, "act": None}


def test_a_module_of_equinox():
    network = eqx.nn.MLP(3, 2, 8, 1, key=jax.random.key(0))
    part = db.trainable(network, lambda path, leaf: path.startswith("layers/1"))
    shapes = [leaf.shape for leaf in jax.tree.leaves(part.start)]
    assert shapes == [(2, 8), (2,)]
    np.testing.assert_array_equal(part.join(part.start)(jnp.ones(3)), network(jnp.ones(3)))


def test_a_run_gives_the_numbers_of_losses_written_by_hand():
    part, whole = db.trainable(model(), head), model()
    start = [jnp.asarray(leaf) for leaf in whole["head"]]
    expected = db.Problem(lambda x, batch: loss({**whole, "head": x}, batch), upper_data=DATA, x0=start)
    options = {"steps": 20, "batch_size": 4, "metrics": []}
    found = db.solve(problem(part), ED, RING, engine=db.Cluster(devices=4), **options)
    wanted = db.solve(expected, ED, RING, **options)
    for a, b in zip(jax.tree.leaves(found.x), jax.tree.leaves(wanted.x), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)
    np.testing.assert_array_equal(part.join(found.x)["body"]["w"], whole["body"]["w"])


def places(made):
    """Whether the weights of the body are an argument of a compiled chunk, and a constant in it."""
    run = db.Simulator().start(made, ED, Levels(x=RING), RunConfig(4))
    text = run.compile(3)[0].as_text()
    arguments = re.search(r"entry_computation_layout=\{\((.*?)\)->", text)[1]
    return "f64[5,37]" in arguments, bool(re.search(r"= f64\[5,37\]\S* constant\(", text))


def test_frozen_arrays_are_arguments_and_not_constants():
    part = db.trainable(model(), head)
    assert places(problem(part)) == (True, False)
    constant = db.Problem(lambda x, batch: loss(part.join(x), batch), upper_data=DATA, x0=part.start)
    assert places(constant) == (False, True)


def test_other_frozen_arrays_compile_nothing():
    db.Simulator().start(problem(db.trainable(model(0), head)), ED, Levels(x=RING), RunConfig(3)).compile(2)
    before = compile_chunk.cache_info()
    db.Simulator().start(problem(db.trainable(model(1), head)), ED, Levels(x=RING), RunConfig(3)).compile(2)
    assert compile_chunk.cache_info().misses == before.misses


def test_levels_keys_and_less_precision():
    seen = []

    def noted(m, batch, *, key=None):
        seen.append((m["body"]["w"].dtype, m["head"][0].dtype, key))
        return loss(m, jax.tree.map(lambda leaf: leaf.astype(m["head"][0].dtype), batch)).astype(float)

    part = db.trainable(model(), head)
    assert part.loss(lambda x, m, batch: x + m["head"][1])(1.0, part.start, None) == 1.5
    wrapped = part.loss(noted, "x")
    wrapped(part.start, {"a": jnp.ones((2, 5)), "b": jnp.ones(2)}, key=3)
    assert seen.pop() == (np.float64, np.float64, 3)
    narrow = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), part.start)
    wrapped(narrow, {"a": jnp.ones((2, 5)), "b": jnp.ones(2)})
    assert seen.pop() == (jnp.bfloat16, jnp.bfloat16, None)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: db.trainable(model(), lambda path, leaf: False), "choose trains no floating-point array of the model"),
        (lambda: db.trainable(model(), {"tail": True}), "choose does not have the structure of the model"),
        (lambda: db.trainable(model(), head).loss(loss, "z"), "level='z' is not known: choose 'x' or 'y'."),
    ],
)
def test_what_is_wrong_raises(call, sentence):
    with pytest.raises(ValueError) as raised:
        call()
    assert str(raised.value).startswith(sentence)
