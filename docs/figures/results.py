"""Draws results_*.svg from the traces in studies/results.

python docs/figures/results.py
"""

from __future__ import annotations

import numpy as np
from common import STUDIES, new_figure, save
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from decibel.graphs import adjusted_ring
from decibel_studies import find
from decibel_studies.experiments.dsoba_speedup import NODES, OURS, SINGLE, transients
from decibel_studies.judging.results import Results, Runs
from decibel_studies.testbed.reproduce import load

COLOURS = tuple(f"C{place}" for place in range(6))


def results(name: str) -> Results:
    study = find(name)
    runs = load(study, STUDIES).runs
    return Results(study.setup("full"), {(run.case, run.label): run for run in runs})


def curve(ax: Axes, runs: Runs, column: str, against: str, colour: str, style: str = "-", label: str = "") -> None:
    """The geometric mean over seeds, evened out over a few rows, and the middle half of them."""
    cost = np.asarray(runs.traces[0][against], float)[1:]
    logs = np.log(np.stack([np.asarray(trace[column], float)[1 : len(cost) + 1] for trace in runs.traces]))
    width = max(1, len(cost) // 25)
    mean = np.ones(width)
    smooth = np.stack([np.convolve(row, mean, "same") / np.convolve(np.ones_like(row), mean, "same") for row in logs])
    low, high = np.exp(np.quantile(smooth, (0.25, 0.75), axis=0))
    ax.fill_between(cost, low, high, color=colour, alpha=0.15, linewidth=0)
    ax.plot(cost, np.exp(smooth.mean(0)), color=colour, linestyle=style, label=label or runs.label)


def speedup(figure: Figure) -> None:
    found = results("dsoba/speedup")
    left, right = figure.subplots(1, 2)
    for colour, nodes in zip(COLOURS, found.setup.nodes, strict=False):
        curve(left, found[NODES, f"{nodes} nodes"], "error", "step", colour)
    left.set(xscale="log", yscale="log", xlabel="iteration", ylabel="‖x̄ − x*‖²", title="More nodes, complete graph")
    left.set_xlim(left=found.setup.steps / found.setup.rows)
    left.legend(loc="upper left", bbox_to_anchor=(0, -0.2))
    for colour, name in zip(COLOURS, (OURS, SINGLE, *found.setup.others), strict=False):
        times = transients(found, name)
        reach = np.array([1 / adjusted_ring(found.setup.ring, weight).spectral_gap for weight in times])
        each = np.stack(list(times.values()))  # (weights, seeds)
        right.plot(np.repeat(reach[:, None], each.shape[1], 1), each, ".", color=colour, alpha=0.3)
        slope = np.polyfit(np.log(reach), np.log(each), 1)[0].mean()  # as C10 and C10b judge it: group by group
        right.plot(reach, np.median(each, axis=1), "o-", color=colour, label=f"{name}: slope {slope:.1f}")
    ticks = sorted({*found.setup.weights, *found.setup.ed_weights, *found.setup.gt_weights}, reverse=True)
    reach = [1 / adjusted_ring(found.setup.ring, weight).spectral_gap for weight in ticks]
    right.set(xscale="log", yscale="log", xlabel="1/(1−ρ) of the ring", title=f"Weaker links, {found.setup.ring} nodes")
    right.set_ylabel("steps until as good as\nthe complete graph, within 2×")
    right.minorticks_off()
    right.set_xticks(reach, [f"{value:.0f}" for value in reach])
    right.legend(loc="upper left", bbox_to_anchor=(0, -0.2))


def policy(figure: Figure) -> None:
    found = results("sparkle/policy-evaluation")
    # ED and EXTRA lie on top of each other, so that one is drawn.
    labels = [name for name in found.setup.methods if name != "SPARKLE-EXTRA"]
    panels = np.atleast_1d(figure.subplots(1, len(found.setup.nodes), sharey=True))
    for ax, nodes in zip(panels, found.setup.nodes, strict=True):
        for colour, label in zip(COLOURS, labels, strict=False):
            curve(ax, found[f"{nodes} nodes", label], "distance", "samples", colour)
        ax.set(yscale="log", xlabel="samples per node", title=f"{nodes} nodes on a ring")
    panels[0].set_ylabel("mean over nodes of ‖x_i − x*‖²")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)


def main() -> None:
    for name, draw in (("speedup", speedup), ("policy", policy)):
        figure = new_figure(7.5, 4.2)
        draw(figure)
        save(figure, f"results_{name}")


if __name__ == "__main__":
    main()
