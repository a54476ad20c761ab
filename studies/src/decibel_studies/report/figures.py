"""Curves of runs with their spread, and graphs, as SVG that takes the colour of the text around it."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
from matplotlib import rc_context
from matplotlib import style as mplstyle
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from decibel import Graph, metrics

from ..judging.results import Runs
from ..type_aliases import Topology

INK = "#6b7683"  # readable on light and dark; replaced by the colour of the text where a page shows the figure
# Told apart also by people who see few colours (Okabe and Ito), and on light and dark.
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6bb1", "#a6761d", "#999999")
Dashes: TypeAlias = str | tuple[int, tuple[float, ...]]  # matplotlib's: an offset, and lengths on and off
Style: TypeAlias = tuple[str, Dashes]  # colour and dashes
DASHES: tuple[Dashes, ...] = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (5, 1.2, 1.2, 1.2)))
MOST_POINTS = 60
MOST_GROWTH = 100  # of an error, that a logarithmic axis shows
HOUSE = "decibel_studies.house"  # the style sheet of every figure, also of those in docs/figures
WIDE = 7.5  # inches
BANDS = (
    "Lines are means over seeds. Bands hold the middle half of the seeds, so a few bad runs can move a line out of its "
    "band. If only some runs diverged, they are left out."
)
# Of metrics that studies define.
LABELS = {"error": "‖x̄ − x*‖²", "interact": "INTERACT’s measure 𝔐", "goal": "distance to x*, or upper loss"}


def style_of(labels: Sequence[str]) -> dict[str, Style]:
    """A colour and a dash for every label."""
    return {label: (PALETTE[i % len(PALETTE)], DASHES[i % len(DASHES)]) for i, label in enumerate(labels)}


def panel(runs: Sequence[Runs], column: str, against: str, styles: Mapping[str, Style], *, title: str = "") -> Figure:
    """One case for a page: a curve per arm, in the ink that becomes the colour of the text around it."""
    # A layout that is computed would take longer than all the rest.
    with mplstyle.context([HOUSE, {"figure.constrained_layout.use": False}]):
        figure = Figure(figsize=(4.2, 3.0))
        figure.subplots_adjust(0.17, 0.16, 0.98, 0.9)
        ax = figure.subplots()
        draw_curves(ax, runs, column, against, styles, title=title)
    ax.grid(color=INK, alpha=0.18)
    ax.spines[["left", "bottom"]].set_color(INK)
    ax.tick_params(colors=INK, which="both")
    for text in (ax.title, ax.xaxis.label, ax.yaxis.label):
        text.set_color(INK)
    return figure


def draw_curves(
    ax: Axes, runs: Sequence[Runs], column: str, against: str, styles: Mapping[str, Style], *, title: str = ""
) -> None:
    """A curve per arm: the mean over seeds, with a band that holds their middle half. What costs nothing is a level."""
    shown = [run for run in runs if column in run.traces[0] and against in run.traces[0]]
    bands = {run.label: _band(run, column, against) for run in shown}
    for label, (cost, low, mean, high) in bands.items():
        colour, dashes = styles[label]
        if cost.any():
            ax.fill_between(cost, low, high, color=colour, alpha=0.18 if len(shown) < 5 else 0.1, linewidth=0)
            ax.plot(cost, mean, color=colour, linestyle=dashes, label=label)
        else:
            ax.axhline(mean[-1], color=colour, linestyle=dashes, label=f"{label} (at its end)")
    if shown and spans_decades([mean for _, _, mean, _ in bands.values()]):
        ax.set_yscale("log", nonpositive="mask")
        starts = max(mean[0] for _, _, mean, _ in bands.values())
        if 0 < MOST_GROWTH * starts < ax.get_ylim()[1]:  # what diverges leaves at the top
            ax.set_ylim(top=MOST_GROWTH * starts)
    else:
        ax.ticklabel_format(axis="y", useOffset=False)
        ax.set_ylim(*_heights(list(bands.values())))
    _few_ticks(ax, against)
    ax.set(xlabel=metrics.LABELS.get(against, against), ylabel=label_of(column))
    ax.set_title(title, loc="left")


def label_of(column: str) -> str:
    """A column in words."""
    return LABELS.get(column) or metrics.LABELS.get(column, column.replace("_", " "))


def spans_decades(series: Sequence[np.ndarray]) -> bool:
    """Whether curves need a logarithmic axis."""
    values = np.concatenate(series)
    values = values[np.isfinite(values)]
    positive = values[values > 0]
    return bool(positive.size and (values >= 0).all() and positive.max() > 30 * positive.min())


def _few_ticks(ax: Axes, against: str) -> None:
    """Of a cost, with k and M for thousands and millions, so that labels stay apart on a narrow panel."""
    ax.xaxis.set_major_locator(MaxNLocator(5))
    if against != "seconds":
        ax.xaxis.set_major_formatter(EngFormatter(sep=""))


def _heights(bands: Sequence[tuple[np.ndarray, ...]]) -> tuple[float | None, float | None]:
    """From where to where a plain axis goes: what the curves do after a twentieth of the longest run, before which most
    of their height may lie."""
    end = max((cost[-1] for cost, *_ in bands), default=0.0)
    late = [part[cost >= 0.05 * end] if cost.any() else part[-1:] for cost, *parts in bands for part in parts]
    heights = np.concatenate(late) if late else np.empty(0)
    heights = heights[np.isfinite(heights)]
    if not heights.size or heights.min() == heights.max():
        return None, None
    margin = 0.05 * (heights.max() - heights.min())
    return float(heights.min() - margin), float(heights.max() + margin)


def _band(run: Runs, column: str, against: str) -> tuple[np.ndarray, ...]:
    """Cost, lower quartile, mean and upper quartile over seeds, at rows that all runs reached; those that diverged are
    left out where others did not."""
    traces = [trace for trace, stopped in zip(run.traces, run.stopped, strict=True) if not stopped] or run.traces
    rows = min(trace.rows for trace in traces)
    keep = np.unique(np.linspace(0, rows - 1, min(rows, MOST_POINTS)).round().astype(int))
    table = np.stack([np.asarray(trace[column], float)[keep] for trace in traces])
    cost = np.stack([np.asarray(trace[against], float)[keep] for trace in traces]).mean(0)
    low, high = np.quantile(table, (0.25, 0.75), axis=0)
    return cost, low, table.mean(0), high


def overview(cases: Mapping[str, Sequence[Runs]], column: str, against: str, styles: Mapping[str, Style]) -> Figure:
    """All cases of a study, as wide as a page, two side by side, with one legend: right of a single case where it fits,
    else below."""
    with mplstyle.context(HOUSE):
        figure = Figure()
        wide = min(2, len(cases))
        tall = -(-len(cases) // wide)
        axes = list(figure.subplots(tall, wide, squeeze=False).flat)
        for place, (ax, (case, runs)) in enumerate(zip(axes, cases.items(), strict=False)):
            draw_curves(ax, runs, column, against, styles, title=case)
            if place % wide:
                ax.set_ylabel("")
            if place + wide < len(cases):
                ax.set_xlabel("")
        for ax in axes[len(cases) :]:
            ax.set_visible(False)
        _legend(figure, axes[: len(cases)], tall)
    return figure


def _legend(figure: Figure, axes: Sequence[Axes], tall: int) -> None:
    """Every label once, and a figure as tall as they need."""
    handles: dict[str, Artist] = {}
    for ax in axes:
        lines, labels = ax.get_legend_handles_labels()
        handles |= dict(zip(labels, lines, strict=True))
    names = list(handles)
    figure.set_size_inches(WIDE, 3.4)
    if len(axes) == 1:
        legend = figure.legend(handles.values(), names, loc="outside right upper")
        extent = legend.get_window_extent()
        if extent.width <= 0.45 * figure.bbox.width and extent.height <= 0.95 * figure.bbox.height:
            return
        legend.remove()
    for columns in range(min(4, len(names)), 0, -1):
        rows = -(-len(names) // columns)
        figure.set_size_inches(WIDE, 2.6 * tall + 0.35 + 0.2 * rows)
        legend = figure.legend(handles.values(), names, loc="outside lower center", ncols=columns)
        if columns == 1 or legend.get_window_extent().width <= figure.bbox.width:
            return
        legend.remove()


def graph(network: Topology) -> Figure:
    figure = Figure(figsize=(2.4, 2.4))
    figure.subplots_adjust(0.02, 0.02, 0.98, 0.98)
    ax = figure.subplots()
    network.draw(ax) if isinstance(network, Graph) else network.draw([ax])
    ax.set_title("")
    return figure


def svg(figure: Figure, salt: str, *, standalone: bool = False) -> str:
    """The figure as SVG: text stays text, numbers are rounded, and nothing is fetched. Inside a page it is bare, and
    takes the colour of the text around it."""
    out = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": salt}):
        for part in () if standalone else (figure, *figure.axes):
            part.patch.set_alpha(0)
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None, "Type": None, "Format": None})
    text = re.sub(r"<metadata>.*?</metadata>", "", out.getvalue(), flags=re.S)
    text = re.sub(r"<[^>]*>", lambda tag: re.sub(r"-?\d+\.\d{2,}", _rounded, tag[0]), text)  # places, and no words
    text = re.sub(r"\n\s*", "\n", text)
    if standalone:
        return text
    text = re.sub(r'<g id="[^"]*"', "<g", text[text.index("<svg") :])  # names that other figures of the page have too
    text = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", text).replace("xlink:href", "href").replace(INK, "currentColor")
    opening = re.sub(r'\s(width|height)="[^"]*"', "", text[: text.index(">")])  # it is as wide as the page lets it be
    return opening + text[text.index(">") :]


def _rounded(number: re.Match[str]) -> str:
    return f"{float(number[0]):.1f}".removesuffix(".0")
