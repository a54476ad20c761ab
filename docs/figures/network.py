"""Rounds on shaped links beside the model of latency and bandwidth, and steps per second at two shares of computing.

python docs/figures/network.py    # from studies/results/systems, in a second
"""

import numpy as np
from common import STUDIES, new_figure, save
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator

from decibel_studies import find
from decibel_studies.experiments.systems_gossip_vs_allreduce import EVERYBODY, LABELS, NEIGHBOURS, PEER, case
from decibel_studies.judging.results import Runs
from decibel_studies.testbed.namespaces import Link
from decibel_studies.testbed.shaped import expected

RESULTS = STUDIES / "systems" / "gossip-vs-allreduce" / "runs"
COLOURS = {NEIGHBOURS: "C0", PEER: "C2", EVERYBODY: "C1"}


def main() -> None:
    setup = find("systems/gossip-vs-allreduce").setup("full")
    runs = [Runs.load(path) for path in sorted(RESULTS.glob("*.npz"))]
    found = {(one.case, one.label): one for one in runs}

    def median(name: str, label: str) -> float:
        return float(np.median(np.concatenate([trace["milliseconds"] for trace in found[name, label].traces])))

    counts = list(map(str, setup.processes))
    figure = new_figure(7.5, 7.4)
    axes = figure.subplots(3, 2, height_ratios=(1, 1, 0.8))
    chosen = (min(setup.links), max(setup.links))
    for row, entries in enumerate(setup.entries):
        for axis, link in zip(axes[row], chosen, strict=True):
            for label, kind in LABELS.items():
                fine = np.arange(min(setup.processes), max(setup.processes) + 1)
                model = [1e3 * expected(kind, int(n), entries, Link(*link)) for n in fine]
                axis.plot(fine, model, "--", color=COLOURS[label], linewidth=1)
                measured = [median(case(n, link, entries), label) for n in setup.processes]
                axis.plot(setup.processes, measured, "o-", color=COLOURS[label], label=label)
            axis.set(yscale="log", xscale="log", title=f"{entries:,} entries, {Link(*link)}")
            axis.set_xticks(setup.processes, counts)
            axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.yaxis.set_major_formatter("{x:g}")
            axis.minorticks_off()
        axes[row, 0].set_ylabel("ms per round")
    for axis, (row, ratio) in zip(axes[2], enumerate(setup.ratios), strict=True):
        for place, label in enumerate(LABELS):
            rounds = [found[case(n, setup.computing, max(setup.entries)), label].traces[0] for n in setup.processes]
            speed = [1e3 / trace[f"step_milliseconds_{row}"][0] for trace in rounds]
            axis.bar(np.arange(len(speed)) + 0.27 * (place - 1), speed, 0.25, color=COLOURS[label])
        axis.set_xticks(range(len(counts)), counts)
        axis.set(xlabel="processes", title=f"{Link(*setup.computing)}, computing {ratio:g} × all-reduce")
    axes[2, 0].set_ylabel("steps per second")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    handles.append(Line2D([], [], linestyle="--", color="grey", linewidth=1))
    figure.legend(handles, [*labels, "model: latency and bandwidth"], loc="outside lower center", ncols=4)
    save(figure, "network")


if __name__ == "__main__":
    main()
