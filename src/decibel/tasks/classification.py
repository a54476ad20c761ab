"""Classification data as tasks take them: found by name, with a test part, scaled, assigned to nodes."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import jax.numpy as jnp
import numpy as np
from jax import Array

from . import data, partition

FEWEST = 10  # samples of a node, where the Dirichlet shares would leave it fewer
WORDS = {"mild": 1.0, "severe": 0.1}  # α of the Dirichlet shares
Heterogeneity = float | Literal["mild", "severe"] | None


def flat(images: np.ndarray) -> np.ndarray:
    """(samples, features) from (samples, ...)."""
    return images.reshape(len(images), int(np.prod(images.shape[1:])))


def find(
    dataset: str | data.Dataset, *, tested: bool = False, test: float | None = None, seed: int = 0
) -> data.Dataset:
    """The dataset with flat inputs.

    Args:
        dataset: itself or its name.
        tested: whether it must have a test part.
        test: the share drawn from the training part where no test part is published.
        seed: of that draw.
    """
    source = data.load(dataset) if isinstance(dataset, str) else dataset
    source = replace(source, x_train=flat(source.x_train), x_test=flat(source.x_test))
    if tested and not len(source.y_test):
        raise ValueError(f"dataset={source.name!r} has no test part to judge models by: choose one that has.")
    if test is None or len(source.y_test):
        return source
    if not 0 < test < 1:
        raise ValueError(f"test={test} must be a share between 0 and 1.")
    order = np.random.default_rng(seed).permutation(len(source.y_train))
    train, test_part = np.split(order, [round(len(order) * (1 - test))])
    return replace(
        source,
        x_train=source.x_train[train],
        y_train=source.y_train[train],
        x_test=source.x_train[test_part],
        y_test=source.y_train[test_part],
    )


def standardized(source: data.Dataset) -> data.Dataset:
    """Every feature with mean 0 and deviation 1 over the training part; one that never varies becomes 0."""
    mean, deviation = source.x_train.mean(0), source.x_train.std(0)
    scale = np.divide(1, deviation, out=np.zeros_like(deviation), where=deviation > 0)
    return replace(source, x_train=(source.x_train - mean) * scale, x_test=(source.x_test - mean) * scale)


def validate_binary(source: data.Dataset) -> None:
    if source.classes != 2:
        raise ValueError(f"dataset={source.name!r} has {source.classes} classes: choose one that has two.")


def alpha_of(heterogeneity: Heterogeneity) -> float | None:
    """α of the Dirichlet shares; None partitions evenly."""
    if not isinstance(heterogeneity, str):
        return heterogeneity
    if heterogeneity not in WORDS:
        raise ValueError(f"heterogeneity={heterogeneity!r} is not known: choose 'mild', 'severe', a number or None.")
    return WORDS[heterogeneity]


def split_over_nodes(
    labels: np.ndarray, nodes: int, heterogeneity: Heterogeneity, validation: float, seed: int
) -> partition.Split:
    """Training and validation samples of every node."""
    if not 0 < validation < 1:
        raise ValueError(f"validation={validation} must be a share between 0 and 1.")
    assigned = spread(labels, nodes, heterogeneity, seed)
    return assigned.split(train=1 - validation, validation=validation, test=0.0, seed=seed)


def samples_by_node(source: data.Dataset, parts: partition.Partition) -> list[tuple[np.ndarray, np.ndarray]]:
    """Inputs and labels of every node, from the training part."""
    return [(source.x_train[part], source.y_train[part]) for part in parts.indices]


def held_out(source: data.Dataset, dtype: np.dtype) -> tuple[Array, Array]:
    """Inputs and labels of the test part."""
    return jnp.asarray(source.x_test, dtype), jnp.asarray(source.y_test)


def sample_counts(source: data.Dataset, split: partition.Split) -> dict[str, int]:
    """For a task's summary."""
    return {
        "train": int(split.train.sizes.sum()),
        "validation": int(split.validation.sizes.sum()),
        "test": len(source.y_test),
    }


def spread(labels: np.ndarray, nodes: int, heterogeneity: Heterogeneity, seed: int) -> partition.Partition:
    """Samples of every node, at least FEWEST (2 where there are few) of them."""
    alpha = alpha_of(heterogeneity)
    if alpha is None:
        return partition.iid(labels, nodes, seed=seed)
    fewest = max(2, min(FEWEST, len(labels) // max(nodes, 1)))
    return partition.dirichlet(labels, nodes, alpha=alpha, seed=seed, minimum=fewest)
