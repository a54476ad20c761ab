"""What commands share: options, exit codes, error messages, and JSON output."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Annotated, TypeVar

import typer
from rich.console import Console

from ..core._json import JSON
from ._completions import completing

Answer = TypeVar("Answer")

FAILED, USAGE, DIVERGED, INTERRUPTED = 1, 2, 3, 130

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
Task = Annotated[
    str, typer.Argument(help="A task of `decibel list`.", autocompletion=completing("tasks"))
]  # fmt: skip
Method = Annotated[
    str, typer.Option(help="A method of `decibel list`.", autocompletion=completing("methods"))
]  # fmt: skip
Graph = Annotated[
    str,
    typer.Option(
        help="A graph family of `decibel list`; erdos_renyi:0.5 takes a number.",
        autocompletion=completing("graphs"),
    ),
]
Nodes = Annotated[int, typer.Option(min=1, help="Number of nodes, if the task does not fix it.")]
Steps = Annotated[int, typer.Option(min=1, help="Iterations.")]
BatchSize = Annotated[int | None, typer.Option(min=1, help="Samples per node and step (default: all).")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of the partition and the batches.")]
Set = Annotated[list[str] | None, typer.Option("--set", help="KEY=VALUE: a step size, or task.KEY=VALUE.")]


def console(quiet: bool = False) -> Console:
    return Console(highlight=False, quiet=quiet)


def complain(sentence: str) -> None:
    Console(stderr=True, highlight=False, markup=False).print(sentence, style="red", soft_wrap=True)


def emit(document: object) -> None:
    """One JSON document on standard output; what is not finite is null."""
    typer.echo(json.dumps(_plain(document), indent=2, ensure_ascii=False, allow_nan=False))


def _plain(value: object) -> JSON:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, str | int) else str(value)


def or_exit(function: Callable[..., Answer], *arguments: object, usage_error: int = USAGE) -> Answer:
    """Errors that are sentences to the user end the command instead of showing a traceback: `usage_error` for what was
    usage error, 1 for data, files, libraries and memory that are not there."""
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
    return usage_error if isinstance(error, ValueError | TypeError | KeyError) else None
