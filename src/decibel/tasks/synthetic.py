"""What synthetic tasks share: the parameter of heterogeneity, and unequal sample counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

WORDS = {"mild": 0.1, "severe": 1.0}


def spread_of(heterogeneity: float | Literal["mild", "severe"]) -> float:
    """How far nodes differ: 0 not at all, and in proportion."""
    if isinstance(heterogeneity, str):
        if heterogeneity not in WORDS:
            raise ValueError(f"heterogeneity={heterogeneity!r} is not known: choose 'mild', 'severe' or a number.")
        return WORDS[heterogeneity]
    if not 0 <= heterogeneity < np.inf:
        raise ValueError(f"heterogeneity={heterogeneity} must be a number that is not negative.")
    return float(heterogeneity)


def deviations(rng: np.random.Generator, nodes: int, shape: tuple[int, ...]) -> np.ndarray:
    """(nodes, ...) standard normal, less their mean over nodes."""
    drawn = rng.normal(size=(nodes, *shape))
    return drawn - drawn.mean(0)


def counts_of(samples: int | Sequence[int], nodes: int, name: str = "samples") -> list[int]:
    """How many samples each node has."""
    if nodes < 1:
        raise ValueError(f"nodes={nodes} must be at least 1.")
    counts = [samples] * nodes if isinstance(samples, int) else list(samples)
    if len(counts) != nodes or min(counts) < 1:
        raise ValueError(f"{name}={samples} must be a positive number, or one for each of {nodes} nodes.")
    return counts
