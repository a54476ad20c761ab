"""Label cleaning (data hyper-cleaning): learn how much to trust every training label from a little clean data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..problem._problem import Problem
from ..results.metrics import Snapshot
from . import data, partition
from .classification import find, held_out, sample_counts, samples_by_node, split_over_nodes
from .evaluation import Accuracy, Layers, NodeAccuracy, cross_entropy, layers
from .task import Task

STEP_SIZES = {"alpha": 100.0, "beta": 0.5, "gamma": 0.5}

Batch = tuple[Array, ...]


def clean_loss(x: Array, y: Layers, batch: Batch) -> Array:
    """f: mean cross entropy on a node's clean validation samples."""
    return cross_entropy(y, *batch).mean()


class WeightedLoss(eqx.Module):
    """g: mean of σ(x_e) · cross entropy over a node's training samples e, plus C‖y‖²."""

    regularization: float

    def __call__(self, x: Array, y: Layers, batch: Batch) -> Array:
        inputs, labels, e = batch
        losses = jax.nn.sigmoid(x[e]) * cross_entropy(y, inputs, labels)
        square = sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(y))
        return losses.mean() + self.regularization * square


class Cleaning(eqx.Module):
    """How well the weights σ(x) tell corrupted labels from clean ones.

    - `clean_weight`, `corrupted_weight`: the mean weight of each kind.
    - `found`: with k corrupted labels, the share of them among the k samples of least weight; chance is k over all.
    """

    clean: Array  # indices e
    corrupted: Array  # indices e

    @classmethod
    def of(cls, corrupted: np.ndarray) -> Cleaning:
        """From the mask of corrupted samples."""
        return cls(*(jnp.asarray(np.flatnonzero(mask), jnp.int32) for mask in (~corrupted, corrupted)))

    def __call__(self, snapshot: Snapshot) -> dict[str, Array]:
        x = snapshot.x
        weight = jax.nn.sigmoid(x)
        samples = jnp.concatenate([self.clean, self.corrupted])
        suspects = samples[jnp.argsort(x[samples])[: self.corrupted.size]]
        least = jnp.zeros_like(x).at[suspects].set(1)
        return {
            "clean_weight": weight[self.clean].mean(),
            "corrupted_weight": weight[self.corrupted].mean(),
            "found": least[self.corrupted].mean(),
        }


@dataclass(frozen=True, eq=False)
class Labels:
    """The labels of the training samples in the order of x, as they are and as the nodes see them."""

    true: np.ndarray
    given: np.ndarray
    origin: np.ndarray  # the sample's place in the dataset's training part

    @property
    def corrupted(self) -> np.ndarray:
        return self.true != self.given


def label_cleaning(
    dataset: str | data.Dataset = "digits",
    nodes: int = 10,
    *,
    model: Literal["linear", "mlp"] = "linear",
    hidden: int = 300,
    corruption: float = 0.3,
    heterogeneity: float | None = 0.1,
    validation: float = 1 / 6,
    regularization: float = 1e-3,
    seed: int = 0,
) -> Task:
    """Learns a weight for every training sample, some of whose labels are wrong (data hyper-cleaning).

    Nodes agree on a weight σ(x_e) for each training sample e of the network and on a classifier y:

        f_i(x, y) = mean cross entropy on node i's clean validation samples
        g_i(x, y) = mean σ(x_e) · cross entropy on its training samples + C‖y‖²

    Differs from the paper: a corrupted label never equals the true one.

    Args:
        dataset: a name that `decibel.tasks.data.load` knows, or a `Dataset` with a test part.
        nodes: the number of nodes.
        model: `"linear"`, or `"mlp"` with one hidden ReLU layer.
        hidden: units of the hidden layer.
        corruption: the probability that a training label is replaced, once, by another class.
        heterogeneity: α of the Dirichlet shares by class; None partitions evenly.
        validation: the share of a node's samples that is kept clean for f.
        regularization: C.
        seed: of the partition, the split, the corruption and the initial weights.

    References:
        Zhu et al., SPARKLE, 2024.
    """
    if not 0 <= corruption <= 1:
        raise ValueError(f"corruption={corruption} must lie in [0, 1].")
    source = find(dataset, tested=True)
    split = split_over_nodes(source.y_train, nodes, heterogeneity, validation, seed)
    origin = np.concatenate(split.train.indices)
    labels = Labels(
        true=source.y_train[origin],
        given=partition.corrupt_labels(source.y_train[origin], corruption, source.classes, seed).labels,
        origin=origin,
    )
    samples = np.split(np.arange(len(origin), dtype=np.int32), np.cumsum(split.train.sizes)[:-1])
    sizes = _sizes(model, source.x_train.shape[1], hidden, source.classes)
    problem = Problem(
        clean_loss,
        WeightedLoss(regularization),
        upper_data=samples_by_node(source, split.validation),
        lower_data=[(source.x_train[origin[e]], labels.given[e], e) for e in samples],
        x0=jnp.zeros(len(origin)),
        y0=layers(sizes, seed),
    )
    test = held_out(source, problem.dtype)
    summary = {
        "dataset": source.name,
        "model": model,
        "layers": sizes,
        "samples": sample_counts(source, split),
        "partition": split.train.describe(),
        "corruption": {
            "probability": corruption,
            "wrong": int(labels.corrupted.sum()),
            "convention": "a replaced label is drawn from the other classes, so it is always wrong",
        },
        "regularization": regularization,
        "seed": seed,
    }
    metrics = Accuracy(*test), NodeAccuracy(*test), Cleaning.of(labels.corrupted)
    return Task(
        problem,
        metrics,
        "label-cleaning",
        summary,
        split.train,
        labels,
        step_sizes=STEP_SIZES,
    )


def _sizes(model: str, features: int, hidden: int, classes: int) -> list[int]:
    if model not in ("linear", "mlp"):
        raise ValueError(f"model={model!r} is not known: choose 'linear' or 'mlp'.")
    if hidden < 1:
        raise ValueError(f"hidden={hidden} must be at least 1.")
    return [features, *([hidden] if model == "mlp" else []), classes]
