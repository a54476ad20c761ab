"""Draws mixture.svg, of docs/mixtures.md, from the traces of apps/mixtures in studies/results.

python docs/figures/mixture.py
"""

from __future__ import annotations

import numpy as np
from common import STUDIES, new_figure, save

from decibel_studies import find
from decibel_studies.experiments.apps_mixtures import BASELINES, CASE, LEARNED, SETUPS, TARGET
from decibel_studies.testbed.reproduce import load

FARTHEST = 1.75  # nats, of the middle panel
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6bb1", "#a6761d")
WORDS = {
    "wiki": "encyclopedia", "books": "books", "reviews_movies": "reviews", "code_python": "code",
    "docs_linux_kernel": "documentation", "science_math_latex": "mathematics", "shuffled": "letters in random order",
    "repeated": "30 kB repeated",
}  # fmt: skip


def main() -> None:
    loaded = load(find("apps/mixtures"), STUDIES)
    runs = {run.label: run for run in loaded.runs if run.case == CASE}

    def table(label: str, column: str) -> np.ndarray:
        """(seeds, rows)"""
        return np.stack([np.asarray(trace[column], float) for trace in runs[label].traces])

    setup, steps = SETUPS["full"], table(LEARNED, "step")[0]

    figure = new_figure(7.5, 5.6)
    panels = figure.subplot_mosaic([["shares", "key"], ["losses", "domains"]])
    shares, losses, domains = (panels[name] for name in ("shares", "losses", "domains"))
    for colour, name in zip(PALETTE, WORDS, strict=True):
        values = table(LEARNED, f"weight_{name}")
        shares.fill_between(steps, values.min(0), values.max(0), color=colour, alpha=0.2, linewidth=0)
        wanted = name in setup.domains[: len(setup.target)]
        shares.plot(steps, values.mean(0), color=colour, linestyle="-" if wanted else (0, (4, 1.5)), label=WORDS[name])
    shares.axhline(setup.floor / len(WORDS), color="C6", linestyle=":", label="floor")
    shares.set(xlabel="steps", ylabel="share in the learned mixture", ylim=(0, 0.68))
    words = "solid: in the target"
    panels["key"].axis("off")
    panels["key"].legend(*shares.get_legend_handles_labels(), loc="center left", title=words)

    labels = [label for label in (LEARNED, TARGET, *BASELINES) if label in runs]
    for place, label in enumerate(labels):
        values = table(label, "test_loss")[:, -1]
        losses.plot(values, np.full(len(values), place), "o", markersize=4, color=PALETTE[place], alpha=0.7)
        losses.plot([values.mean()], [place], "|", markersize=16, color=PALETTE[place])
        if values.min() > FARTHEST:
            losses.text(FARTHEST, place, f"{values.mean():.2f} →", ha="right", va="center")
    losses.set_yticks(range(len(labels)), labels)
    losses.set_xlim(right=FARTHEST)
    losses.invert_yaxis()
    losses.set(xlabel="loss on the target, nats per byte")

    for colour, label in ((PALETTE[0], LEARNED), (PALETTE[1], "uniform mixture")):
        for row, name in enumerate(WORDS):
            values = table(label, f"loss_{name}")[:, -1]
            domains.plot(values, np.full(len(values), row), "o", markersize=4, color=colour, label="" if row else label)
    domains.set_yticks(range(len(WORDS)), list(WORDS.values()))
    domains.invert_yaxis()
    domains.set(xlabel="loss by kind of text, nats per byte")
    domains.legend(loc="lower center", bbox_to_anchor=(0.4, 1), ncols=2, handletextpad=0.2, columnspacing=1)
    save(figure, "mixture")


if __name__ == "__main__":
    main()
