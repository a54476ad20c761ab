"""Label skew: a fixed fraction of each node's samples has the node's own label."""

from __future__ import annotations

import numpy as np

from .parts import Partition, check_labels, make_partition


def label_skew(
    labels: np.ndarray, nodes: int, *, fraction: float, per_node: int | None = None, seed: int = 0
) -> Partition:
    """A share of node i's samples has label i mod classes; the rest is drawn evenly from the other labels.

    Args:
        labels: class of each sample.
        nodes: the number of nodes.
        fraction: the share of a node's own label.
        per_node: samples per node; None is as many as the labels allow. Samples beyond that are left out.
        seed: of the assignment.
    """
    if not 0 <= fraction <= 1:
        raise ValueError(f"fraction={fraction} must lie in [0, 1].")
    labels = check_labels(labels, nodes)
    counts = np.bincount(labels)
    homes = np.arange(nodes) % len(counts)  # the own label of each node
    largest = _largest(counts, homes, fraction)
    if largest == 0:
        raise ValueError(f"fraction={fraction} on {nodes} nodes needs more samples of a label: lower one of the two.")
    size = largest if per_node is None else per_node
    if not 1 <= size <= largest:
        raise ValueError(
            f"per_node={per_node} is not possible with fraction={fraction} on {nodes} nodes: "
            f"the labels allow 1 to {largest} samples a node."
        )
    own_count = int(_own(fraction, np.array(size)))
    held = _assign(labels, homes, own_count, size - own_count, np.random.default_rng(seed))
    return make_partition(held, labels, "label_skew", seed, fraction=fraction, per_node=size)


def _own(fraction: float, size: np.ndarray) -> np.ndarray:
    return np.floor(fraction * size + 0.5).astype(int)


def _largest(counts: np.ndarray, homes: np.ndarray, fraction: float) -> int:
    """The largest node size for which own and other samples suffice (Hall's condition), or 0."""
    residents = np.bincount(homes, minlength=len(counts))
    size = np.arange(1, counts.sum() // len(homes) + 1)[:, None]  # (sizes, 1) against (classes,)
    own_count = _own(fraction, size)
    remaining = counts - residents * own_count  # (sizes, classes)
    pool = remaining.sum(1, keepdims=True)
    others = residents * (size - own_count) <= pool - remaining
    fits = (remaining >= 0) & others & ((size - own_count) * len(homes) <= pool)
    return int(size[fits.all(1)].max(initial=0))


def _assign(
    labels: np.ndarray, homes: np.ndarray, own_count: int, other: int, rng: np.random.Generator
) -> list[np.ndarray]:
    order = rng.permutation(len(labels))
    held = []
    for node, home in enumerate(homes):
        turn = np.count_nonzero(homes[:node] == home)
        held.append(order[labels[order] == home][turn * own_count : (turn + 1) * own_count])
    pool = rng.permutation(np.setdiff1d(order, np.concatenate(held)))
    taker = np.full(len(pool), -1)  # which node a pooled sample goes to; -1: left out
    taker[: len(homes) * other] = np.repeat(np.arange(len(homes)), other)
    pool = _send_abroad(pool, labels, np.where(taker < 0, -1, homes[taker]), rng)
    return [np.concatenate([rows, pool[taker == node]]) for node, rows in enumerate(held)]


def _send_abroad(pool: np.ndarray, labels: np.ndarray, home: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Swap places until no sample lies where its label is at home.

    A misplaced sample of label c is swapped with one of another label in a place not of c, which misplaces
    neither. By Hall's condition there are as many of these as are needed.
    """
    pool = pool.copy()
    for label in np.unique(home[home >= 0]):
        of_class = labels[pool] == label
        misplaced = np.flatnonzero(of_class & (home == label))
        partners = np.flatnonzero(~of_class & (home != label))
        chosen = rng.choice(partners, len(misplaced), replace=False)
        pool[misplaced], pool[chosen] = pool[chosen], pool[misplaced]
    return pool
