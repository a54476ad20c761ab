"""`decibel tune`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ...core._json import JSON
from .._common import BatchSize, Graph, Json, Nodes, Seed, Set, Steps, Task, console, emit, or_exit
from .._completions import completing

if TYPE_CHECKING:
    from ...solver._tune import Tuned


def tune(
    task: Task,
    method: Annotated[
        str | None,
        typer.Option(
            help="A method of `decibel list` (default: sparkle-ed; spdb for personal tasks).",
            autocompletion=completing("methods"),
        ),
    ] = None,
    graph: Graph = "ring",
    nodes: Nodes = 10,
    steps: Steps = 500,
    batch_size: BatchSize = None,
    seed: Seed = 0,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Seeds per candidate (default: 2, or 1 if nothing is random).")
    ] = None,
    budget: Annotated[int, typer.Option(min=1, help="Approximate number of candidates.")] = 32,
    metric: Annotated[str, typer.Option(help="Metric to minimize, one of `decibel list`.")] = "upper",
    set_: Set = None,
    json: Json = False,
) -> None:
    """Search for a method's step sizes on a task, all candidates in one compiled run."""
    from .._config import resolve

    flags: dict[str, JSON] = {
        "task": task,
        "method": method,
        "graph": graph,
        "nodes": nodes,
        "steps": steps,
        "batch_size": batch_size,
        "seed": seed,
    }
    settings = or_exit(resolve, None, flags, set_ or [], "sparkle-ed")

    def search() -> tuple[Tuned, str]:
        from ...core._compilation import cache_compilations
        from .._tuning import tune

        cache_compilations()
        return tune(settings, budget=budget, metric=metric, seeds=seeds, console=console(quiet=json))

    tuned, command = or_exit(search)
    if json:
        document = {
            "method": settings.method,
            "settings": tuned.best_rates,
            "metric": tuned.metric,
            "score": tuned.score,
            "table": list(tuned.table),
            "command": command,
        }
        emit(document)
    else:
        console().print(f"\n{command}", soft_wrap=True, markup=False)
