"""Rounds on shaped links beside the α–β model, and steps per second at two shares of computing.

python docs/figures/network.py    # from studies/results/systems, in a second
"""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from decibel_studies import find
from decibel_studies.experiments.systems_gossip_vs_allreduce import EVERYBODY, LABELS, NEIGHBOURS, PEER, case
from decibel_studies.judging.results import Runs
from decibel_studies.testbed.namespaces import Link
from decibel_studies.testbed.shaped import expected

HERE = Path(__file__).parent
RESULTS = HERE.parents[1] / "studies" / "results" / "systems" / "gossip-vs-allreduce" / "runs"
COLOURS = {NEIGHBOURS: "#00695c", PEER: "#c77700", EVERYBODY: "#5e60ce"}


def main() -> None:
    setup = find("systems/gossip-vs-allreduce").setup("full")
    runs = [Runs.load(path) for path in sorted(RESULTS.glob("*.npz"))]
    found = {(one.case, one.label): one for one in runs}

    def median(name: str, label: str) -> float:
        return float(np.median(np.concatenate([trace["milliseconds"] for trace in found[name, label].traces])))

    figure, axes = plt.subplots(
        2, len(setup.links) + 1, figsize=(15, 5.2), layout="constrained", width_ratios=[*[1] * len(setup.links), 1.3]
    )
    for row, entries in enumerate(setup.entries):
        for column, link in enumerate(setup.links):
            axis = axes[row, column]
            for label, kind in LABELS.items():
                fine = np.arange(min(setup.processes), max(setup.processes) + 1)
                model = [1e3 * expected(kind, int(n), entries, Link(*link)) for n in fine]
                axis.plot(fine, model, "--", color=COLOURS[label], linewidth=1)
                measured = [median(case(n, link, entries), label) for n in setup.processes]
                axis.plot(setup.processes, measured, "o-", color=COLOURS[label], markersize=4, label=label)
            axis.set(yscale="log", xscale="log", xticks=setup.processes)
            axis.set_xticks(setup.processes, map(str, setup.processes))
            axis.minorticks_off()
            if row == 0:
                axis.set_title(str(Link(*link)), fontsize=10)
            else:
                axis.set_xlabel("processes")
        axes[row, 0].set_ylabel(f"{entries:,} entries\nms per round")
        largest = [a.get_ylim() for a in axes[row, :-1]]
        for axis in axes[row, :-1]:
            axis.set_ylim(min(low for low, _ in largest), max(high for _, high in largest))
            if axis is not axes[row, 0]:
                axis.set_yticklabels([])
    for row, ratio in enumerate(setup.ratios):
        axis = axes[row, -1]
        for place, (label, _) in enumerate(LABELS.items()):
            speed = [
                1e3
                / found[case(n, setup.computing, max(setup.entries)), label].traces[0][f"step_milliseconds_{row}"][0]
                for n in setup.processes
            ]
            axis.bar(np.arange(len(speed)) + 0.27 * (place - 1), speed, 0.25, color=COLOURS[label])
        axis.set_xticks(range(len(setup.processes)), map(str, setup.processes))
        axis.set_title(f"steps/s, {Link(*setup.computing)},\ncomputing {ratio:g} × all-reduce", fontsize=9)
    axes[1, -1].set_xlabel("processes")
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.2)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    handles.append(plt.Line2D([], [], linestyle="--", color="grey", linewidth=1))
    figure.legend(handles, [*labels, "α–β model"], loc="outside lower center", ncols=4, frameon=False)
    figure.savefig(HERE / "network.svg", metadata={"Date": None})
    plt.close(figure)


if __name__ == "__main__":
    plt.rcParams.update({"svg.hashsalt": "network", "svg.fonttype": "none"})
    main()
