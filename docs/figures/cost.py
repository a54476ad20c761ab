"""The figures and tables of evidence/cost.md, from the committed results of the benchmarks.

    python docs/figures/cost.py

Draws cost_network.svg and cost_growth.svg beside it and fills in the tables of evidence/cost.md between their marks.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import matplotlib
import matplotlib.lines
from matplotlib.figure import Figure

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import records, tables  # noqa: E402

PAGE = HERE.parent / "evidence" / "cost.md"
MARK = re.compile(r"(<!-- table (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
GREY = "#555555"
# Okabe and Ito's colours
ROUNDS = {
    "ring": "#0072B2",
    "one-peer exponential": "#56B4E9",
    "exponential": "#009E73",
    "complete": "#CC79A7",
    "all-reduce": "#D55E00",
}
KINDS = {
    "auxiliary level": "#0072B2",
    "inverse at the node": "#009E73",
    "inner loops": "#E69F00",
    "matrices": "#D55E00",
    "one level": "#555555",
}
AXES = {
    "nodes": "nodes",
    "degree": "neighbours of a node",
    "dimension": "entries of x and of y",
    "batch": "samples of a batch",
    "terms": "Neumann terms",
}


FROM = {"model": "network", "scale": "scale-gpu", "largest": "scale-gpu"}  # tables whose results have another name


def results(name: str) -> dict:
    return records.read(_file(name))


def _file(name: str) -> Path:
    return records.RESULTS / f"{FROM.get(name, name)}.json"


# Tables


def table(name: str) -> str:
    if name in ("model", "largest"):
        return tables.markdown(getattr(tables, name)(results(name)))
    if name == "target":
        whole = results("target")
        plain = [row for row in whole["rows"] if not _mixture(row["method"])]
        return tables.markdown(tables.of(whole | {"rows": plain}))
    return tables.markdown(tables.of(results(name)))


def _mixture(name: str) -> bool:
    from benchmarks.growth import methods

    return name not in methods()


def filled(page: str) -> str:
    """The page with its tables as the results have them; a table without results says so."""

    def fill(match: re.Match) -> str:
        return match[1] + (table(match[2]) if _file(match[2]).exists() else "not measured yet") + "\n" + match[3]

    return MARK.sub(fill, page)


# Figures


def draw_network() -> Figure:
    content = results("network")
    rows, entries = content["rows"], content["model"]["entries"]
    figure = Figure(figsize=(5.4, 7.4), layout="constrained")
    measured, model = figure.subplots(2, 1, height_ratios=(1, 1.25))
    for kind, color in ROUNDS.items():
        mine = [
            (row["processes"], row["milliseconds"]) for row in rows if (row["round"], row["entries"]) == (kind, entries)
        ]
        if mine:
            measured.plot(*zip(*mine, strict=True), color=color, marker="o", linewidth=1.8, label=kind)
        curve, nodes = content["model"]["milliseconds"][kind], content["model"]["nodes"]
        model.loglog(nodes, curve, color=color, linestyle=(0, (4, 1.5)), linewidth=1.8)
    _label_ends(
        model, {kind: content["model"]["milliseconds"][kind][-1] for kind in ROUNDS}, content["model"]["nodes"][-1]
    )
    measured.set_title(
        f"Measured: a round of {entries / 1e6:g} million entries", loc="left", fontsize=11, fontweight="bold"
    )
    counts = sorted({row["processes"] for row in rows})
    measured.set_xticks(counts)
    measured.set(xlabel=f"processes, on {content['place']['cores']} cores", ylabel="milliseconds", ylim=(0, None))
    measured.legend(frameon=False, fontsize=9.5)
    model.set_title("A model, not a measurement: a core and a link each", loc="left", fontsize=11, fontweight="bold")
    model.set_xticks(content["model"]["nodes"], [str(n) for n in content["model"]["nodes"]])
    model.minorticks_off()
    model.set(xlabel="nodes", ylabel="milliseconds", xlim=(2, 256 * 9))
    return _finished(figure)


def _label_ends(axis, ends: dict[str, float], x: float) -> None:
    """Names at the ends of curves, moved apart where they would touch (the axis is logarithmic)."""
    last = 0.0
    for kind, value in sorted(ends.items(), key=lambda one: one[1]):
        place = max(value, last * 1.45)
        axis.text(x * 1.12, place, kind, color=ROUNDS[kind], fontsize=9.5, va="center", fontweight="bold")
        last = place


def draw_growth() -> Figure:
    content = results("growth")
    rows = content["rows"]
    figure = Figure(figsize=(6.4, 11), layout="constrained")
    grid = figure.subplots(len(AXES), 2)
    for (axis, label), (left, right) in zip(AXES.items(), grid, strict=True):
        for panel, column, unit in ((left, "µs", 1.0), (right, "bytes", 1e6)):
            for method in dict.fromkeys(row["method"] for row in rows if row["axis"] == axis):
                mine = [row for row in rows if (row["axis"], row["method"]) == (axis, method)]
                points = [row["size"] for row in mine], [row[column] / unit for row in mine]
                panel.loglog(
                    *points, color=KINDS[mine[0]["family"]], linewidth=1.1, alpha=0.75, marker=".", markersize=3
                )
            sizes = sorted({row["size"] for row in rows if row["axis"] == axis})
            panel.set_xticks(sizes, [f"{size:,}" for size in sizes])
            panel.minorticks_off()
            panel.set_xlabel(label)
    grid[0][0].set_title("µs of a step", loc="left", fontsize=11, fontweight="bold")
    grid[0][1].set_title("MB beside the data", loc="left", fontsize=11, fontweight="bold")
    lines = [matplotlib.lines.Line2D([], [], color=color, linewidth=2, label=kind) for kind, color in KINDS.items()]
    figure.legend(handles=lines, loc="outside upper center", ncols=3, frameon=False, fontsize=9.5)
    return _finished(figure)


def _finished(figure: Figure) -> Figure:
    for axis in figure.axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.2)
    return figure


DRAWINGS = {"network": draw_network, "growth": draw_growth}

if __name__ == "__main__":
    matplotlib.rcParams.update({"font.size": 10.5, "svg.hashsalt": "cost"})
    for name, draw in DRAWINGS.items():
        if (records.RESULTS / f"{name}.json").exists():
            draw().savefig(HERE / f"cost_{name}.svg", metadata={"Date": None})
    PAGE.write_text(filled(PAGE.read_text()))
