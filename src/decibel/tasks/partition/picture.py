"""The class-by-node picture of a partition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import numpy as np

from ...core._optional import optional

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DISCS = 40  # nodes; beyond, discs would be dots


def draw_counts(
    counts: np.ndarray, title: str, ax: Axes | None = None, class_names: Sequence[str] | None = None
) -> Figure:
    """`counts` (nodes, classes) as discs whose area is the count, or as shades where nodes are many."""
    nodes, classes = counts.shape
    if class_names is not None and len(class_names) < classes:
        raise ValueError(f"class_names has {len(class_names)} names for {classes} classes: name them all.")
    ax = _new_axes(nodes, classes) if ax is None else ax
    if nodes <= DISCS:
        _discs(ax, counts)
    else:
        shades = ax.pcolormesh(counts.T, cmap="Blues", vmin=0)
        ax.figure.colorbar(shades, ax=ax, label="samples")
        ax.set_yticks(np.arange(classes) + 0.5, [str(label) for label in range(classes)])
        ax.set_xlabel("node")
    if class_names is not None:
        ax.set_yticks(ax.get_yticks(), list(class_names)[:classes])
    ax.set_ylabel("class")
    ax.set_title(title, fontsize="medium", loc="left")
    return cast("Figure", ax.figure)


def _new_axes(nodes: int, classes: int) -> Axes:
    with optional("matplotlib", caller="partition.draw", extra="plot"):
        from ...core._figure import Figure

    size = (min(2.5 + 0.42 * nodes, 14), min(1.6 + 0.36 * classes, 12))
    return Figure(figsize=(max(size[0], 6.5), size[1]), layout="constrained").subplots()


def _discs(ax: Axes, counts: np.ndarray) -> None:
    nodes, classes = counts.shape
    node, label = np.nonzero(counts)
    share = counts[node, label] / max(counts.max(), 1)
    ax.set(xlim=(-0.6, nodes - 0.4), ylim=(-0.6, classes - 0.4))
    ax.set_xticks(range(nodes))
    ax.set_yticks(range(classes))
    ax.grid(color="0.93", zorder=0)
    ax.spines[["top", "right"]].set_visible(False)
    # The largest disc just fits its cell; markers are sized in square points.
    box = np.array(ax.bbox.size) * 72 / ax.figure.dpi
    cell = min(box[0] / nodes, box[1] / classes)
    ax.scatter(node, label, s=(0.95 * cell) ** 2 * share, color="tab:blue", linewidths=0, zorder=2)
    ax.set_xlabel(f"node (largest disc: {counts.max():,} samples)")
