"""`decibel run`."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated

import typer

from ...core._json import JSON
from .._common import DIVERGED, INTERRUPTED, BatchSize, Json, Set, complain, console, emit, or_exit
from .._completions import completing

if TYPE_CHECKING:
    from ...results._result import Result


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
            help="A graph family of `decibel list`, such as torus or erdos_renyi:0.5 (default: ring).",
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
    config: Annotated[
        Path | None, typer.Option(help="A TOML file with these options by name; flags override it.")
    ] = None,
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
    """Solve a task with a method on a graph; write a config, a log, a trace and a figure.

    Ctrl-C saves the run, and the same command with --resume continues it, with the numbers of an uninterrupted run.

    Exit codes: 0 done, 1 failed, 2 usage error, 3 diverged, 130 interrupted.
    """
    from .._config import resolve

    flags: dict[str, JSON] = {
        "task": task,
        "method": method,
        "graph": graph,
        "nodes": nodes,
        "steps": steps,
        "batch_size": batch_size,
        "seed": seed,
        "eval_every": eval_every,
        "out": None if out is None else str(out),
        "log": log or None,
        "checkpoint": None if checkpoint is None else str(checkpoint),
    }
    settings = or_exit(resolve, config, flags, set_ or [])

    def solve_task() -> tuple[ModuleType, Result]:
        from ...core._compilation import cache_compilations
        from .. import _task_run as task_run

        cache_compilations()
        output = console(quiet=json)
        result = task_run.run(settings, resume=resume, fresh=fresh, live=live, browser=browser, console=output)
        return task_run, result

    task_run, result = or_exit(solve_task)
    if json:
        emit(task_run.summary(settings, result))
    if result.status == "diverged":
        complain(f"Diverged, {result.message}: use smaller step sizes, such as --set alpha=….")
        raise typer.Exit(DIVERGED)
    if result.message:
        complain(f"Saved at step {result.step} of {settings.steps}. To resume: {task_run.resuming(settings)}")
        raise typer.Exit(INTERRUPTED)
