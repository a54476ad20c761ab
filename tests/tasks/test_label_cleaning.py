"""Label cleaning: the losses as printed, the metrics by hand, and a short run that learns whom to trust."""

import os

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from small_tasks import blobs, ends, snapshot_of, untested

import decibel as db
from decibel.tasks import Task, label_cleaning

CLASSES, FEATURES = 3, 5


BLOBS = blobs(CLASSES, FEATURES, samples=240)


def make(**options) -> Task:
    return label_cleaning(BLOBS, 4, **{"heterogeneity": 0.5, **options})


def softmax_loss(logits: np.ndarray, label: int) -> float:
    return float(np.log(np.exp(logits).sum()) - logits[label])


@pytest.mark.slow_except("mlp")
@pytest.mark.parametrize("model", ["linear", "mlp"])
def test_the_losses_are_the_papers(model):
    task = make(model=model, hidden=7, regularization=0.01)
    rng = np.random.default_rng(1)
    x = rng.normal(size=task.summary["samples"]["train"])
    y = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape), task.problem.y0)

    def logits(sample):
        for depth, layer in enumerate(y):
            sample = sample @ layer["weight"] + layer["bias"]
            sample = np.maximum(sample, 0) if depth < len(y) - 1 else sample
        return sample

    inputs = rng.normal(size=(6, FEATURES))
    labels, e = rng.integers(0, CLASSES, 6), rng.integers(0, len(x), 6)
    losses = [softmax_loss(logits(sample), label) for sample, label in zip(inputs, labels, strict=True)]
    square = sum((leaf**2).sum() for leaf in jax.tree.leaves(y))
    batch = tuple(map(jnp.asarray, (inputs, labels, e)))
    assert jax.jit(task.problem.upper)(x, y, batch[:2]) == pytest.approx(np.mean(losses), rel=1e-12)
    lower = np.mean(losses / (1 + np.exp(-x[e]))) + 0.01 * square
    assert jax.jit(task.problem.lower)(x, y, batch) == pytest.approx(lower, rel=1e-12)


def test_every_training_sample_has_its_own_weight_at_its_own_node():
    task = make(corruption=0.3)
    data, labels = task.problem.lower_data, task.truth
    seen = [np.asarray(data.tree[2][i][:n]) for i, n in enumerate(data.counts)]
    assert np.array_equal(np.sort(np.concatenate(seen)), np.arange(len(labels.true)))
    for node, e in enumerate(seen):
        assert np.array_equal(labels.origin[e], task.partition.indices[node])
        assert np.array_equal(data.tree[1][node][: len(e)], labels.given[e])
        assert np.array_equal(data.tree[0][node][: len(e)], BLOBS.x_train[labels.origin[e]])
    assert np.array_equal(labels.true, BLOBS.y_train[labels.origin])


def test_validation_samples_are_clean_and_apart():
    task = make(corruption=0.5)
    data = task.problem.upper_data
    inputs = np.concatenate([data.tree[0][i][:n] for i, n in enumerate(data.counts)])
    labels = np.concatenate([data.tree[1][i][:n] for i, n in enumerate(data.counts)])
    known = {sample.tobytes(): label for sample, label in zip(BLOBS.x_train, BLOBS.y_train, strict=True)}
    held = [sample.astype(np.float32).tobytes() for sample in inputs]
    assert [known[sample] for sample in held] == labels.tolist()
    assert not set(held) & {sample.tobytes() for sample in BLOBS.x_train[task.truth.origin]}


def test_corruption_is_seeded_recorded_and_never_the_true_class():
    first, again, other = make(seed=1), make(seed=1), make(seed=2)
    assert np.array_equal(first.truth.given, again.truth.given)
    assert not np.array_equal(first.truth.given, other.truth.given)
    assert first.summary["corruption"]["wrong"] == (first.truth.true != first.truth.given).sum() > 0
    assert make(corruption=0.0).summary["corruption"]["wrong"] == 0
    assert make(corruption=1.0).truth.corrupted.all()


def test_metrics_by_hand():
    task = make()
    count, wrong = len(task.truth.true), task.truth.corrupted
    x = np.random.default_rng(3).normal(size=(4, count))
    y = [{"weight": 3.0 * jnp.stack([jnp.eye(FEATURES, CLASSES)] * 4), "bias": jnp.zeros((4, CLASSES))}]
    y[0]["bias"] = y[0]["bias"].at[0, 2].set(100.0)  # node 0 says "c" to everything
    snapshot = snapshot_of(task, jnp.asarray(x), y)
    columns = [eqx.filter_jit(metric)(snapshot) for metric in task.metrics]
    measured = {name: float(value) for each in columns for name, value in each.items()}

    right = (BLOBS.x_test @ np.eye(FEATURES, CLASSES)).argmax(1) == BLOBS.y_test
    always = BLOBS.y_test == 2
    assert measured["node_accuracy"] == pytest.approx((3 * right.mean() + always.mean()) / 4)
    bias = np.array([0, 0, 25.0])
    averaged = (3 * BLOBS.x_test @ np.eye(FEATURES, CLASSES) + bias).argmax(1) == BLOBS.y_test
    assert measured["test_accuracy"] == pytest.approx(averaged.mean())

    weight = 1 / (1 + np.exp(-x.mean(0)))
    least = set(np.argsort(x.mean(0))[: wrong.sum()])
    assert measured["clean_weight"] == pytest.approx(weight[~wrong].mean())
    assert measured["corrupted_weight"] == pytest.approx(weight[wrong].mean())
    assert measured["found"] == pytest.approx(len(least & set(np.flatnonzero(wrong))) / wrong.sum())


@pytest.mark.slow
@pytest.mark.parametrize("model", ["linear", "mlp"])
def test_a_short_run_finds_the_wrong_labels(model):
    task = make(model=model, hidden=8, corruption=0.3)
    method = db.sparkle("ed", alpha=20.0, beta=0.5, gamma=0.5, theta=0.3, updates="simultaneous")
    result = db.solve(
        task.problem, method, db.graphs.ring(4), steps=300, batch_size=16, eval_every=300, metrics=task.metrics
    )
    first, last = ends(result)
    assert last["test_accuracy"] > 0.85 > first["test_accuracy"]
    assert last["clean_weight"] > last["corrupted_weight"] + 0.2
    assert last["found"] > first["found"] + 0.2


def test_digits_are_the_default():
    task = label_cleaning()
    assert task.nodes == 10 and task.summary["layers"] == [64, 10]
    assert task.summary["samples"]["test"] == 359


def test_options_reach_the_task():
    assert make(model="mlp").summary["layers"] == [FEATURES, 300, CLASSES]
    assert make(heterogeneity=None).partition.skew < 0.15 < make(heterogeneity=0.1).partition.skew


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"model": "tree"}, "'linear' or 'mlp'"),
        ({"model": "mlp", "hidden": 0}, "hidden=0"),
        ({"validation": 1.0}, "validation=1.0"),
        ({"corruption": 1.5}, "must lie in"),
        ({"heterogeneity": 0.0}, "must be positive"),
    ],
)
def test_bad_input_gets_a_sentence(options, words):
    with pytest.raises(ValueError, match=words):
        make(**options)


def test_a_dataset_without_a_test_part_raises():
    with pytest.raises(ValueError, match="no test part"):
        label_cleaning(untested(BLOBS))


@pytest.mark.slow
@pytest.mark.skipif("DECIBEL_DATA" not in os.environ, reason="DECIBEL_DATA is not set: Fashion-MNIST is not here")
def test_fashion_mnist_is_cleaned_as_in_the_paper():
    """784-300-10, ten nodes on a ring, Dirichlet 0.1, 30 % wrong labels, batch 50, 2,000 iterations, float32."""
    task = label_cleaning("fashion-mnist", 10, model="mlp", corruption=0.3, heterogeneity=0.1, seed=0)
    beta = optax.linear_schedule(0.3, 0.03, 2000)
    method = db.sparkle("ed", alpha=800.0, beta=beta, gamma=0.1, theta=0.2, updates="simultaneous")
    with jax.numpy_dtype_promotion("standard"):  # optax's schedules mix dtypes
        result = db.solve(
            task.problem, method, db.graphs.ring(10), steps=2000, batch_size=50, eval_every=1000, metrics=task.metrics
        )
    end = result.trace.last
    assert end["test_accuracy"] >= 0.83
    assert end["clean_weight"] > end["corrupted_weight"] + 0.4
