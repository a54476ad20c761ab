"""The work of `decibel demo`: four methods clean corrupted labels over a ring whose nodes hold different digits."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

from .. import tasks
from ..core._optional import optional
from ..graphs import _families as graphs
from ..graphs._graph import Graph
from ..methods._dsoba import dsoba
from ..methods._method import Method
from ..methods._sparkle import sparkle
from ..results._result import Result
from ..solver._solve import solve
from ..solver._validate import SmallNodeWarning
from ..tasks import Task
from ..tasks.data import digits

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.gridspec import SubplotSpec
    from matplotlib.typing import RcKeyType

NODES = 10
STEPS = 1000
BATCH = 32
CORRUPTION, HETEROGENEITY = 0.4, 0.1

# Searched for every method alike: α in {30, 100, 300, 1000} times β = γ in {0.1, 0.2, 0.5, 1, 2} with θ = 0.2, by the
# mean accuracy of the nodes' models after 1,000 iterations on seeds 10, 11 and 12. The setting was chosen after a first
# search, at 30 % wrong labels and 2,000 iterations on two seeds, in which the average of D-SOBA's models was level with
# SPARKLE's (95.4 % against about 95.1 %) and only its nodes' own models were about two points behind.
SEARCH = (
    "for every method the best of the same 20, α of 30, 100, 300, 1000 and β = γ of 0.1, 0.2, 0.5, 1, 2, with θ = 0.2, "
    "by the accuracy of the nodes' models on three other seeds."
)
METHODS: dict[str, Method] = {
    "SPARKLE-ED": sparkle("ed", alpha=300.0, beta=1.0, gamma=1.0, theta=0.2, updates="simultaneous"),
    "SPARKLE-EXTRA": sparkle("extra", alpha=300.0, beta=0.5, gamma=0.5, theta=0.2, updates="simultaneous"),
    "SPARKLE-GT": sparkle("gt", alpha=1000.0, beta=1.0, gamma=1.0, theta=0.2, updates="simultaneous"),
    "D-SOBA": dsoba(alpha=300.0, beta=0.5, gamma=0.5, theta=0.2),
}
# SPARKLE-ED with a fixed x: every label is trusted equally.
NO_CLEANING = sparkle("ed", alpha=0.0, beta=1.0, gamma=1.0, theta=0.2, updates="simultaneous")

INK = "#22303c"
GREY = "#8b98a5"
CLEAN = "#2a9d8f"
WRONG = "#d1495b"
LINES = {
    "SPARKLE-ED": ("#1f4e79", "-"),
    "SPARKLE-EXTRA": ("#2a9d8f", "-"),
    "SPARKLE-GT": ("#e9a03b", (0, (4, 1.5))),
    "D-SOBA": ("#d1495b", "-"),
    "no cleaning": (GREY, (0, (1, 1.5))),
}


def run(out: Path, *, seed: int = 0, quick: bool = False, console: Console | None = None) -> dict[str, Result]:
    """Runs every method, prints a table and saves `demo.png` in the folder `out`."""
    with optional("scikit-learn and matplotlib", caller="decibel demo", extra="tasks,plot"):
        import matplotlib  # noqa: F401 - draws at the end
        import sklearn  # noqa: F401 - has the digits
    console = console or Console(highlight=False)
    task = tasks.label_cleaning("digits", NODES, corruption=CORRUPTION, heterogeneity=HETEROGENEITY, seed=seed)
    graph = graphs.ring(NODES)
    steps = STEPS // 10 if quick else STEPS
    console.print(_story(task, graph, steps))
    results = {}
    for name, method in {**METHODS, "no cleaning": NO_CLEANING}.items():
        compiling = console.status(f"{name}: compiling and running {steps:,} iterations")
        with compiling, warnings.catch_warnings():
            warnings.simplefilter("ignore", SmallNodeWarning)  # how unequal nodes are is part of the story
            results[name] = solve(
                task.problem,
                method,
                graph,
                steps=steps,
                batch_size=BATCH,
                seed=seed,
                eval_every=max(1, steps // 40),
                metrics=task.metrics,
                progress=False,
            )
        last = results[name].trace.last
        console.print(f"  [green]✓[/] {name:14} nodes' models classify {last['node_accuracy']:.1%} of unseen digits")
    console.print()
    console.print(_table(results))
    console.print(_closing(task, results))
    out.mkdir(parents=True, exist_ok=True)
    path = out / "demo.png"
    figure(task, graph, results).savefig(path, dpi=200)
    console.print(f"The figure is in [bold]{path}[/].", soft_wrap=True)
    return results


def _story(task: Task, graph: Graph, steps: int) -> str:
    samples, noise, assigned = (task.summary[key] for key in ("samples", "corruption", "partition"))
    return f"""
[bold]Cleaning labels together, without sharing data[/]

{NODES} nodes form a ring, and each communicates with its two neighbours only. They hold {samples["train"]:,} \
handwritten digits, of which {noise["wrong"]} ({noise["wrong"] / samples["train"]:.0%}) carry a wrong label; \
nobody knows which. For {samples["validation"]} more digits the labels can be trusted. Together the nodes learn how \
much to trust each label (upper level x), so that a linear classifier trained with that trust (lower level y) does \
well on the trusted digits. Models and weights are exchanged; no digit leaves its node.

[bold]Nodes differ:[/] each class is partitioned in Dirichlet({HETEROGENEITY}) shares, so a node holds \
{assigned["classes_per_node"]:.1f} of 10 classes on average, and {assigned["smallest_node"]} to \
{assigned["largest_node"]} digits. The ring mixes slowly (ρ = {graph.rho:.3f}). {steps:,} iterations with batches of \
{BATCH}.

[bold]Step sizes:[/] {SEARCH}
"""


def _table(results: dict[str, Result]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("\n", no_wrap=True)
    for heading in (
        "each node's\nmodel",
        "average\nmodel",
        "found\n",
        "trust:\nright",
        "\nwrong",
        "MB sent\nper node",
        "seconds\n",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    best = max(result.trace.last["node_accuracy"] for result in results.values())
    for name, result in results.items():
        last = result.trace.last
        cleaned = name in METHODS
        mark = "[bold green]" if last["node_accuracy"] == best else ""
        table.add_row(
            name,
            f"{mark}{last['node_accuracy']:.1%}",
            f"{last['test_accuracy']:.1%}",
            f"{last['found']:.0%}" if cleaned else "",
            f"{last['clean_weight']:.2f}",
            f"{last['corrupted_weight']:.2f}",
            f"{last['bytes'] / 1e6:.1f}",
            f"{last['seconds']:.1f}",
            style="" if cleaned else "dim",
        )
    return table


def _closing(task: Task, results: dict[str, Result]) -> str:
    ed, soba = (results[name].trace.last for name in ("SPARKLE-ED", "D-SOBA"))
    return f"""
[bold]model[/]: accuracy on {task.summary["samples"]["test"]} digits no node has seen. [bold]found[/]: the share of \
the wrong labels that is among the equally many trusted least. [bold]trust[/]: the mean weight of right and of wrong \
labels. [bold]seconds[/]: without compiling.

SPARKLE corrects every level for the differences between nodes. D-SOBA finds the wrong labels too \
({soba["found"]:.0%} against {ed["found"]:.0%} by SPARKLE-ED), but it only averages, so the models its nodes hold stay \
pulled towards their own digits: {soba["node_accuracy"]:.1%} against {ed["node_accuracy"]:.1%}. The average of \
D-SOBA's models, which no node holds, classifies {soba["test_accuracy"]:.1%} against {ed["test_accuracy"]:.1%}.
"""


def figure(task: Task, graph: Graph, results: dict[str, Result]) -> Figure:
    with optional("matplotlib", caller="decibel demo", extra="plot"):
        from matplotlib import rc_context
        from matplotlib.figure import Figure

    style: dict[RcKeyType, str | float | bool] = {
        "font.size": 9,
        "axes.titlesize": 10,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "axes.edgecolor": GREY,
        "axes.labelcolor": INK,
        "axes.titlecolor": INK,
        "xtick.color": GREY,
        "ytick.color": GREY,
        "xtick.labelcolor": INK,
        "ytick.labelcolor": INK,
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
    with rc_context(style):
        figure = Figure(figsize=(9, 6.6))  # the documentation shows it at 860 pixels, so that 9 points are 9 points
        left, right, apart = 0.055, 0.985, 0.3
        top = figure.add_gridspec(1, 3, left=left, right=right, top=0.83, bottom=0.525, wspace=apart)
        low = figure.add_gridspec(1, 3, left=left, right=right, top=0.395, bottom=0.075, wspace=apart)
        title = "Ten nodes on a ring clean their labels together"
        figure.text(left, 0.955, title, fontsize=14, weight="bold", color=INK)
        figure.text(left, 0.942, _caption(task), va="top", color="#5b6b79")
        _ring(figure.add_subplot(top[0]), task, graph)
        _curves(figure.add_subplot(top[1]), results, "step", 1, "iterations", "Accuracy of the nodes' models")
        _curves(
            figure.add_subplot(top[2]), results, "bytes", 1e-6, "megabytes sent per node", "The same, against traffic"
        )
        _partition(figure.add_subplot(low[0]), task)
        _trust(figure.add_subplot(low[1]), task, results["SPARKLE-ED"])
        _suspects(figure, low[2], task, results["SPARKLE-ED"])
    return figure


def _caption(task: Task) -> str:
    samples = task.summary["samples"]
    noise = task.summary["corruption"]
    return (
        f"{samples['train']:,} digits, {noise['wrong']} of them with a wrong label, partitioned by class in "
        f"Dirichlet({HETEROGENEITY}) shares.\n{samples['validation']} more with labels to trust. Linear classifier, "
        f"batches of {BATCH}, seed {task.summary['seed']}."
    )


def _ring(ax: Axes, task: Task, graph: Graph) -> None:
    """The graph, every node a pie of the classes it holds whose area is the number of its digits."""
    with optional("matplotlib", caller="decibel demo", extra="plot"):
        from matplotlib import colormaps
        from matplotlib.patches import Wedge

    assert task.partition is not None
    angle = 2 * np.pi * np.arange(graph.nodes) / graph.nodes
    places = np.stack([np.sin(angle), np.cos(angle)], axis=1)
    for i, j in graph.edges:
        ax.plot(*places[[i, j]].T, color="#c3ccd4", linewidth=1.6, zorder=1)
    counts = task.partition.counts
    colors = colormaps["tab10"](np.arange(10))
    for node, (place, held) in enumerate(zip(places, counts, strict=True)):
        radius = 0.27 * np.sqrt(held.sum() / counts.sum(1).max())
        turns = np.concatenate([[0], np.cumsum(held)]) / held.sum() * 360
        for label in np.flatnonzero(held):
            wedge = Wedge(tuple(place), radius, turns[label], turns[label + 1], color=colors[label], linewidth=0)
            ax.add_patch(wedge)
        right, up = place * (1.12 + radius)
        ax.text(right, up, str(node), ha="center", va="center", color="#5b6b79", fontsize=9)
    for label, color in enumerate(colors):
        right, up = 0.2 * (label % 5 - 2), 0.1 - 0.22 * (label // 5)
        ax.text(right, up, str(label), color=color, weight="bold", ha="center", va="center", fontsize=11)
    ax.set(xlim=(-1.75, 1.75), ylim=(-1.5, 1.38), aspect="equal", anchor="W")
    ax.set_title("Nodes, and the digits they hold")
    ax.set_axis_off()


def _curves(ax: Axes, results: dict[str, Result], against: str, scale: float, label: str, title: str) -> None:
    with optional("matplotlib", caller="decibel demo", extra="plot"):
        from matplotlib.ticker import PercentFormatter

    for name, result in results.items():
        trace = result.trace
        color, dashes = LINES[name]
        ax.plot(
            trace[against] * scale,
            trace["node_accuracy"],
            label=name,
            color=color,
            linestyle=dashes,
            linewidth=2,
            zorder=3 if name in METHODS else 2,
        )
    top = max(result.trace["node_accuracy"].max() for result in results.values())
    bottom = min(result.trace["node_accuracy"][-1] for result in results.values())
    ax.set_ylim(bottom - 1.15 * (top - bottom), top + 0.15 * (top - bottom))
    ax.set_xlim(left=0)
    ax.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    ax.set(xlabel=label, title=title)
    ax.grid(axis="y", color="#e6eaee", linewidth=0.8)
    ax.set_axisbelow(True)
    if against == "step":
        ax.legend(frameon=False, loc="lower right", labelcolor=INK)


def _partition(ax: Axes, task: Task) -> None:
    assert task.partition is not None
    task.partition.draw(ax)
    ax.set_title("Digits of each class")


def _trust(ax: Axes, task: Task, result: Result) -> None:
    """The learned weights of right and of wrong labels, as two histograms back to back."""
    weight = np.asarray(jax.nn.sigmoid(result.x))
    wrong = task.truth.corrupted
    bins = np.linspace(0, 1, 26)
    for mask, color, sign, words, height in (
        (~wrong, CLEAN, 1, "right labels", 0.93),
        (wrong, WRONG, -1, "wrong labels", 0.07),
    ):
        share = np.histogram(weight[mask], bins)[0] / max(mask.sum(), 1)
        ax.bar(bins[:-1], sign * share, width=np.diff(bins) * 0.9, align="edge", color=color, linewidth=0)
        text = f"{mask.sum()} {words}: mean {weight[mask].mean():.2f}"
        ax.text(0.5, height, text, transform=ax.transAxes, ha="center", va="center", color=color, weight="bold")
    reach = 1.25 * np.abs(ax.get_ylim()).max()
    ax.set(xlim=(0, 1), ylim=(-reach, reach), title="Trust that the nodes learned")
    ax.set_xlabel("trust σ(x) of a label, SPARKLE-ED")
    ax.axhline(0, color=GREY, linewidth=0.8)
    ax.set_yticks([])
    ax.spines["left"].set_visible(False)


def _suspects(figure: Figure, place: SubplotSpec, task: Task, result: Result) -> None:
    """The digits whose labels are trusted least, with the label they carried."""
    rows, columns = 3, 6
    least = np.argsort(np.asarray(result.x))[: rows * columns]
    images = digits().x_train[task.truth.origin[least]]
    frame = figure.add_subplot(place)
    frame.set_title("The labels trusted least")
    frame.set_axis_off()
    grid = place.subgridspec(rows, columns, wspace=0.15, hspace=0.42)
    for k, (e, image) in enumerate(zip(least, images, strict=True)):
        ax = figure.add_subplot(grid[k // columns, k % columns])
        ax.imshow(image, cmap="Greys", vmin=0, vmax=1)
        ax.set_xticks([])
        ax.set_yticks([])
        ax.spines[:].set_visible(False)
        wrong = bool(task.truth.corrupted[e])
        ax.set_xlabel(
            f"“{task.truth.given[e]}”" + ("" if wrong else " right"),
            color=WRONG if wrong else CLEAN,
            fontsize=9,
            labelpad=1.5,
        )
