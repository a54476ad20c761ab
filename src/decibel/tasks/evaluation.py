"""Evaluation of a task's classifier: models that are stacks of affine layers, losses and accuracy on held-out data."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from ..core._types import Loss, PyTree
from ..problem._samples import NodeData
from ..results.metrics import Snapshot
from . import networks
from .classification import flat
from .networks import affine, body

__all__ = [
    "Accuracy",
    "AveragePrecision",
    "Layers",
    "Losses",
    "NodeAccuracy",
    "accuracy",
    "average_precision",
    "cross_entropy",
    "flat",
    "layers",
    "predict",
]

Layers = list[dict[str, Array]]
Model = Callable[[PyTree, Array], Array]  # parameters and inputs to logits (samples, classes)


def predict(layers: Layers, inputs: Array) -> Array:
    """Logits of a stack of affine layers with ReLU between them: one layer is the linear model."""
    *hidden, last = layers
    return affine(last, body(hidden, inputs, jax.nn.relu))


def layers(sizes: list[int], seed: int) -> Layers:
    """Where a stack of affine layers starts: zeros for the linear model, He's random weights with hidden units."""
    shapes = list(pairwise(sizes))
    if len(shapes) == 1:
        weights = [jnp.zeros(shapes[0])]
    else:
        keys = jax.random.split(jax.random.key(seed), len(shapes))
        weights = [
            (2 / shape[0]) ** 0.5 * jax.random.normal(key, shape) for key, shape in zip(keys, shapes, strict=True)
        ]
    return [{"weight": weight, "bias": jnp.zeros(weight.shape[1])} for weight in weights]


def cross_entropy(y: Layers, inputs: Array, labels: Array) -> Array:
    """Per sample, of integer labels."""
    return networks.cross_entropy(predict(y, inputs), labels)


def accuracy(y: PyTree, inputs: Array, labels: Array, model: Model = predict) -> Array:
    """The share of samples classified rightly."""
    return (model(y, inputs).argmax(-1).astype(labels.dtype) == labels).mean(dtype=inputs.dtype)


def average_precision(scores: Array, labels: Array) -> Array:
    """Σ_k (R_k − R_{k−1}) P_k over the distinct scores, labels 0 or 1: the mean, over positives, of the share of
    positives among all samples that score at least as high."""
    # Only sorted scores are compared: compiled, what feeds a sort and what is looked up in it may round differently.
    ranked, hit = jax.lax.sort((scores, (labels == 1).astype(jnp.int32)), num_keys=1)
    lowest = jnp.searchsorted(ranked, ranked)  # the first of those that score the same
    above, positive = scores.size - lowest, jnp.sum(hit, dtype=hit.dtype)
    right = positive - (jnp.cumsum(hit, dtype=hit.dtype) - hit)[lowest]
    precision = right.astype(scores.dtype) / above.astype(scores.dtype)
    return jnp.sum(jnp.where(hit == 1, precision, 0)) / positive.astype(scores.dtype)


class Accuracy(eqx.Module):
    """`test_accuracy`: the share of held-out samples that the average of the nodes' models classifies rightly."""

    inputs: Array
    labels: Array
    model: Model = predict

    def __call__(self, snapshot: Snapshot) -> dict[str, Array]:
        return {"test_accuracy": accuracy(snapshot.y, self.inputs, self.labels, self.model)}


class NodeAccuracy(eqx.Module):
    """`node_accuracy`: the same for every node's own model, averaged over nodes."""

    inputs: Array
    labels: Array
    model: Model = predict

    def __call__(self, snapshot: Snapshot) -> dict[str, Array]:
        each = jax.vmap(lambda y: accuracy(y, self.inputs, self.labels, self.model))(snapshot.nodes.y)
        return {"node_accuracy": each.mean()}


class AveragePrecision(eqx.Module):
    """`average_precision`: of the scores that the averaged x gives held-out samples with labels 0 and 1."""

    inputs: Array
    labels: Array
    score: Model

    def __call__(self, snapshot: Snapshot) -> dict[str, Array]:
        return {"average_precision": average_precision(self.score(snapshot.x, self.inputs), self.labels)}


class Losses(eqx.Module):
    """`training_loss`, `validation_loss`: `loss(x, y, batch)`, without a regularizer, at the averages and over all
    samples of the lower and of the upper level, averaged over nodes."""

    loss: Loss

    def __call__(self, snapshot: Snapshot) -> dict[str, Array]:
        problem = snapshot.problem

        def over(samples: NodeData) -> Array:
            return jax.vmap(lambda batch: batch.mean(self.loss, snapshot.x, snapshot.y))(samples.full()).mean()

        return {"training_loss": over(problem.lower_data), "validation_loss": over(problem.upper_data)}
