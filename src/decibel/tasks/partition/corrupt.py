"""Label corruption, applied once and recorded."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Corruption:
    """Labels after corruption.

    Attributes:
        labels: the corrupted labels.
        mask: True where a label differs from the true one.
        probability: of a replacement.
        classes: the number of classes.
        seed: of the corruption.
        may_keep: whether a replacement may equal the true label.
    """

    labels: np.ndarray
    mask: np.ndarray  # True where the label differs from the true one
    probability: float
    classes: int
    seed: int
    may_keep: bool  # whether a random class could equal the true one

    @property
    def rate(self) -> float:
        """The share of labels that are wrong."""
        return float(self.mask.mean())


def corrupt_labels(
    labels: np.ndarray, probability: float, classes: int, seed: int = 0, *, may_keep: bool = False
) -> Corruption:
    """Replaces each label, independently with the same probability, by a random class.

    Args:
        labels: class of each sample.
        probability: of a replacement.
        classes: the number of classes.
        seed: of the corruption.
        may_keep: draw among all classes, so that about probability × (1 − 1/classes) of the labels become wrong;
            otherwise draw among the other classes, so that about `probability` of them do.
    """
    labels = np.asarray(labels)
    if not 0 <= probability <= 1:
        raise ValueError(f"probability={probability} must lie in [0, 1].")
    if classes < 2:
        raise ValueError(f"classes={classes} must be at least 2.")
    if labels.dtype.kind not in "iu" or (labels.size and not 0 <= labels.min() <= labels.max() < classes):
        raise ValueError(f"labels must be integers from 0 to {classes - 1}: correct them or classes.")
    rng = np.random.default_rng(seed)
    hit = rng.random(labels.shape) < probability
    step = rng.integers(0 if may_keep else 1, classes, labels.shape)  # a walk around the circle of classes
    noisy = np.where(hit, (labels + step) % classes, labels).astype(labels.dtype)
    return Corruption(noisy, noisy != labels, probability, classes, seed, may_keep)
