"""Meta-learning: every node has a task of its own, and all agree on layers that suit every task's last layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..problem._batch import Batch as Samples
from ..problem._problem import Problem
from ..results.metrics import Snapshot
from . import data, partition
from .classification import find
from .networks import Layer, affine, body, cross_entropy, square, start_body, start_zero
from .task import Task

STEP_SIZES = {"alpha": 0.3, "beta": 0.3}

SAMPLES = 1_000  # of a node, in the paper
ADAPTATION = 100  # steps
Batch = tuple[Array, Array]


def predict(x: list[Layer], y: Layer, inputs: Array) -> Array:
    """Logits: tanh layers x, then the affine layer y."""
    return affine(y, body(x, inputs, jnp.tanh))


def validation_loss(x: list[Layer], y: Layer, batch: Batch) -> Array:
    """f: mean cross entropy on the validation samples of a node's task."""
    inputs, labels = batch
    return cross_entropy(predict(x, y, inputs), labels).mean()


class AdaptationLoss(eqx.Module):
    """g: mean cross entropy on the training samples of a node's task, plus C‖y‖²."""

    regularization: float

    def __call__(self, x: list[Layer], y: Layer, batch: Batch) -> Array:
        return validation_loss(x, y, batch) + self.regularization * square(y)


class TaskAccuracy(eqx.Module):
    """Held-out samples of every node's own task, averaged over nodes.

    - `test_accuracy`: with the node's x_i and y_i as they stand.
    - `adapted_accuracy`: with the layers x̄ agreed on and a last layer newly fitted to them, from zero, by `ADAPTATION`
      accelerated gradient steps on g.
    """

    inputs: Array  # (samples, features) of all classes
    labels: Array  # (nodes, samples) as the node's task numbers them; -1: not in its task

    def __call__(self, snapshot: Snapshot) -> dict[str, Array]:
        x, (x_nodes, y_nodes, _) = snapshot.x, snapshot.nodes
        adapted = jax.vmap(lambda batch: _adapt(snapshot.problem, x, batch))(snapshot.problem.lower_data.full())
        return {
            "test_accuracy": jax.vmap(self._accuracy)(x_nodes, y_nodes, self.labels).mean(),
            "adapted_accuracy": jax.vmap(self._accuracy, (None, 0, 0))(x, adapted, self.labels).mean(),
        }

    def _accuracy(self, x: list[Layer], y: Layer, labels: Array) -> Array:
        right = predict(x, y, self.inputs).argmax(-1).astype(labels.dtype) == labels
        dtype = self.inputs.dtype
        return right.sum(dtype=dtype) / (labels >= 0).sum(dtype=dtype)


def _adapt(problem: Problem, x: list[Layer], batch: Samples) -> Layer:
    """Nesterov's method on one node's g(x, ·), from y0."""
    y0 = cast(Layer, problem.y0)
    lower = cast(AdaptationLoss, problem.lower)
    # tanh lies in [-1, 1] and the Hessian of cross entropy in the logits below 1/2, so this bounds that of g in y.
    curvature = (y0["weight"].shape[0] + 1) / 2 + 2 * lower.regularization

    def step(carry: tuple[Layer, Layer], momentum: Array) -> tuple[tuple[Layer, Layer], None]:
        y, ahead = carry
        slope = jax.grad(problem.lower_loss, 1)(x, ahead, batch)
        new = jax.tree.map(lambda a, s: a - s / curvature, ahead, slope)
        return (new, jax.tree.map(lambda a, b: a + momentum * (a - b), new, y)), None

    k = jnp.arange(ADAPTATION, dtype=y0["bias"].dtype)
    (y, _), _ = jax.lax.scan(step, (y0, y0), k / (k + 3))
    return y


def meta_learning(
    dataset: str | data.Dataset = "digits",
    nodes: int = 5,
    *,
    ways: int = 5,
    samples: int | None = None,
    hidden: Sequence[int] = (20, 20),
    validation: float = 0.5,
    regularization: float = 1e-2,
    seed: int = 0,
) -> Task:
    """Meta-learning: nodes agree on the hidden layers x of a network and adapt last layers y_i to their own classes.

        f_i(x, y_i) = mean cross entropy on node i's validation samples
        g_i(x, y_i) = mean cross entropy on its training samples + C‖y_i‖²

    g_i is strongly convex in y_i. Tasks overlap: node i's classes are the next `ways` of a shuffled circle of classes,
    numbered in an order of its own. Differs from the paper: it states neither its tasks, its activation nor its C, so
    these are ours; its n samples serve both levels, where f and g divide `samples` here.

    Args:
        dataset: a name that `decibel.tasks.data.load` knows, or a `Dataset` with a test part. Inputs are centred by the
            mean of its training part; with pixels in [0, 1] the paper's step sizes are too large.
        nodes: the number of nodes.
        ways: classes per node.
        samples: per node, equally many per class and disjoint; None takes 1,000, or what the labels allow.
        hidden: tanh units of each hidden layer.
        validation: the share of a node's samples used for f.
        regularization: C.
        seed: of the partition, the split and the initial weights; last layers start at zero.

    References:
        Liu et al., INTERACT, 2022.
    """
    source = find(dataset, tested=True)
    if not hidden or min(hidden) < 1:
        raise ValueError(f"hidden={hidden} must be the units of at least one layer.")
    if not 0 < validation < 1:
        raise ValueError(f"validation={validation} must be a share between 0 and 1.")
    tasks = _choose_classes(source.classes, nodes, ways, seed)
    split = _deal(source.y_train, tasks, samples, seed).split(
        train=1 - validation, validation=validation, test=0.0, seed=seed
    )
    centre = source.x_train.mean(0)
    inputs = source.x_train - centre
    sizes = [len(centre), *hidden, ways]
    numbers = _renumber(tasks, source.classes)

    def samples_of(part: partition.Partition) -> list[tuple[np.ndarray, np.ndarray]]:
        return [(inputs[held], numbers[node][source.y_train[held]]) for node, held in enumerate(part.indices)]

    problem = Problem(
        validation_loss,
        AdaptationLoss(regularization),
        upper_data=samples_of(split.validation),
        lower_data=samples_of(split.train),
        x0=start_body(sizes[:-1], np.random.default_rng(seed)),
        y0=start_zero(*sizes[-2:]),
        personal=True,
    )
    images = jnp.asarray(source.x_test - centre, problem.dtype)
    metrics = (TaskAccuracy(images, jnp.asarray(numbers[:, source.y_test])),)
    summary = {
        "dataset": source.name,
        "layers": sizes,
        "classes": tasks.tolist(),
        "samples": {name: int(getattr(split, name).sizes.sum()) for name in ("train", "validation")},
        "partition": split.train.describe(),
        "regularization": regularization,
        "seed": seed,
    }
    return Task(problem, metrics, "meta-learning", summary, split.train, tasks, STEP_SIZES)


def _choose_classes(classes: int, nodes: int, ways: int, seed: int) -> np.ndarray:
    """(nodes, ways): the classes of each task in its own order."""
    if not 2 <= ways <= classes:
        raise ValueError(f"ways={ways} must lie between 2 and the dataset's {classes} classes.")
    if nodes < 1:
        raise ValueError(f"nodes={nodes} must be at least 1.")
    rng = np.random.default_rng(seed)
    circle = rng.permutation(classes)
    starts = np.arange(nodes) * max(classes // nodes, 1)
    return rng.permuted(circle[(starts[:, None] + np.arange(ways)) % classes], axis=1)


def _renumber(tasks: np.ndarray, classes: int) -> np.ndarray:
    """(nodes, classes): the task's number of a class, -1 where the task has no such class."""
    numbers = np.full((len(tasks), classes), -1, np.int32)
    np.put_along_axis(numbers, tasks, np.arange(tasks.shape[1], dtype=np.int32)[None], 1)
    return numbers


def _deal(labels: np.ndarray, tasks: np.ndarray, samples: int | None, seed: int) -> partition.Partition:
    nodes, ways = tasks.shape
    takers = np.bincount(tasks.ravel(), minlength=int(labels.max()) + 1)
    most = int((np.bincount(labels, minlength=len(takers))[takers > 0] // takers[takers > 0]).min())  # per class
    each = min(most, SAMPLES // ways) if samples is None else samples // ways
    if not 2 <= each <= most:
        raise ValueError(
            f"samples={samples} is not possible for {nodes} tasks of {ways} classes: give {2 * ways} to {most * ways}."
            if most >= 2
            else f"nodes={nodes} tasks of {ways} classes need more than {len(labels)} samples: ask for fewer."
        )
    rng = np.random.default_rng(seed)
    held: list[list[np.ndarray]] = [[] for _ in tasks]
    for label in np.unique(tasks):
        members = rng.permutation(np.flatnonzero(labels == label))
        for turn, node in enumerate(np.flatnonzero((tasks == label).any(1))):
            held[node].append(members[turn * each : (turn + 1) * each])
    parts = tuple(np.sort(np.concatenate(parts)) for parts in held)
    return partition.Partition(parts, labels.astype(np.int64), "tasks", seed, {"ways": ways, "samples": each * ways})
