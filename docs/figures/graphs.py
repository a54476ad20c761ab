"""Draws graphs.svg, the picture of docs/graphs.md, and prints the table beside it.

python docs/figures/graphs.py
"""

from common import new_figure, save

import decibel as db

g = db.graphs
GRAPHS = {
    "ring(16)": g.ring(16),
    "path(16)": g.path(16),
    "star(16)": g.star(16),
    "grid(4)": g.grid(4),
    "torus(4)": g.torus(4),
    "hypercube(16)": g.hypercube(16),
    "exponential(16)": g.exponential(16),
    "erdos_renyi(16, 0.3)": g.erdos_renyi(16, 0.3),
    "geometric(16, 0.4)": g.geometric(16, 0.4),
    "adjusted_ring(16, 0.1)": g.adjusted_ring(16, 0.1),
    "complete(16)": g.complete(16),
}


def main() -> None:
    drawn = [name for name in GRAPHS if not name.startswith(("path", "adjusted"))]
    figure = new_figure(5.8, 6.4)
    for ax, name in zip(figure.subplots(3, 3).ravel(), drawn, strict=True):
        graph = GRAPHS[name]
        graph.draw(ax)
        ax.set_title(f"{name.split('(')[0]}\nρ = {graph.rho:.2f}")
    save(figure, "graphs")
    for name, graph in GRAPHS.items():
        degrees = (
            f"{graph.degrees.min()}–{graph.degrees.max()}" if len(set(graph.degrees)) > 1 else f"{graph.degrees[0]}"
        )
        print(f"| `{name}` | {degrees} | {graph.rho:.3f} | {graph.lambda_min:.3f} |")


if __name__ == "__main__":
    main()
