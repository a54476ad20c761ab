"""Draws which_method.svg, of docs/evidence/transients.md.

python docs/figures/which_method.py
"""

from __future__ import annotations

from common import new_figure, save
from matplotlib.axes import Axes

import decibel as db
from decibel import theory

SIDES = (3, 4, 5, 6, 7, 8)  # so that a square torus exists
GRAPHS = {
    "ring": db.graphs.ring,
    "torus": lambda n: db.graphs.torus(round(n**0.5)),
    "exponential": db.graphs.exponential,
}
COLOURS = {"ring": "C0", "torus": "C1", "exponential": "C2"}
METHODS = {
    "d-soba": ("D-SOBA, b = 1", {"linestyle": "-"}),
    "sparkle-ed": ("SPARKLE-ED", {"linestyle": "--"}),
    "sparkle-gt": ("SPARKLE-GT", {"linestyle": "", "marker": "o", "markersize": 6, "markerfacecolor": "none"}),
}
NODES, WEIGHTS = 20, [10 ** (-k / 4) for k in range(2, 19)]


def against_nodes(ax: Axes) -> None:
    counts = [side**2 for side in SIDES]
    for graph, make in GRAPHS.items():
        made = [make(n) for n in counts]
        for method, (_, style) in METHODS.items():
            orders = [theory.transient(method, n, one) for n, one in zip(counts, made, strict=True)]
            ax.plot(counts, orders, color=COLOURS[graph], **style)
            if method == "d-soba":
                ax.annotate(
                    graph,
                    (counts[-1], orders[-1]),
                    (5, 0),
                    textcoords="offset points",
                    color=COLOURS[graph],
                    va="center",
                )
    ax.set(xscale="log", yscale="log", xlabel="nodes n", ylabel="transient, constants dropped", title="Default weights")
    ax.set_xlim(8, 180)
    ax.minorticks_off()
    ax.set_xticks([9, 16, 25, 36, 64], ["9", "16", "25", "36", "64"])


def against_weight(ax: Axes) -> None:
    rings = [db.graphs.adjusted_ring(NODES, weight) for weight in WEIGHTS]
    gaps = [ring.spectral_gap for ring in rings]
    for method in ("sparkle-ed", "sparkle-gt"):
        style = METHODS[method][1]
        ax.plot(gaps, [theory.transient(method, NODES, ring) for ring in rings], color=COLOURS["ring"], **style)
    ax.axvline(NODES**-3.0, color="#888888", linewidth=1)
    ax.annotate(
        "1−ρ = n⁻³", (NODES**-3.0, 0.04), (5, 0), ("data", "axes fraction"), textcoords="offset points", color="#555555"
    )
    ax.set(xscale="log", yscale="log", xlabel="spectral gap 1−ρ", title=f"A ring of {NODES}, weaker and weaker links")
    ax.invert_xaxis()


def main() -> None:
    figure = new_figure(7.5, 3.8)
    left, right = figure.subplots(1, 2)
    against_nodes(left)
    against_weight(right)
    keys = [left.plot([], [], color="#333333", label=label, **style)[0] for label, style in METHODS.values()]
    figure.legend(handles=keys, loc="outside lower center", ncols=3)
    save(figure, "which_method")


if __name__ == "__main__":
    main()
