"""Logistic regression that learns how strongly to regularize every feature."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
import optax
from jax import Array

from ..problem._problem import Problem
from ..results.metrics import Snapshot
from . import data
from .classification import (
    Heterogeneity,
    alpha_of,
    find,
    held_out,
    sample_counts,
    samples_by_node,
    split_over_nodes,
    standardized,
)
from .evaluation import Accuracy, Losses, NodeAccuracy
from .task import Task

STEP_SIZES = {"alpha": 10.0, "beta": 0.5, "gamma": 0.5}

Batch = tuple[Array, Array]  # inputs (samples, features), labels (samples,)
SCALED = ("australian",)  # features of very different size, standardized before use


def logits(y: Array, inputs: Array) -> Array:
    return inputs @ y


def loss(x: Array, y: Array, batch: Batch) -> Array:
    """f: mean cross entropy."""
    inputs, labels = batch
    return optax.softmax_cross_entropy_with_integer_labels(logits(y, inputs), labels).mean()


def regularized(x: Array, y: Array, batch: Batch) -> Array:
    """g: mean cross entropy + 1/(cp) Σ_c Σ_j e^{x_j} y_jc²."""
    return loss(x, y, batch) + (jnp.exp(x)[:, None] * jnp.square(y)).mean()


class Selection(eqx.Module):
    """`noise_strength`, `informative_strength`: the mean of x over features that are noise and over those that are not.
    Noise is worth the stronger regularization."""

    informative: int

    def __call__(self, snapshot: Snapshot) -> dict[str, Array]:
        x = snapshot.x
        return {"informative_strength": x[: self.informative].mean(), "noise_strength": x[self.informative :].mean()}


def logistic_regression(
    nodes: int = 20,
    *,
    dataset: str | data.Dataset = "synthetic",
    heterogeneity: Heterogeneity = "mild",
    samples: int = 4_000,
    features: int = 50,
    informative: int = 10,
    classes: int = 4,
    validation: float = 0.5,
    strength: float = 0.0,
    seed: int = 0,
) -> Task:
    """Tunes the regularization of each feature of a linear classifier (D-SOBA's experiment 1).

    Nodes agree on a classifier y and on the logarithm x_j of the regularization of each feature j, with c classes and p
    features:

        f_i(x, y) = mean cross entropy of inputsᵀ y on node i's validation samples
        g_i(x, y) = mean cross entropy on its training samples + 1/(cp) Σ_c Σ_j e^{x_j} y_jc²

    Differs from the paper, whose slides do not state how heterogeneous data are made.

    Args:
        nodes: the number of nodes.
        dataset: `"synthetic"`; a name that `decibel.tasks.data.load` knows (`"digits"`, `"a9a"`, `"australian"`); or a
            `Dataset`. Australian's features are standardized, and a fifth of it is kept for testing.
        heterogeneity: α of the Dirichlet shares by class, `"mild"` (1), `"severe"` (0.1), or None: evenly.
        samples: of the synthetic data; a quarter of them are for testing.
        features: of the synthetic data.
        informative: how many of the features, the first ones, determine the class.
        classes: of the synthetic data.
        validation: the share of a node's samples used for f.
        strength: the initial x_j.
        seed: of the synthetic data, the partition and the split.

    References:
        Kong et al., Decentralized Bilevel Optimization over Graphs, 2024.
    """
    synthetic = isinstance(dataset, str) and dataset == "synthetic"
    if synthetic:
        source = data.synthetic(samples, features, informative, classes, seed=seed)
    else:
        source = find(dataset, test=0.2, seed=seed)
    if source.name in SCALED:
        source = standardized(source)
    split = split_over_nodes(source.y_train, nodes, heterogeneity, validation, seed)
    size = source.x_train.shape[1]
    problem = Problem(
        loss,
        regularized,
        upper_data=samples_by_node(source, split.validation),
        lower_data=samples_by_node(source, split.train),
        x0=jnp.full(size, strength, jnp.result_type(float)),
        y0=jnp.zeros((size, source.classes)),
    )
    test = held_out(source, problem.dtype)
    summary = {
        "dataset": source.name,
        "features": size,
        "classes": source.classes,
        "samples": sample_counts(source, split),
        "heterogeneity": {"dirichlet": alpha_of(heterogeneity)},
        "partition": split.train.describe(),
        "convention": "no intercept; the regularizer is a mean over features and classes",
        "seed": seed,
    }
    metrics = Losses(loss), Accuracy(*test, logits), NodeAccuracy(*test, logits)
    if synthetic:
        metrics = (*metrics, Selection(informative))
    return Task(
        problem,
        metrics,
        "logistic-regression",
        summary,
        split.train,
        step_sizes=STEP_SIZES,
    )
