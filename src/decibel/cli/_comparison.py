"""The work of `decibel compare`: several methods on one task."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from ..core._json import JSON
from ..core._names import hint
from ..core._optional import optional
from ..methods._catalog import CATALOG
from ..results._plots import spans_decades
from ..results._result import Result
from ..results._trace import Trace
from ..results.metrics import COSTS, LABELS
from ..solver._solve import NonFiniteWarning, solve
from ..solver._validate import graph_per_level, validate
from ._config import Config
from ._registry import make_graph, make_method, make_task

if TYPE_CHECKING:
    from matplotlib.figure import Figure

AGAINST = ("step", "bytes", "seconds")
SEPARATES = "node_accuracy"


def compare(config: Config, methods: Sequence[str], metric: str | None, console: Console) -> dict[str, Result]:
    """Runs every method on the same task, graph and samples; saves a figure and the traces.

    A setting KEY goes to every method, METHOD.KEY to one of them.
    """
    if config.folder.exists() and not config.folder.is_dir():
        raise ValueError(f"--out {config.folder} is a file: name a folder.")
    if len(set(methods)) < len(methods):
        raise ValueError(f"METHODS names {next(m for m in methods if methods.count(m) > 1)!r} twice: name each once.")
    with optional("matplotlib", caller="decibel compare", extra="plot"):
        import matplotlib  # noqa: F401 - draws at the end
    settings = {name: _settings(config, name, methods) for name in methods}
    for name in methods:
        CATALOG[name](**settings[name])  # a wrong setting raises before any data are read
    task = make_task(config.task, config.nodes, config.seed, config.for_task)
    algorithms = {name: make_method(name, settings[name], task) for name in methods}
    network = make_graph(config.graph, task.nodes or config.nodes)
    for method in algorithms.values():  # all before the first runs
        graphs = graph_per_level(task.problem, method, network)
        validate(task.problem, method, graphs, config.steps, config.batch_size, config.eval_every)
    console.print(f"[bold]{task.name}[/] over {network.name} of {network.nodes} nodes, {config.steps} steps each")
    results: dict[str, Result] = {}
    for name, method in algorithms.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NonFiniteWarning)
            results[name] = solve(
                task.problem,
                method,
                network,
                steps=config.steps,
                batch_size=config.batch_size,
                seed=config.seed,
                eval_every=config.eval_every,
                metrics=task.metrics,
            )
        results[name].trace.save(config.folder / f"{name}.npz")
    chosen = _metric(results, metric)
    traces = {name: result.trace for name, result in results.items()}
    figure(traces, chosen).savefig(config.folder / "compare.png", dpi=150)
    console.print(table(results))
    console.print(f"The figure is {config.folder / 'compare.png'}, with the traces beside it.", soft_wrap=True)
    return results


def _settings(config: Config, method: str, methods: Sequence[str]) -> dict[str, JSON]:
    """The settings of one method: those for all, and over them its own."""
    by_method = {name: value for name, value in config.for_method.items() if isinstance(value, Mapping)}
    if unknown := sorted(by_method.keys() - set(methods)):
        raise ValueError(f"--set {unknown[0]}.… is for a method that is not compared: name it among METHODS.")
    common = {name: value for name, value in config.for_method.items() if name not in by_method}
    return {**common, **by_method.get(method, {})}


def _metric(results: Mapping[str, Result], requested: str | None) -> str:
    columns = [name for name in next(iter(results.values())).trace if name not in COSTS]
    if requested is None:  # the models of the single nodes separate methods best
        return SEPARATES if SEPARATES in columns else columns[0]
    if requested not in columns:
        raise ValueError(f"--metric {requested!r} is not measured here: {hint(requested, columns)}")
    return requested


def figure(traces: Mapping[str, Trace], metric: str) -> Figure:
    """The metric against iterations, bytes and seconds, on one scale."""
    with optional("matplotlib", caller="decibel compare", extra="plot"):
        from matplotlib.figure import Figure

    comparison = Figure(figsize=(4.4 * len(AGAINST), 3.6), layout="constrained")
    axes = comparison.subplots(1, len(AGAINST), sharey=True)
    for axis, against in zip(axes, AGAINST, strict=True):
        for name, trace in traces.items():
            axis.plot(trace[against], trace[metric], label=name, linewidth=1.6)
        if spans_decades([trace[metric] for trace in traces.values()]):
            axis.set_yscale("log")
        axis.set(xlabel=LABELS[against])
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set(ylabel=LABELS.get(metric, metric.replace("_", " ")))
    axes[0].legend(frameon=False)
    return comparison


def table(results: Mapping[str, Result]) -> Table:
    first = next(iter(results.values())).trace
    columns = [name for name in first if name not in COSTS]
    rows = Table(box=None, padding=(0, 1, 0, 0))
    rows.add_column("method", no_wrap=True)
    for column in (*columns, "MB_sent", "seconds"):
        rows.add_column(column.replace("_", "\n"), justify="right", no_wrap=True)
    for name, result in results.items():
        last = result.trace.last
        cells = [f"{last[column]:.4g}" for column in columns]
        costs = [f"{last['bytes'] / 1e6:.3g}", f"{last['seconds']:.2f}"]
        rows.add_row(
            name + (f" [red](diverged after step {result.step})[/]" if result.status == "diverged" else ""),
            *cells,
            *costs,
        )
    return rows
