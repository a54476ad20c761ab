"""Graphs that draw themselves, and where their nodes go."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, cast

import networkx as nx
import numpy as np
from jaxtyping import Float, Int

from ..core._optional import optional

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NODE_COLOR = "#1f4e79"
EDGE_COLOR = "#6b7f93"
SPRING_LIMIT = 800
ARROW_LIMIT = 400

Places: TypeAlias = Float[np.ndarray, "edges 2"]
Strengths: TypeAlias = Float[np.ndarray, " edges"]


class Sketch(NamedTuple):
    """What a picture of a graph needs: links as pairs of sender and receiver, and their weights."""

    nodes: int
    edges: Int[np.ndarray, "edges 2"]
    weights: Float[np.ndarray, " edges"]
    symmetric: bool
    circulant: bool
    positions: Float[np.ndarray, "nodes 2"] | None
    title: str


def circle(nodes: int) -> Float[np.ndarray, "nodes 2"]:
    """Node 0 on top, then clockwise."""
    angle = 2 * np.pi * np.arange(nodes) / nodes
    return np.stack([np.sin(angle), np.cos(angle)], axis=1)


def star(nodes: int) -> Float[np.ndarray, "nodes 2"]:
    """Node 0 in the middle, the others around it."""
    return np.concatenate([np.zeros((1, 2)), circle(nodes - 1)]) if nodes > 1 else np.zeros((1, 2))


def lattice(rows: int, columns: int) -> Float[np.ndarray, "nodes 2"]:
    """Row by row, the first row on top."""
    row, column = np.divmod(np.arange(rows * columns), columns)
    return np.stack([column, -row], axis=1).astype(float)


def doughnut(rows: int, columns: int) -> Float[np.ndarray, "nodes 2"]:
    """A torus seen from above at an angle: the longer side runs around the hole."""
    row, column = np.divmod(np.arange(rows * columns), columns)
    around, through = row / rows, column / columns
    if columns > rows:
        around, through = through, around
    phi, theta = 2 * np.pi * (around + 0.03), 2 * np.pi * (through + 0.07)
    radius = 1.0 + 0.45 * np.cos(theta)
    tilt = np.deg2rad(40)
    x = radius * np.sin(phi)
    y = radius * np.cos(phi)
    z = 0.45 * np.sin(theta)
    return np.stack([x, y * np.cos(tilt) + z * np.sin(tilt)], axis=1)


def cube(dimension: int) -> Float[np.ndarray, "nodes 2"]:
    """Each bit moves a node along its own direction; unequal lengths keep nodes from coinciding."""
    bits = (np.arange(2**dimension)[:, None] >> np.arange(dimension)) & 1
    angle = np.pi * (np.arange(dimension) + 0.5) / max(dimension, 1)
    length = 1.0 + (0.0 if dimension in (2, 4) else 0.24) * np.arange(dimension)
    return (bits - 0.5) @ (length[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1))


def layout(graphs: Sequence[Sketch]) -> Float[np.ndarray, "nodes 2"]:
    """One place per node for graphs drawn together: given, a circle for circulants, or by springs."""
    for graph in graphs:
        if graph.positions is not None:
            return np.asarray(graph.positions)
    nodes = graphs[0].nodes
    if nodes > SPRING_LIMIT or all(graph.circulant for graph in graphs):
        return circle(nodes)
    union = nx.Graph()
    union.add_nodes_from(range(nodes))
    for graph in graphs:
        union.add_edges_from(map(tuple, graph.edges.tolist()))
    if nodes <= 100 and nx.is_connected(union):
        places: dict[int, np.ndarray] = nx.kamada_kawai_layout(union)
    else:
        places = nx.spring_layout(union, seed=0)
    return np.array([places[node] for node in range(nodes)])


def draw_graph(graph: Sketch, ax: Axes | None = None) -> Figure:
    if ax is None:
        with optional("matplotlib", caller="graph.draw", extra="plot"):
            from ..core._figure import Figure

        ax = Figure(figsize=(4.2, 4.4), layout="constrained").add_subplot()
    _paint(ax, graph, layout([graph]))
    ax.set_title(graph.title, fontsize=10, color="#222222")
    return _figure_of(ax)


def draw_sequence(phases: Sequence[Sketch], title: str, axes: Sequence[Axes] | None = None) -> Figure:
    if axes is not None:
        axes = list(np.ravel(np.asarray(axes, dtype=object)))
        if len(axes) != len(phases):
            raise ValueError(f"ax holds {len(axes)} Axes for {len(phases)} phases; give one Axes per phase.")
        figure = _figure_of(axes[0])
    else:
        with optional("matplotlib", caller="graph.draw", extra="plot"):
            from ..core._figure import Figure

        columns = min(len(phases), 5)
        rows = math.ceil(len(phases) / columns)
        figure = Figure(figsize=(max(2.7 * columns, 4.2), 2.9 * rows + 0.4), layout="constrained")
        figure.suptitle(title, fontsize=10, color="#222222")
        axes = [figure.add_subplot(rows, columns, k + 1) for k in range(len(phases))]
    places = layout(phases)
    for step, (ax, phase) in enumerate(zip(axes, phases, strict=True)):
        _paint(ax, phase, places)
        ax.set_title(f"step {step}", fontsize=9, color="#555555")
    return figure


def _paint(ax: Axes, graph: Sketch, places: Float[np.ndarray, "nodes 2"]) -> None:
    size = float(np.clip(900 / graph.nodes, 4, 60))
    if len(graph.edges):
        sender, receiver = graph.edges.T
        weight = np.abs(graph.weights)
        # Many edges on top of each other turn black unless each is drawn fainter.
        crowd = float(np.clip((6 * graph.nodes / len(weight)) ** 0.5, 0.25, 1.0))
        strength = weight / weight.max()
        widths = (0.4 + 1.0 * strength) * crowd
        alphas = (0.25 + 0.65 * strength) * crowd
        if graph.symmetric or len(weight) > ARROW_LIMIT:
            _lines(ax, places[sender], places[receiver], widths, alphas)
        else:
            _arrows(ax, places[sender], places[receiver], widths, alphas, size)
    ax.scatter(*places.T, s=size, color=NODE_COLOR, edgecolors="white", linewidths=0.6, zorder=3)
    ax.set_aspect("equal")
    ax.margins(0.08)
    ax.set_axis_off()


def _lines(ax: Axes, start: Places, end: Places, widths: Strengths, alphas: Strengths) -> None:
    with optional("matplotlib", caller="graph.draw", extra="plot"):
        from matplotlib.collections import LineCollection
        from matplotlib.colors import to_rgba_array

    colors = to_rgba_array(EDGE_COLOR, alphas)
    segments = cast("Sequence[np.ndarray]", np.stack([start, end], axis=1))
    ax.add_collection(LineCollection(segments, linewidths=widths, colors=colors, zorder=1))


def _arrows(ax: Axes, start: Places, end: Places, widths: Strengths, alphas: Strengths, size: float) -> None:
    with optional("matplotlib", caller="graph.draw", extra="plot"):
        from matplotlib.patches import FancyArrowPatch

    gap = size**0.5 / 2 + 1
    for tail, head, width, alpha in zip(start, end, widths, alphas, strict=True):
        # Bent, so that the two directions of a pair stay apart.
        ax.add_patch(
            FancyArrowPatch(
                tuple(tail),
                tuple(head),
                arrowstyle="-|>",
                connectionstyle="arc3,rad=0.08",
                mutation_scale=6,
                shrinkA=gap,
                shrinkB=gap,
                linewidth=0.8 * width,
                color=EDGE_COLOR,
                alpha=alpha,
                zorder=1,
            )
        )


def _figure_of(ax: Axes) -> Figure:
    return cast("Figure", ax.get_figure(root=True))
