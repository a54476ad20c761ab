"""`decibel watch`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .._common import USAGE, complain, or_exit


def watch(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run, such as decibel-run.")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on this machine; 0 takes a free one.")] = 0,
) -> None:
    """Serve a live page of a run, in progress or finished."""
    if not folder.is_dir():
        complain(f"RUN {folder} is not a folder: give the --out folder of `decibel run`.")
        raise typer.Exit(USAGE)
    from ...results.live import watch

    or_exit(watch, folder, port)
