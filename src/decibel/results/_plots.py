"""Figures from traces."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Protocol, cast

import numpy as np

from ..core._optional import optional
from ._trace import Trace
from .metrics import COSTS, LABELS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LARGE = 10_000  # where the horizontal axis has 10 k instead


class Traced(Protocol):
    """A result, of this process or from a file."""

    @property
    def method(self) -> object: ...

    @property
    def trace(self) -> Trace: ...


def plot(results: Traced | Iterable[Traced] | Mapping[str, Traced], *columns: str, against: str = "step") -> Figure:
    """Overlays the traces of several runs: one panel for each column, one curve for each run.

    Args:
        results: results of `solve` or of `Result.load`, or a dictionary of them with names for the legend;
            without names they are labelled by their methods.
        *columns: names of columns; by default all metrics.
        against: the column of the horizontal axis: `"step"` or a cost such as `"bytes"`.

    Returns:
        A matplotlib figure.
    """
    named = _named(results)
    if not named:
        raise ValueError("there is nothing to plot: give results of db.solve.")
    for label, result in named.items():
        if not isinstance(getattr(result, "trace", None), Trace):
            raise TypeError(f"{label} is a {type(result).__name__}: give results of db.solve or db.Result.load.")
    return plot_traces({label: result.trace for label, result in named.items()}, *columns, against=against)


def _named(results: Traced | Iterable[Traced] | Mapping[str, Traced]) -> dict[str, Traced]:
    if isinstance(results, Mapping):
        return dict(cast("Mapping[str, Traced]", results))
    single = hasattr(results, "trace") or not isinstance(results, Iterable)
    several = [cast(Traced, results)] if single else list(cast("Iterable[Traced]", results))
    named: dict[str, Traced] = {}
    for number, result in enumerate(several, 1):
        method = getattr(result, "method", f"result {number}")
        label = str(getattr(method, "name", method))
        named[f"{label}, {number}" if label in named else label] = result
    return named


def plot_traces(traces: Mapping[str, Trace], *columns: str, against: str = "step") -> Figure:
    """One panel per column, one curve per trace; logarithmic where values are positive and span decades."""
    with optional("matplotlib", caller="result.plot", extra="plot"):
        from matplotlib.ticker import EngFormatter

        from ..core._figure import Figure

    first = next(iter(traces.values()))
    columns = columns or tuple(name for name in first if name not in COSTS)
    if not columns:
        raise ValueError("there is nothing to plot: solve with metrics, or name columns of the trace.")
    wide = min(len(columns), 3)
    tall = -(-len(columns) // wide)
    figure = Figure(figsize=(4.6 * wide, 3.4 * tall), layout="constrained")
    axes = figure.subplots(tall, wide, squeeze=False).ravel()
    end = max((float(trace[against][-1]) for trace in traces.values() if trace.rows), default=0.0)
    for axis, column in zip(axes, columns, strict=False):
        for label, trace in traces.items():
            axis.plot(trace[against], trace[column], label=label, linewidth=1.6)
        if spans_decades([trace[column] for trace in traces.values()]):
            axis.set_yscale("log", nonpositive="mask")
        if end >= LARGE:
            axis.xaxis.set_major_formatter(EngFormatter(sep=""))
        axis.set(xlabel=LABELS.get(against, against), ylabel=LABELS.get(column, column.replace("_", " ")))
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    for axis in axes[len(columns) :]:
        axis.set_visible(False)
    if len(traces) > 1:
        axes[0].legend(frameon=False)
    return figure


def spans_decades(series: list[np.ndarray]) -> bool:
    values = np.concatenate(series)
    values = values[np.isfinite(values)]
    positive = values[values > 0]
    # A consensus error starts at exactly zero; the logarithmic axis leaves that point out.
    return bool(positive.size and (values >= 0).all() and positive.max() > 30 * positive.min())
