"""The tasks with networks: losses and guards by hand, and short runs on tiny data that improve."""

import os

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_tasks import blobs, ends, snapshot_of

import decibel as db
from decibel.tasks import meta_learning, networks, personalization

CLASSES = 4
FEATURES = 6


BLOBS = blobs(CLASSES, FEATURES, samples=400)


def finite(tree) -> bool:
    return all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(tree))


def differs(a, b) -> bool:
    return any(bool((x != y).any()) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def node_batch(data, node: int):
    return jax.tree.map(lambda leaf: leaf[node, : int(data.counts[node])], data.tree)


def second_derivatives(task):
    """Jacobian and Hessian of g times ones, and the Hessian by differences, at one node and a point off the start."""
    g, batch = task.problem.lower, node_batch(task.problem.lower_data, 0)
    shift = lambda leaf: leaf + 0.1 * jnp.cos(jnp.arange(leaf.size, dtype=leaf.dtype)).reshape(leaf.shape)  # noqa: E731
    x, y = jax.tree.map(shift, task.problem.x0), jax.tree.map(shift, task.problem.y0)

    @jax.jit
    def differentiate(y):
        slope, pull = jax.vjp(lambda x, y: jax.grad(g, 1)(x, y, batch), x, y)
        return slope, pull(jax.tree.map(jnp.ones_like, y))

    ahead, behind = (differentiate(jax.tree.map(lambda leaf: leaf + h, y))[0] for h in (1e-5, -1e-5))  # noqa: B023
    differences = jax.tree.map(lambda a, b: (a - b) / 2e-5, ahead, behind)
    return *differentiate(y)[1], differences


def assert_second_derivatives(task):
    jacobian, hessian, differences = second_derivatives(task)
    assert finite(jacobian) and networks.square(jacobian) > 0
    for exact, near in zip(jax.tree.leaves(hessian), jax.tree.leaves(differences), strict=True):
        np.testing.assert_allclose(exact, near, rtol=1e-5, atol=1e-6)


# Personalised classification


@pytest.mark.slow
def test_personal_loss_by_hand():
    task = personalization(BLOBS, 4, per_node=20, hidden=3, regularization=0.01)
    rng = np.random.default_rng(1)
    x = [{"weight": rng.normal(size=(FEATURES, 3)), "bias": rng.normal(size=3)}]
    y = {"weight": rng.normal(size=(3, CLASSES)), "bias": rng.normal(size=CLASSES)}
    inputs, labels = rng.normal(size=(5, FEATURES)), rng.integers(0, CLASSES, 5)
    hidden = 1 / (1 + np.exp(-(inputs @ x[0]["weight"] + x[0]["bias"])))
    logits = hidden @ y["weight"] + y["bias"]
    losses = np.log(np.exp(logits).sum(1)) - logits[np.arange(5), labels]
    expected = losses.mean() + 0.01 * ((y["weight"] ** 2).sum() + (y["bias"] ** 2).sum())
    batch = jnp.asarray(inputs), jnp.asarray(labels)
    assert task.problem.upper is task.problem.lower
    assert task.problem.lower(x, y, batch) == pytest.approx(expected, rel=1e-12)
    together = personalization(BLOBS, 4, per_node=20, hidden=3, regularization=0.01, shared=True)
    assert together.problem.single_level
    assert together.problem.upper({"shared": x, "personal": y}, batch) == pytest.approx(expected, rel=1e-12)


def test_nodes_see_mostly_their_own_label():
    task = personalization(BLOBS, 4, per_node=40, skew=0.95)
    for counts in (task.partition.counts, task.truth.counts):  # training, testing
        assert (np.diag(counts) >= 0.9 * counts.sum(1)).all()
    assert (np.diag(task.partition.counts) == 38).all()
    assert task.method().name == "spdb"  # where no method is named
    assert personalization(BLOBS, 4, per_node=None).partition.sizes[0] > 40


@pytest.mark.slow
def test_personalization_improves_with_own_and_with_shared_last_layers():
    options = dict(per_node=40, skew=0.7, hidden=8)
    graph = db.graphs.ring(4)
    task = personalization(BLOBS, 4, **options)
    personal = db.spdb(alpha=1.0, beta=1.0, hypergradient=db.hypergradient.direct())
    run = dict(steps=200, batch_size=16, eval_every=200)
    first, last = ends(db.solve(task.problem, personal, graph, metrics=task.metrics, **run))
    assert last["train_accuracy"] > 0.9 and last["test_accuracy"] > 0.85 > first["test_accuracy"]
    task = personalization(BLOBS, 4, **options, shared=True)
    first, last = ends(db.solve(task.problem, db.ed(alpha=1.0), graph, metrics=task.metrics, **run))
    assert last["test_accuracy"] > 0.85 and last["whole_accuracy"] > 0.85 > first["whole_accuracy"]


def test_personal_accuracy_by_hand():
    task = personalization(BLOBS, 4, per_node=20, skew=0.8, hidden=FEATURES)
    x = [{"weight": 20 * jnp.eye(FEATURES), "bias": jnp.full(FEATURES, -30.0)}]  # a unit fires above 1.5
    stack = lambda tree: jax.tree.map(lambda leaf: jnp.stack([leaf] * 4), tree)  # noqa: E731
    y = stack({"weight": jnp.eye(FEATURES, CLASSES), "bias": jnp.zeros(CLASSES)})
    y["bias"] = y["bias"].at[jnp.arange(4), jnp.arange(4)].set(100.0)  # node i says i to everything
    snapshot = snapshot_of(task, stack(x), y)
    measured = eqx.filter_jit(task.metrics[0])(snapshot)
    assert measured["train_accuracy"] == pytest.approx(0.8)
    own = [(BLOBS.y_test[part] == node).mean() for node, part in enumerate(task.truth.indices)]
    assert measured["test_accuracy"] == pytest.approx(np.mean(own))
    assert measured["whole_accuracy"] == pytest.approx(0.25)


# Meta-learning


def test_tasks_have_their_own_classes_and_share_no_sample():
    task = meta_learning(BLOBS, 4, ways=2, samples=40)
    assert task.partition.sizes.tolist() == [20] * 4
    problem, seen = task.problem, set()
    for node, classes in enumerate(task.truth):
        assert set(np.flatnonzero(task.partition.counts[node])) <= set(classes)
        for data in (problem.upper_data, problem.lower_data):
            inputs, labels = node_batch(data, node)
            for sample, label in zip(np.asarray(inputs) + BLOBS.x_train.mean(0), labels, strict=True):
                place = np.flatnonzero((np.abs(BLOBS.x_train - sample) < 1e-5).all(1))
                assert BLOBS.y_train[place] == classes[int(label)]
                assert not seen & set(place)
                seen |= set(place)
    assert len(seen) == 4 * 40


@pytest.mark.slow
def test_meta_learning_improves():
    task = meta_learning(BLOBS, 4, ways=3, samples=60, hidden=(6, 6))
    method = db.interact(alpha=0.3, beta=0.5)
    result = db.solve(task.problem, method, db.graphs.ring(4), steps=60, eval_every=60, metrics=task.metrics)
    first, last = ends(result)
    assert last["test_accuracy"] > 0.85 > first["test_accuracy"]
    assert last["adapted_accuracy"] > 0.85
    assert_second_derivatives(task)


# Refusals and real data


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: personalization(BLOBS, 4, hidden=0), "hidden=0"),
        (lambda: personalization(BLOBS, 4, per_node=10_000), "per_node=10000"),
        (lambda: meta_learning(BLOBS, 4, ways=5), "ways=5"),
        (lambda: meta_learning(BLOBS, 4, ways=2, samples=10_000), "samples=10000"),
        (lambda: meta_learning(BLOBS, 4, ways=2, hidden=()), "hidden"),
        (lambda: meta_learning(BLOBS, 4, ways=2, validation=0.0), "validation=0.0"),
    ],
)
def test_bad_input_gets_a_sentence(make, words):
    with pytest.raises(ValueError, match=words):
        make()


needs_data = pytest.mark.skipif("DECIBEL_DATA" not in os.environ, reason="DECIBEL_DATA is not set")


@pytest.mark.slow
@needs_data
def test_the_papers_sizes_on_real_data():
    task = personalization("mnist")
    assert task.summary["layers"] == [784, 32, 10] and task.partition.sizes.tolist() == [128] * 10
    task = meta_learning("cifar10-subset", 10)
    assert task.summary["layers"] == [3072, 20, 20, 5] and task.summary["samples"] == {
        "train": 5000,
        "validation": 5000,
    }
