"""`decibel compare`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...core._json import JSON
from .._common import (
    DIVERGED,
    BatchSize,
    Graph,
    Json,
    Nodes,
    Seed,
    Steps,
    Task,
    complain,
    console,
    emit,
    or_exit,
)
from .._completions import completing

if TYPE_CHECKING:
    from ...results._result import Result


def compare(
    task: Task,
    methods: Annotated[
        list[str], typer.Argument(help="Methods of `decibel list`.", autocompletion=completing("methods"))
    ],
    graph: Graph = "ring",
    nodes: Nodes = 10,
    steps: Steps = 1000,
    batch_size: BatchSize = None,
    seed: Seed = 0,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="KEY=VALUE for all methods, METHOD.KEY=VALUE for one, task.KEY=VALUE."),
    ] = None,
    metric: Annotated[
        str | None, typer.Option(help="Metric of the figure (default: the nodes' accuracy, or the task's first).")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the figure and the traces.")] = Path("decibel-compare"),
    json: Json = False,
) -> None:
    """Run several methods on one task: a table, and a figure against iterations, bytes and seconds."""
    from .._config import resolve

    flags: dict[str, JSON] = {
        "task": task,
        "graph": graph,
        "nodes": nodes,
        "steps": steps,
        "batch_size": batch_size,
        "seed": seed,
        "out": str(out),
    }
    settings = or_exit(resolve, None, flags, set_ or [])

    def compare_methods() -> dict[str, Result]:
        from ...core._compilation import cache_compilations
        from .._comparison import compare

        cache_compilations()
        return compare(settings, methods, metric, console(quiet=json))

    results = or_exit(compare_methods)
    if json:
        rows = {
            name: {"settings": result.method.settings, "status": str(result.status), "last": result.trace.last}
            for name, result in results.items()
        }
        emit({"task": task, "graph": graph, "steps": steps, "methods": rows, "figure": str(out / "compare.png")})
    if all(result.status == "diverged" for result in results.values()):
        complain("All of them diverged: use smaller step sizes, such as --set alpha=….")
        raise typer.Exit(DIVERGED)
