"""The figures and tables of cost.md and evidence/cost.md, from the committed results of the benchmarks.

    python docs/figures/cost.py

Draws cost_performance.svg, cost_network.svg and cost_growth.svg beside it and fills in the tables of both pages between
their marks.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import matplotlib.lines
import matplotlib.style
from matplotlib.axes import Axes
from matplotlib.figure import Figure

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import performance, records, tables  # noqa: E402

PAGE = HERE.parent / "evidence" / "cost.md"
SUMMARY = HERE.parent / "cost.md"
MARK = re.compile(r"(<!-- table (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
# Okabe and Ito's colours
ROUNDS = {
    "ring": "#0072B2",
    "one-peer exponential": "#56B4E9",
    "exponential": "#009E73",
    "complete": "#CC79A7",
    "all-reduce": "#D55E00",
}
PROGRAMS = {
    "Decibel": ("#0072B2", "o"),
    "hand-written scan": ("#009E73", "s"),
    "PyTorch, compiled vmap": ("#E69F00", "^"),
    "PyTorch, loop over nodes": ("#D55E00", "v"),
    "bare products": ("#555555", "|"),
    "JAX, loop over nodes": ("#CC79A7", "D"),
    "PyTorch, all samples at once": ("#56B4E9", "P"),
    "bare gradients": ("#000000", "|"),
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


def _measured(name: str) -> bool:
    return name == "performance" or _file(name).exists()


# Tables


def table(name: str) -> str:
    if name == "performance":
        return tables.markdown(tables.performance(performance.gather()))
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
        return match[1] + (table(match[2]) if _measured(match[2]) else "not measured yet") + "\n" + match[3]

    return MARK.sub(fill, page)


# Figures


def draw_performance() -> Figure:
    """Each program's time in units of Decibel's, a line for each network and machine."""
    rows = performance.gather()
    figure = Figure(figsize=(7.5, 0.55 * len(rows) + 1.5))
    axis = figure.subplots()
    names = dict.fromkeys(name for row in rows for name in row["ms"])
    for name in names:
        points = [(row["ms"][name] / row["ms"]["Decibel"], i) for i, row in enumerate(rows) if name in row["ms"]]
        color, marker = PROGRAMS[name]
        axis.scatter(*zip(*points, strict=True), color=color, marker=marker, s=58, label=name, zorder=3)
    axis.set_xscale("log")
    axis.axvline(1, color=PROGRAMS["Decibel"][0], linewidth=1)
    axis.set_yticks(range(len(rows)), [f"{row['case']}\n{row['machine']}" for row in rows])
    axis.invert_yaxis()
    axis.set_xlabel("time of a step ÷ Decibel's: to the right is slower")
    figure.legend(loc="outside upper center", ncols=3)
    return figure


def draw_network() -> Figure:
    content = results("network")
    rows, entries = content["rows"], content["model"]["entries"]
    figure = Figure(figsize=(7.5, 6.4))
    measured, model = figure.subplots(2, 1, height_ratios=(1, 1.25))
    for kind, color in ROUNDS.items():
        mine = [
            (row["processes"], row["milliseconds"]) for row in rows if (row["round"], row["entries"]) == (kind, entries)
        ]
        if mine:
            measured.plot(*zip(*mine, strict=True), color=color, marker="o", label=kind)
        curve, nodes = content["model"]["milliseconds"][kind], content["model"]["nodes"]
        model.loglog(nodes, curve, color=color, linestyle="--")
    _label_ends(
        model, {kind: content["model"]["milliseconds"][kind][-1] for kind in ROUNDS}, content["model"]["nodes"][-1]
    )
    measured.set_title(f"Measured: a round of {entries / 1e6:g} million entries")
    counts = sorted({row["processes"] for row in rows})
    measured.set_xticks(counts)
    measured.set(xlabel=f"processes, on {content['place']['cores']} cores", ylabel="milliseconds", ylim=(0, None))
    measured.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    model.set_title("A model, not a measurement: a core and a link each")
    model.set_xticks(content["model"]["nodes"], [str(n) for n in content["model"]["nodes"]])
    model.minorticks_off()
    model.set(xlabel="nodes", ylabel="milliseconds", xlim=(2, 256 * 9))
    return figure


def _label_ends(axis, ends: dict[str, float], x: float) -> None:
    """Names at the ends of curves, moved apart where they would touch (the axis is logarithmic)."""
    last = 0.0
    for kind, value in sorted(ends.items(), key=lambda one: one[1]):
        place = max(value, last * 1.45)
        axis.text(x * 1.12, place, kind, color=ROUNDS[kind], va="center")
        last = place


def draw_growth() -> Figure:
    """Bands from the cheapest to the dearest method of a kind."""
    rows = results("growth")["rows"]
    figure = Figure(figsize=(7.5, 11))
    grid = figure.subplots(len(AXES), 2)
    for (axis, label), (left, right) in zip(AXES.items(), grid, strict=True):
        mine = [row for row in rows if row["axis"] == axis]
        for panel, column, unit in ((left, "µs", 1.0), (right, "bytes", 1e6)):
            for kind, color in KINDS.items():
                _band(panel, [(row["size"], row[column] / unit) for row in mine if row["family"] == kind], color)
            sizes = sorted({row["size"] for row in mine})
            panel.set(xscale="log", yscale="log", xlabel=label)
            panel.set_xticks(sizes, [f"{size:,}" for size in sizes])
            panel.minorticks_off()
    grid[0][0].set_title("time of a step, µs")
    grid[0][1].set_title("memory in addition to the data, MB")
    lines = [matplotlib.lines.Line2D([], [], color=color, linewidth=5, label=kind) for kind, color in KINDS.items()]
    figure.legend(handles=lines, loc="outside upper center", ncols=5)
    return figure


def _band(panel: Axes, points: list[tuple[float, float]], color: str) -> None:
    by_size: dict[float, list[float]] = {}
    for size, value in points:
        by_size.setdefault(size, []).append(value)
    sizes = sorted(by_size)
    low = [min(by_size[size]) for size in sizes]
    high = [max(by_size[size]) for size in sizes]
    panel.fill_between(sizes, low, high, color=color, alpha=0.25, linewidth=0)
    panel.plot(sizes, low, color=color, linewidth=1)
    panel.plot(sizes, high, color=color, linewidth=1)


DRAWINGS = {"performance": draw_performance, "network": draw_network, "growth": draw_growth}

if __name__ == "__main__":
    matplotlib.style.use("decibel_studies.house")
    for name, draw in DRAWINGS.items():
        if _measured(name):
            draw().savefig(HERE / f"cost_{name}.svg", metadata={"Date": None})
    for page in (SUMMARY, PAGE):
        page.write_text(filled(page.read_text()))
