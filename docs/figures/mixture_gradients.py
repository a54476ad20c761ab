"""Draws mixture_gradients.svg, of docs/mixtures.md: loss against gradients, and the learned shares.

    python docs/figures/mixture_gradients.py

The left and the right panel are the judged runs of apps/mixtures-gradients in studies/results. The middle one is
mixture_settings.json.
"""

from __future__ import annotations

import numpy as np
from common import STUDIES, new_figure, read, save
from mixture import PALETTE, WORDS

from decibel_studies import find
from decibel_studies.experiments.apps_mixtures_gradients import CASE, LEARNED, RAMP, TARGET, UNIFORM, alignment
from decibel_studies.testbed.reproduce import load

SHOWN = {
    LEARNED: ("#0072b2", "learned mixture"),
    UNIFORM: ("#d55e00", "uniform"),
    alignment(4e-3): ("#e69f00", "gradient alignment"),
    TARGET: ("#009e73", "the target's own shares"),
    RAMP: ("#cc79a7", "from uniform to the target"),
}
FIRST = 4  # row, before which all lose much


def main() -> None:
    judged = load(find("apps/mixtures-gradients"), STUDIES).runs
    runs = {run.label: [dict(trace) for trace in run.traces] for run in judged if run.case == CASE}
    scarce = read("mixture_settings")["scarce text"]
    figure = new_figure(7.5, 5.6)
    panels = figure.subplot_mosaic([["plenty", "scarce"], ["shares", "key"]])

    for name, found in (("plenty", runs), ("scarce", scarce)):
        for label, (colour, words) in SHOWN.items():
            if label in found:
                losses = table(found[label], "test_loss")[:, FIRST:]
                gradients = table(found[label], "gradients")[0, FIRST:]
                panels[name].fill_between(gradients, losses.min(0), losses.max(0), color=colour, alpha=0.2, linewidth=0)
                panels[name].plot(gradients, losses.mean(0), color=colour, label=words)
        panels[name].set(xlabel="gradients per node", ylabel="loss on the target, nats per byte")
    panels["plenty"].set_title("text is plentiful")
    panels["scarce"].set_title("text is scarce")
    panels["plenty"].legend()

    shares = panels["shares"]
    for colour, (name, words) in zip(PALETTE, WORDS.items(), strict=True):
        values = table(runs[LEARNED], f"weight_{name}")
        steps = table(runs[LEARNED], "step")[0]
        shares.fill_between(steps, values.min(0), values.max(0), color=colour, alpha=0.2, linewidth=0)
        shares.plot(steps, values.mean(0), color=colour, label=words)
    shares.set(xlabel="steps", ylabel="share in the learned mixture", ylim=(0, None))
    panels["key"].axis("off")
    panels["key"].legend(*shares.get_legend_handles_labels(), loc="center left")
    save(figure, "mixture_gradients")


def table(runs: list[dict[str, list[float]]], column: str) -> np.ndarray:
    """(seeds, rows)"""
    return np.array([np.asarray(run[column], float) for run in runs])


if __name__ == "__main__":
    main()
