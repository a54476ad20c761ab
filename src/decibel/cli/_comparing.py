"""`decibel compare` and `decibel tune`: several methods, or several step sizes, on one task."""

from __future__ import annotations

import json
import shlex
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

from rich.console import Console
from rich.table import Table

from ..core._json import JSON
from ..core._ledger import COSTS
from ..core._names import hint
from ..core._optional import optional
from ..methods._catalog import CATALOG
from ..results._plots import AXES, NAMES, spans_decades
from ..results._result import Result
from ..results._trace import Trace
from ..solver._solve import NonFiniteWarning, levels_of, solve, validate
from ..solver._tune import Tuned
from ..solver._tune import tune as search
from ._config import Config
from ._registry import make_graph, make_method, make_task

if TYPE_CHECKING:
    from matplotlib.figure import Figure

AGAINST = ("step", "bytes", "seconds")
SEPARATES = "node_accuracy"


def compare(config: Config, methods: Sequence[str], metric: str | None, console: Console) -> dict[str, Result]:
    """Runs every method on the same task, graph and samples; leaves a figure and the traces.

    A setting KEY goes to every method, METHOD.KEY to one of them."""
    if config.folder.exists() and not config.folder.is_dir():
        raise ValueError(f"--out {config.folder} is a file: name a folder.")
    if len(set(methods)) < len(methods):
        raise ValueError(f"METHODS names {next(m for m in methods if methods.count(m) > 1)!r} twice: name each once.")
    with optional("matplotlib", caller="decibel compare", extra="plot"):
        import matplotlib  # noqa: F401 - draws at the end
    own = {name for name, value in config.for_method.items() if isinstance(value, Mapping)}
    if stray := sorted(own.difference(methods)):
        raise ValueError(f"--set {stray[0]}.… is for a method that is not compared: name it among METHODS.")
    common = {name: value for name, value in config.for_method.items() if name not in own}
    given = {name: {**common, **cast("Mapping[str, JSON]", config.for_method.get(name, {}))} for name in methods}
    for name, settings in given.items():
        CATALOG[name](**settings)  # a wrong setting raises before any data are read
    task = make_task(config.task, config.nodes, config.seed, config.for_task)
    made = {name: make_method(name, settings, task) for name, settings in given.items()}
    network = make_graph(config.graph, task.nodes or config.nodes)
    for method in made.values():  # all before the first runs
        graphs = levels_of(task.problem, method, network)
        validate(task.problem, method, graphs, config.steps, config.batch_size, config.eval_every)
    console.print(f"[bold]{task.name}[/] over {network.name} of {network.nodes} nodes, {config.steps} steps each")
    results: dict[str, Result] = {}
    for name, method in made.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NonFiniteWarning)
            results[name] = solve(
                task.problem, method, network, steps=config.steps, batch_size=config.batch_size, seed=config.seed,
                eval_every=config.eval_every, metrics=task.metrics,
            )  # fmt: skip
        results[name].trace.save(config.folder / f"{name}.npz")
    chosen = _metric(results, metric)
    traces = {name: result.trace for name, result in results.items()}
    figure(traces, chosen).savefig(config.folder / "compare.png", dpi=150)
    console.print(table(results))
    console.print(f"The figure is {config.folder / 'compare.png'}, with the traces beside it.", soft_wrap=True)
    return results


def _metric(results: Mapping[str, Result], asked: str | None) -> str:
    columns = [name for name in next(iter(results.values())).trace if name not in COSTS]
    if asked is None:  # what separates methods: what each node has, where that is measured
        return SEPARATES if SEPARATES in columns else columns[0]
    if asked not in columns:
        raise ValueError(f"--metric {asked!r} is not measured here: {hint(asked, columns)}")
    return asked


def figure(traces: Mapping[str, Trace], metric: str) -> Figure:
    """The metric against iterations, bytes and seconds, on one scale."""
    with optional("matplotlib", caller="decibel compare", extra="plot"):
        from matplotlib.figure import Figure

    made = Figure(figsize=(4.4 * len(AGAINST), 3.6), layout="constrained")
    axes = made.subplots(1, len(AGAINST), sharey=True)
    for axis, against in zip(axes, AGAINST, strict=True):
        for name, trace in traces.items():
            axis.plot(trace[against], trace[metric], label=name, linewidth=1.6)
        if spans_decades([trace[metric] for trace in traces.values()]):
            axis.set_yscale("log")
        axis.set(xlabel=AXES[against])
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set(ylabel=NAMES.get(metric, metric.replace("_", " ")))
    axes[0].legend(frameon=False)
    return made


def table(results: Mapping[str, Result]) -> Table:
    first = next(iter(results.values())).trace
    columns = [name for name in first if name not in COSTS]
    made = Table(box=None, padding=(0, 1, 0, 0))
    made.add_column("method", no_wrap=True)
    for column in (*columns, "MB_sent", "seconds"):
        made.add_column(column.replace("_", "\n"), justify="right", no_wrap=True)
    for name, result in results.items():
        last = result.trace.last
        cells = [f"{last[column]:.4g}" for column in columns]
        costs = [f"{last['bytes'] / 1e6:.3g}", f"{last['seconds']:.2f}"]
        made.add_row(
            name + (f" [red](diverged after step {result.step})[/]" if result.status == "diverged" else ""),
            *cells,
            *costs,
        )
    return made


def tune(config: Config, *, budget: int, metric: str, seeds: int | None, console: Console) -> tuple[Tuned, str]:
    """The best step sizes found, and the command that runs with them."""
    task = make_task(config.task, config.nodes, config.seed, config.for_task)
    method = make_method(config.method, config.for_method, task)
    network = make_graph(config.graph, task.nodes or config.nodes)
    console.print(f"[bold]{task.name}[/]: about {budget} settings of {method.name}, {config.steps} steps each")
    found = search(
        task.problem, method, network, budget=budget, steps=config.steps, batch_size=config.batch_size, metric=metric,
        seeds=None if seeds is None else range(config.seed, config.seed + seeds), seed=config.seed,
    )  # fmt: skip
    shown = Table(box=None, padding=(0, 2, 0, 0))
    for heading in found.table[0]:
        shown.add_column(heading, justify="right")
    for row in found.table[:10]:
        shown.add_row(*(f"{value:.4g}" for value in row.values()))
    console.print(shown)
    return found, command(config, found)


def command(config: Config, found: Tuned) -> str:
    rates = {name: value for name, value in found.table[0].items() if name not in (found.metric, "spread")}
    given = {"method": config.method, "graph": config.graph, "nodes": config.nodes, "seed": config.seed}
    given |= {} if config.batch_size is None else {"batch-size": config.batch_size}
    words = [
        "decibel",
        "run",
        config.task,
        *(word for key, value in given.items() for word in (f"--{key}", str(value))),
    ]
    rest = {name: value for name, value in config.for_method.items() if name not in rates}
    pairs = {**rest, **{f"task.{name}": value for name, value in config.for_task.items()}}
    for name, value in {**rates, **pairs}.items():
        words += ["--set", f"{name}={value:.6g}" if isinstance(value, float) else f"{name}={_text(value)}"]
    return shlex.join(words)


def _text(value: JSON) -> str:
    return value if isinstance(value, str) else json.dumps(value)
