"""Figures from traces."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from ..core._ledger import COSTS
from ..core._optional import optional
from ._trace import Trace

if TYPE_CHECKING:
    from matplotlib.figure import Figure

AXES = {
    "step": "iterations",
    "samples": "samples per node",
    "gradients": "gradients per node",
    "hvps": "Hessian-vector products per node",
    "jvps": "Jacobian-vector products per node",
    "rounds": "communication rounds",
    "bytes": "bytes sent per node",
    "seconds": "seconds",
}
LARGE = 10_000  # where the horizontal axis has 10 k instead
NAMES = {
    "stationarity": "stationarity ‖∇Φ(x̄)‖²",
    "kkt_residual": "KKT residual ‖x̄ − prox(x̄ − ∇Φ(x̄))‖",
    "lower_error": "lower error (1/N) Σ‖yᵢ − y*(x̄)‖²",
    "distance": "distance (1/N) Σ‖xᵢ − x*‖²",
    "upper": "upper loss f",
    "lower": "lower loss g",
    **{f"consensus_{level}": f"consensus error of {level}" for level in "xyz"},
    **{f"invariant_{level}": f"drift of the carry of {level}" for level in "xyz"},
}


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
            axis.set_yscale("log")
        if end >= LARGE:
            axis.xaxis.set_major_formatter(EngFormatter())
        axis.set(xlabel=AXES.get(against, against), ylabel=NAMES.get(column, column.replace("_", " ")))
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
