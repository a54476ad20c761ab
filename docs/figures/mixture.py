"""Draws mixture.svg, of docs/mixtures.md, from the committed runs of the study apps/domain-reweighting.

python docs/figures/mixture.py
"""

from __future__ import annotations

from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from decibel.studies import find
from decibel.studies.apps_domain_reweighting import BASELINES, CASE, LEARNED, TARGET
from decibel.studies.reproduce import load
from decibel.studies.results import Runs

HERE = Path(__file__).parent
INK = "#6b7683"
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6bb1", "#a6761d")
WORDS = {
    "wiki": "encyclopedia", "books": "books", "reviews_movies": "reviews", "code_python": "code",
    "docs_linux_kernel": "documentation", "science_math_latex": "mathematics", "shuffled": "letters in random order",
    "repeated": "30 kB repeated",
}  # fmt: skip


def band(runs: Runs, column: str) -> tuple[np.ndarray, np.ndarray]:
    return np.asarray(runs.traces[0]["step"]), np.stack([np.asarray(trace[column]) for trace in runs.traces])


def main() -> None:
    matplotlib.rcParams["svg.hashsalt"] = "mixture"
    study = find("apps/domain-reweighting")
    _, _, found = load(study, HERE.parent / "results")
    runs = {run.label: run for run in found if run.case == CASE}
    setup = study.setup("full")
    learned = runs[LEARNED]
    names = [name.removeprefix("weight_") for name in learned.columns if name.startswith("weight_")]
    order = [name for name in WORDS if name in names]

    figure = Figure(figsize=(10.5, 3.6), layout="constrained")
    shares, losses, domains = figure.subplots(1, 3, width_ratios=(1.15, 1, 1.1))
    for colour, name in zip(PALETTE, order, strict=True):
        steps, values = band(learned, f"weight_{name}")
        shares.fill_between(steps, values.min(0), values.max(0), color=colour, alpha=0.2, linewidth=0)
        wanted = order.index(name) < len(setup.target)
        shares.plot(steps, values.mean(0), color=colour, linestyle="-" if wanted else (0, (4, 1.5)), label=WORDS[name])
    shares.axhline(setup.floor / len(order), color=INK, linestyle=":", linewidth=0.8)
    shares.set(xlabel="steps", ylabel="share in the mixture", ylim=(0, None))
    shares.legend(frameon=False, fontsize=7, title="in the target: solid lines", title_fontsize=7)

    labels = [label for label in (LEARNED, TARGET, *BASELINES) if label in runs]
    for place, label in enumerate(labels):
        values = runs[label].last("test_loss")
        losses.plot(values, np.full(len(values), place), "o", markersize=3.5, color=PALETTE[place], alpha=0.7)
        losses.plot([values.mean()], [place], "|", markersize=16, color=PALETTE[place])
    losses.set_yticks(range(len(labels)), labels, fontsize=8)
    losses.invert_yaxis()
    losses.set(xlabel="loss on the target, nats a byte")

    width = 0.38
    for shift, label in ((-width / 2, LEARNED), (width / 2, "uniform mixture")):
        heights = [runs[label].last(f"loss_{name}").mean() for name in order]
        domains.barh(np.arange(len(order)) + shift, heights, width, label=label, color=PALETTE[0 if shift < 0 else 3])
    domains.set_yticks(range(len(order)), [WORDS[name] for name in order], fontsize=8)
    domains.invert_yaxis()
    domains.set(xlabel="loss on each kind of text, nats a byte")
    domains.legend(frameon=False, fontsize=7)
    for axis in (shares, losses, domains):
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=8)
    for kind in ("svg", "png"):
        figure.savefig(HERE / f"mixture.{kind}", dpi=150, metadata={"Date": None} if kind == "svg" else None)


if __name__ == "__main__":
    main()
