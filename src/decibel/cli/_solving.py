"""`run`, `compare`, `tune` and `watch`."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated

import typer

from ..core._json import JSON
from ._common import (
    DIVERGED,
    INTERRUPTED,
    BatchSize,
    Graph,
    Json,
    Nodes,
    Seed,
    Set,
    Steps,
    Task,
    complain,
    console,
    emit,
    or_exit,
)
from ._completions import completing

if TYPE_CHECKING:
    from ..results._result import Result
    from ..solver._tune import Tuned


def run(
    task: Annotated[
        str | None,
        typer.Argument(help="A task of `decibel list`, such as label_cleaning.", autocompletion=completing("tasks")),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            help="A method of `decibel list` (default: sparkle-ada-ed, which needs no step sizes; spdb for personal "
            "tasks).",
            autocompletion=completing("methods"),
        ),
    ] = None,
    graph: Annotated[
        str | None,
        typer.Option(
            help="A graph family of `decibel list`; erdos_renyi:0.5 takes a number (default: ring).",
            autocompletion=completing("graphs"),
        ),
    ] = None,
    nodes: Annotated[int | None, typer.Option(min=1, help="Number of nodes (default: 10).")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Iterations (default: 1000).")] = None,
    batch_size: BatchSize = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of the partition and the batches (default: 0).")] = None,
    eval_every: Annotated[
        int | None, typer.Option(min=1, help="Steps between rows of the trace (default: steps / 50).")
    ] = None,
    set_: Set = None,
    config: Annotated[Path | None, typer.Option(help="A TOML file with the same names; flags override it.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the outputs of the run (default: decibel-run).")] = None,
    log: Annotated[
        list[str] | None,
        typer.Option(
            help="Also write tensorboard, wandb (offline) or mlflow; repeat for several. jsonl is always written.",
            autocompletion=completing("logs"),
        ),
    ] = None,
    checkpoint: Annotated[Path | None, typer.Option(help="Folder for checkpoints (default: OUT/checkpoint).")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run from its last checkpoint.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start over in the folder of an interrupted run.")] = False,
    live: Annotated[bool, typer.Option("--live", help="Serve a live page of the run on this machine.")] = False,
    browser: Annotated[bool, typer.Option("--open", help="With --live: open the page.")] = False,
    json: Json = False,
) -> None:
    """Solve a task by a method over a graph; write a config, a log, a trace and a figure.

    Ctrl-C saves the run, and the same command with --resume continues it, with the numbers of an uninterrupted run.

    Exit codes: 0 done, 1 failed, 2 usage error, 3 diverged, 130 interrupted.
    """
    from ._config import resolve

    flags: dict[str, JSON] = {
        "task": task, "method": method, "graph": graph, "nodes": nodes, "steps": steps, "batch_size": batch_size,
        "seed": seed, "eval_every": eval_every, "out": None if out is None else str(out), "log": log or None,
        "checkpoint": None if checkpoint is None else str(checkpoint),
    }  # fmt: skip
    given = or_exit(resolve, config, flags, set_ or [])

    def solve_it() -> tuple[ModuleType, Result]:
        from . import _running as running
        from ._compilation import keep_compiled

        keep_compiled()
        said = console(json)
        return running, running.run(given, resume=resume, fresh=fresh, live=live, browser=browser, console=said)

    running, result = or_exit(solve_it)
    if json:
        emit(running.summary(given, result))
    if result.status == "diverged":
        complain(f"Diverged, {result.message}: use smaller step sizes, such as --set alpha=….")
        raise typer.Exit(DIVERGED)
    if result.message:
        complain(f"Saved at step {result.step} of {given.steps}. To resume: {running.resuming(given)}")
        raise typer.Exit(INTERRUPTED)


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
        list[str] | None, typer.Option("--set", help="KEY=VALUE for all, METHOD.KEY=VALUE for one, task.KEY=VALUE.")
    ] = None,
    metric: Annotated[
        str | None, typer.Option(help="Metric of the figure (default: the nodes' accuracy, or the task's first).")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the figure and the traces.")] = Path("decibel-compare"),
    json: Json = False,
) -> None:
    """Run several methods on one task: a table, and a figure against iterations, bytes and seconds."""
    from ._config import resolve

    flags: dict[str, JSON] = {
        "task": task, "graph": graph, "nodes": nodes, "steps": steps, "batch_size": batch_size, "seed": seed,
        "out": str(out),
    }  # fmt: skip
    given = or_exit(resolve, None, flags, set_ or [])

    def compare_them() -> dict[str, Result]:
        from ._comparing import compare
        from ._compilation import keep_compiled

        keep_compiled()
        return compare(given, methods, metric, console(json))

    results = or_exit(compare_them)
    if json:
        rows = {
            name: {"settings": result.method.settings, "status": str(result.status), "last": result.trace.last}
            for name, result in results.items()
        }
        emit({"task": task, "graph": graph, "steps": steps, "methods": rows, "figure": str(out / "compare.png")})
    if all(result.status == "diverged" for result in results.values()):
        complain("All of them diverged: use smaller step sizes, such as --set alpha=….")
        raise typer.Exit(DIVERGED)


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
        int | None, typer.Option(min=1, help="Seeds per candidate (default: 2, or 1 where nothing is random).")
    ] = None,
    budget: Annotated[int, typer.Option(min=1, help="Approximate number of candidates.")] = 32,
    metric: Annotated[str, typer.Option(help="Metric to minimize, one of `decibel list`.")] = "upper",
    set_: Set = None,
    json: Json = False,
) -> None:
    """Search for a method's step sizes on a task, all candidates in one compiled run."""
    from ._config import resolve

    flags: dict[str, JSON] = {
        "task": task, "method": method, "graph": graph, "nodes": nodes, "steps": steps, "batch_size": batch_size,
        "seed": seed,
    }  # fmt: skip
    given = or_exit(resolve, None, flags, set_ or [], "sparkle-ed")

    def search() -> tuple[Tuned, str]:
        from ._comparing import tune
        from ._compilation import keep_compiled

        keep_compiled()
        return tune(given, budget=budget, metric=metric, seeds=seeds, console=console(json))

    found, command = or_exit(search)
    if json:
        best = {name: value for name, value in found.table[0].items() if name not in (found.metric, "spread")}
        document = {"method": given.method, "settings": best, "metric": found.metric, "score": found.score}
        emit({**document, "table": list(found.table), "command": command})
    else:
        console().print(f"\n{command}", soft_wrap=True, markup=False)


def watch(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run, such as decibel-run.")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on this machine; 0 takes a free one.")] = 0,
) -> None:
    """Serve a live page of a run, in progress or finished."""
    if not folder.is_dir():
        complain(f"RUN {folder} is not a folder: give the --out folder of `decibel run`.")
        raise typer.Exit(2)
    from ..results.live import watch

    or_exit(watch, folder, port)
