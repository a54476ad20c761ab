"""What commands share: options, exit codes, error messages, and JSON output."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable
from typing import Annotated, TypeVar

import typer
from rich.console import Console

from ..core._json import without_nan
from ._completions import completing

Answer = TypeVar("Answer")

OURS = ("decibel", "decibel_studies")
FAILED = 1
USAGE = 2
DIVERGED = 3
INTERRUPTED = 130

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
Task = Annotated[str, typer.Argument(help="A task of `decibel list`.", autocompletion=completing("tasks"))]
Method = Annotated[str, typer.Option(help="A method of `decibel list`.", autocompletion=completing("methods"))]
Graph = Annotated[
    str,
    typer.Option(
        help="A graph family of `decibel list`, such as torus or erdos_renyi:0.5.",
        autocompletion=completing("graphs"),
    ),
]
Nodes = Annotated[int, typer.Option(min=1, help="Number of nodes, if the task does not fix it.")]
Steps = Annotated[int, typer.Option(min=1, help="Iterations.")]
BatchSize = Annotated[int | None, typer.Option(min=1, help="Samples per node and step (default: all).")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of the partition and the batches.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", help="KEY=VALUE for the method, such as alpha=0.1; task.KEY=VALUE for the task."),
]


def console(*, quiet: bool = False) -> Console:
    return Console(highlight=False, quiet=quiet)


def complain(sentence: str) -> None:
    Console(stderr=True, highlight=False, markup=False).print(sentence, style="red", soft_wrap=True)


def emit(document: object) -> None:
    """One JSON document on standard output; numbers that are not finite become null."""
    typer.echo(json.dumps(without_nan(document), default=str, indent=2, ensure_ascii=False, allow_nan=False))


def or_exit(function: Callable[..., Answer], *arguments: object, usage_error: int = USAGE) -> Answer:
    """Calls a function; our own error messages end the command instead of showing a traceback.

    Args:
        function: the work of the command.
        arguments: its arguments.
        usage_error: the exit code of invalid input. Missing data, files, libraries and memory end with 1.
    """
    try:
        return function(*arguments)
    except KeyboardInterrupt:
        complain("Interrupted: only what was already saved is kept.")
        raise typer.Exit(INTERRUPTED) from None
    except Exception as error:
        code = _code(error, usage_error)
        if code is None:
            raise
        complain(str(error) if isinstance(error, OSError) and error.strerror else str((error.args or [error])[0]))
        raise typer.Exit(code) from None


def _code(error: Exception, usage_error: int) -> int | None:
    from ..tasks.data import DataError

    if isinstance(error, DataError | OSError | ImportError | MemoryError):
        return FAILED
    return usage_error if isinstance(error, ValueError | TypeError | KeyError) and _is_sentence(error) else None


def _is_sentence(error: Exception) -> bool:
    """Whether our packages raised it themselves; what comes out of other code is a bug, and shows its traceback."""
    frames = list(traceback.walk_tb(error.__traceback__))
    name = frames[-1][0].f_globals.get("__name__", "") if frames else ""
    return name.split(".")[0] in OURS
