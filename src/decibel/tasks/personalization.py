"""Personalised classification: nodes agree on the first layers, and each keeps a last layer of its own."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..core._types import Loss, PyTree
from ..problem._problem import Problem
from ..results.metrics import Snapshot
from . import data, partition
from .classification import find, samples_by_node
from .networks import Layer, affine, body, cross_entropy, square, start_body, start_zero
from .task import Task

STEP_SIZES = {"alpha": 0.3, "beta": 0.3}

Batch = tuple[Array, Array]


def predict(x: list[Layer], y: Layer, inputs: Array) -> Array:
    """Logits: sigmoid layers x, then the affine layer y."""
    return affine(y, body(x, inputs, jax.nn.sigmoid))


class PersonalLoss(eqx.Module):
    """f = g: mean cross entropy of a node's training samples, plus C‖y‖²."""

    regularization: float

    def __call__(self, x: list[Layer], y: Layer, batch: Batch) -> Array:
        inputs, labels = batch
        return cross_entropy(predict(x, y, inputs), labels).mean() + self.regularization * square(y)


class Together(eqx.Module):
    """A loss of two levels as a loss of one, with what was personal in x too."""

    loss: Loss

    def __call__(self, x: dict[str, PyTree], batch: PyTree) -> Array:
        return self.loss(x["shared"], x["personal"], batch)


def same_loss(loss: Loss, samples: list[PyTree], x0: PyTree, y0: PyTree, *, shared: bool) -> Problem:
    """The problem with f = g = `loss` and y kept by the nodes, or with one level and y agreed on as well."""
    if shared:
        return Problem(Together(loss), upper_data=samples, x0={"shared": x0, "personal": y0})
    return Problem(loss, loss, upper_data=samples, lower_data=samples, x0=x0, y0=y0, personal=True)


def own_models(snapshot: Snapshot) -> tuple[PyTree, PyTree]:
    """Every node's x and y, leaves (nodes, ...), whichever of the two problems it is."""
    x, y, _ = snapshot.nodes
    return (x["shared"], x["personal"]) if snapshot.problem.single_level else (x, y)


class PersonalAccuracy(eqx.Module):
    """Every node's own model, averaged over nodes.

    - `train_accuracy`: on its training samples.
    - `test_accuracy`: on held-out samples of its own distribution.
    - `whole_accuracy`: on all held-out samples. Always saying the own label is right with the skew's probability on
      the own distribution, but seldom here.
    """

    inputs: Array  # (samples, features)
    labels: Array
    own: Array  # (nodes, samples of a node): which of them are the node's own

    def __call__(self, snapshot: Snapshot) -> dict[str, Array]:
        models, train = own_models(snapshot), snapshot.problem.upper_data.full()
        right = jax.vmap(_right, (0, 0, None))(*models, (self.inputs, self.labels))  # (nodes, samples)
        seen = jax.vmap(lambda x, y, batch: batch.mean(lambda x, y, part: _right(x, y, part).mean(), x, y))
        return {
            "train_accuracy": seen(*models, train).mean(),
            "test_accuracy": jnp.take_along_axis(right, self.own, 1).mean(),
            "whole_accuracy": right.mean(),
        }


def personalization(
    dataset: str | data.Dataset = "digits",
    nodes: int = 10,
    *,
    skew: float = 0.95,
    per_node: int | None = 128,
    hidden: int = 32,
    regularization: float = 1e-4,
    shared: bool = False,
    seed: int = 0,
) -> Task:
    """Personalization: nodes agree on a hidden layer x and keep their own last layers y_i.

        f_i(x, y_i) = g_i(x, y_i) = mean cross entropy on node i's training samples + C‖y_i‖²

    Both levels minimize the same loss, so ∇_y f vanishes at y_i*(x) and `hypergradient.direct()` is exact in the limit.
    Differs from the paper: the other samples of a node are drawn from the other labels instead of all, so `skew` is
    exact; the regularization is ours, since the paper assumes strong convexity.

    Args:
        dataset: a name that `decibel.tasks.data.load` knows, or a `Dataset` with a test part.
        nodes: the number of nodes.
        skew: the share of node i's samples that has label i, in training and in testing.
        per_node: training samples per node; None takes as many as the labels allow.
        hidden: sigmoid units of the hidden layer.
        regularization: C, small, which makes g strongly convex in y.
        shared: the same model and loss with a single level, all of it shared, for `dsgd`, `gt`, `ed` and `extra`.
        seed: of the partition and the initial weights; last layers start at zero.

    References:
        Lu et al., Decentralized Bilevel Optimization for Personalized Client Learning, 2022.
    """
    source = find(dataset, tested=True)
    if hidden < 1:
        raise ValueError(f"hidden={hidden} must be at least 1.")
    train = partition.label_skew(source.y_train, nodes, fraction=skew, per_node=per_node, seed=seed)
    test = partition.label_skew(source.y_test, nodes, fraction=skew, seed=seed)
    sizes = [source.x_train.shape[1], hidden, source.classes]
    problem = same_loss(
        PersonalLoss(regularization),
        samples_by_node(source, train),
        start_body(sizes[:-1], np.random.default_rng(seed)),
        start_zero(*sizes[1:]),
        shared=shared,
    )
    own_samples = jnp.asarray(np.stack(test.indices), jnp.int32)
    metrics = (PersonalAccuracy(jnp.asarray(source.x_test, problem.dtype), jnp.asarray(source.y_test), own_samples),)
    summary = {
        "dataset": source.name,
        "layers": sizes,
        "agreed": "all layers" if shared else "all but the last layer",
        "samples": {"train": int(train.sizes.sum()), "test": int(test.sizes.sum()), "whole test": len(source.y_test)},
        "partition": train.describe(),
        "regularization": regularization,
        "seed": seed,
    }
    return Task(problem, metrics, "personalization", summary, train, test, STEP_SIZES)


def _right(x: list[Layer], y: Layer, batch: Batch) -> Array:
    """(samples,) one where the model is right."""
    inputs, labels = batch
    return (predict(x, y, inputs).argmax(-1).astype(labels.dtype) == labels).astype(inputs.dtype)
