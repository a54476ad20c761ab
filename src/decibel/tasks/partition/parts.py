"""What a partitioner returns: which samples each node holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypedDict

import numpy as np

from ...core._json import JSON

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class Facts(TypedDict):
    """What a report says of a partition."""

    name: str
    seed: int
    settings: dict[str, JSON]
    nodes: int
    samples: int
    left_out: int
    smallest_node: int
    largest_node: int
    classes_per_node: float
    skew: float


@dataclass(frozen=True, eq=False)
class Partition:
    """Which samples each node holds.

    Attributes:
        indices: a sorted array of sample indices per node; they are disjoint.
        labels: of all samples, assigned or not.
        name: the partitioner.
        seed: of the partitioner.
        settings: of the partitioner.
    """

    indices: tuple[np.ndarray, ...]  # one sorted array per node
    labels: np.ndarray  # of all samples, assigned or not
    name: str
    seed: int
    settings: Mapping[str, JSON] = field(default_factory=dict[str, JSON])

    def __post_init__(self) -> None:
        assigned = np.concatenate(self.indices)
        if len(np.unique(assigned)) != len(assigned):
            raise ValueError("indices has a sample that is assigned twice: parts must be disjoint.")

    @property
    def nodes(self) -> int:
        """The number of nodes."""
        return len(self.indices)

    @property
    def sizes(self) -> np.ndarray:
        """(nodes,) samples of each node."""
        return np.array([len(part) for part in self.indices])

    @property
    def counts(self) -> np.ndarray:
        """(nodes, classes) samples of each class at each node."""
        classes = int(self.labels.max()) + 1
        return np.array([np.bincount(self.labels[part], minlength=classes) for part in self.indices])

    @property
    def skew(self) -> float:
        """The mean total variation distance of a node's label distribution from the overall one: from 0 (iid) to 1."""
        counts = self.counts
        overall = counts.sum(0) / max(counts.sum(), 1)
        shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
        return float(np.abs(shares - overall).sum(1).mean() / 2)

    @property
    def title(self) -> str:
        """The partitioner, its settings and its seed in a few words."""
        settings = "".join(f", {key} {value}" for key, value in self.settings.items())
        return f"{self.name}{settings}, seed {self.seed}"

    def describe(self) -> Facts:
        """Sizes, settings and skew in plain types."""
        sizes, present = self.sizes, (self.counts > 0).sum(1)
        return {
            "name": self.name,
            "seed": self.seed,
            "settings": dict(self.settings),
            "nodes": self.nodes,
            "samples": int(sizes.sum()),
            "left_out": int(len(self.labels) - sizes.sum()),
            "smallest_node": int(sizes.min()),
            "largest_node": int(sizes.max()),
            "classes_per_node": float(present.mean()),
            "skew": self.skew,
        }

    def summary(self) -> str:
        """A summary in two lines of text."""
        facts = self.describe()
        return (
            f"{self.title}: {facts['samples']} samples on {self.nodes} nodes"
            f" ({facts['left_out']} left out)\n"
            f"{facts['smallest_node']} to {facts['largest_node']} samples a node, "
            f"{facts['classes_per_node']:.1f} classes a node on average, skew {facts['skew']:.2f}"
        )

    def split(self, *, train: float = 0.8, validation: float = 0.1, test: float = 0.1, seed: int = 0) -> Split:
        """Splits each node's samples at random into training, validation and test parts.

        Args:
            train: the share of the training part; the three shares sum to one.
            validation: the share of the validation part.
            test: the share of the test part.
            seed: of the shuffle.

        Returns:
            Three partitions; no part with a positive share is empty.
        """
        shares = {"train": train, "validation": validation, "test": test}
        if min(shares.values()) < 0 or abs(sum(shares.values()) - 1) > 1e-9:
            raise ValueError(f"train={train}, validation={validation}, test={test} must be shares that sum to 1.")
        cuts = [
            _cut(np.random.default_rng([seed, node]).permutation(part), list(shares.values()), node)
            for node, part in enumerate(self.indices)
        ]
        return Split(
            *(
                replace(
                    self,
                    indices=pieces,
                    name=f"{self.name}/{part}",
                    settings={**self.settings, "split_seed": seed, "share": shares[part]},
                )
                for part, pieces in zip(shares, zip(*cuts, strict=True), strict=True)
            )
        )

    def draw(self, ax: Axes | None = None, *, class_names: Sequence[str] | None = None) -> Figure:
        """Draws samples by class and node, as discs whose area is the number of samples.

        Args:
            ax: where to draw; None creates a figure.
            class_names: labels of the classes.

        Returns:
            The matplotlib figure.
        """
        from .picture import draw_counts

        return draw_counts(self.counts, self.title, ax, class_names)


@dataclass(frozen=True, eq=False)
class Split:
    """Three disjoint partitions over the same nodes.

    Attributes:
        train: the training part.
        validation: the validation part.
        test: the test part.
    """

    train: Partition
    validation: Partition
    test: Partition


def _cut(samples: np.ndarray, shares: list[float], node: int) -> list[np.ndarray]:
    positive = np.array(shares) > 0
    if len(samples) < positive.sum():
        raise ValueError(
            f"node {node} holds {len(samples)} samples, too few for {positive.sum()} parts: "
            "raise the partition's minimum or ask for fewer parts."
        )
    sizes = np.diff(np.round(np.cumsum([0.0, *shares]) * len(samples))).astype(int)
    while (sizes[positive] == 0).any():
        sizes[np.argmax(sizes)] -= 1
        sizes[np.flatnonzero(positive & (sizes == 0))[0]] += 1
    return [np.sort(piece) for piece in np.split(samples, np.cumsum(sizes)[:-1])]


def check_labels(labels: np.ndarray, nodes: int, minimum: int = 1) -> np.ndarray:
    """The labels as int64, once they are class numbers and enough for the nodes."""
    labels = np.asarray(labels)
    if labels.ndim != 1 or labels.dtype.kind not in "iu" or (labels.size and labels.min() < 0):
        raise ValueError(f"labels must be one row of integers from 0, not {labels.dtype} of shape {labels.shape}.")
    if nodes < 1 or minimum < 1:
        raise ValueError(f"nodes={nodes} and the minimum per node, {minimum}, must be at least 1.")
    if len(labels) < nodes * minimum:
        raise ValueError(
            f"nodes={nodes} with at least {minimum} samples each need more than {len(labels)}: ask for fewer nodes."
        )
    return labels.astype(np.int64)


def make_partition(
    parts: Sequence[np.ndarray], labels: np.ndarray, name: str, seed: int, **settings: JSON
) -> Partition:
    return Partition(tuple(np.sort(part) for part in parts), labels, name, seed, settings)
