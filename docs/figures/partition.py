"""Draws partition.svg, the picture of docs/tasks.md: the same digits dealt to ten nodes in four ways.

python docs/figures/partition.py
"""

from common import new_figure, save

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
    figure = new_figure(7.5, 7.0)
    for ax, (title, part) in zip(figure.subplots(2, 2).ravel(), dealt.items(), strict=True):
        part.draw(ax)
        ax.set_title(f"{title}: skew {part.skew:.2f}", loc="left")
        print(part.summary())
    save(figure, "partition")


if __name__ == "__main__":
    main()
