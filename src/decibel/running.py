"""`decibel run`: a task, a method and a graph by their names."""

from __future__ import annotations

import inspect
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from . import graphs, tasks
from .algorithms.catalog import CATALOG
from .graph import Graph, GraphSequence
from .ledger import COSTS
from .names import hint
from .result import Result
from .solver import solve

TASKS = {name: getattr(tasks, name) for name in tasks.__all__ if inspect.isfunction(getattr(tasks, name))}
GRAPHS = ("ring", "path", "star", "complete", "hypercube", "exponential", "one_peer_exponential", "adjusted_ring")


def run(
    task: str, method: str, graph: str, *, nodes: int, steps: int, batch_size: int | None, seed: int,
    settings: Sequence[str], out: Path, checkpoint: Path | None, resume: bool, console: Console,
) -> Result:  # fmt: skip
    """Solves a task and leaves its trace and figure in `out`."""
    for_task, for_method = _settings(settings)
    make = _named(TASKS, task, "task")
    if "nodes" in inspect.signature(make).parameters:
        for_task = {"nodes": nodes, **for_task}
    made = make(seed=seed, **for_task)
    algorithm = CATALOG[method](**for_method)
    # Some tasks know their nodes: a speaker each.
    nodes = made.nodes or nodes
    network = make_graph(graph, nodes)
    console.print(f"[bold]{made.name}[/] by {algorithm} over {network.name} of {nodes} nodes")
    for key, value in made.summary.items():
        console.print(f"  {key}: {value}", style="dim")
    result = solve(
        made.problem, algorithm, network, steps=steps, batch_size=batch_size, seed=seed, metrics=made.metrics,
        checkpoint=checkpoint, resume=resume,
    )  # fmt: skip
    console.print(_table(result))
    trace = result.trace.save(out / f"{task}-{method}.npz")
    figure = trace.with_suffix(".png")
    result.plot().savefig(figure, dpi=150)
    console.print(f"The trace is in {trace}, the figure in {figure}.", soft_wrap=True)
    return result


def make_graph(name: str, nodes: int) -> Graph | GraphSequence:
    """A family by name; a torus or grid of the squarest shape, and erdos_renyi as NAME:PROBABILITY."""
    family, _, argument = name.replace("-", "_").partition(":")
    if family in ("torus", "grid"):
        rows = max(r for r in range(1, int(nodes**0.5) + 1) if nodes % r == 0)
        return getattr(graphs, family)(rows, nodes // rows)
    if family == "erdos_renyi":
        return graphs.erdos_renyi(nodes, float(argument or 0.5))
    known = (*GRAPHS, "torus", "grid", "erdos_renyi")
    if family not in GRAPHS:
        raise ValueError(f"graph {name!r} is not known: {hint(family, known)}")
    return getattr(graphs, family)(nodes)


def _named(known: dict[str, Any], name: str, kind: str) -> Any:
    key = name.replace("-", "_")
    if key not in known:
        raise ValueError(f"{kind} {name!r} is not known: {hint(key, known)}")
    return known[key]


def _settings(pairs: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """KEY=VALUE for the method and task.KEY=VALUE for the task; values are JSON where they can be."""
    for_task: dict[str, Any] = {}
    for_method: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals:
            raise ValueError(f"--set {pair!r} must read KEY=VALUE, such as alpha=0.1 or task.corruption=0.4.")
        try:
            value = json.loads(text)
        except json.JSONDecodeError:
            value = text
        if key.startswith("task."):
            for_task[key.removeprefix("task.")] = value
        else:
            for_method[key] = value
    return for_task, for_method


def _table(result: Result) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("")
    table.add_column("at the start", justify="right")
    table.add_column(f"after {result.step} steps", justify="right")
    for name in result.trace:
        if name != "step":
            first, last = result.trace[name][0], result.trace[name][-1]
            table.add_row(name.replace("_", " "), "" if name in COSTS else f"{first:.4g}", f"{last:.6g}")
    return table
