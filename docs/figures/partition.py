"""Draws partition.svg, the picture of docs/tasks.md: the same digits dealt to ten nodes in four ways.

python docs/figures/partition.py
"""

from pathlib import Path

import matplotlib.style
from matplotlib.figure import Figure

from decibel.tasks import data, partition

NODES = 10


def main() -> None:
    labels = data.load("digits").y_train
    dealt = {
        "iid": partition.iid(labels, NODES),
        "dirichlet, α = 1 (mild)": partition.dirichlet(labels, NODES, alpha=1.0),
        "dirichlet, α = 0.1 (severe)": partition.dirichlet(labels, NODES, alpha=0.1),
        "label_skew, fraction 0.8": partition.label_skew(labels, NODES, fraction=0.8),
    }
    matplotlib.style.use("decibel_studies.house")
    figure = Figure(figsize=(7.5, 7.0))
    for ax, (title, part) in zip(figure.subplots(2, 2).ravel(), dealt.items(), strict=True):
        part.draw(ax)
        ax.set_title(f"{title}: skew {part.skew:.2f}", loc="left")
        print(part.summary())
    figure.savefig(Path(__file__).with_suffix(".svg"), metadata={"Date": None})


if __name__ == "__main__":
    main()
