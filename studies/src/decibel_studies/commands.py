"""The commands `reproduce`, `report` and `league`, which `decibel` finds as entry points.

What is heavy to import is imported by the command that needs it, so that `decibel --help` is instant.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from decibel.cli import FAILED, completing, console, or_exit

from . import SIZES


def complete_size(incomplete: str) -> list[str]:
    return [size for size in SIZES if size.startswith(incomplete)]


def reproduce(
    names: Annotated[list[str], typer.Argument(help="Studies such as sparkle/hyper-cleaning, or all.")],
    size: Annotated[
        str,
        typer.Option(
            help="smoke (seconds), small (minutes on two cores) or full (a GPU).",
            autocompletion=complete_size,
        ),
    ] = "small",
    out: Annotated[Path | None, typer.Option(help="Folder for the results (default: decibel-results/SIZE).")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Repeat runs that already have results.")] = False,
    tune: Annotated[bool, typer.Option("--tune", help="First search step sizes, unless already searched.")] = False,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Studies to run in parallel.")] = 1,
    several: Annotated[bool, typer.Option("--several", hidden=True)] = False,  # this is one of those processes
) -> None:
    """Run a published experiment and test its claims.

    Existing results are reused, and an interrupted run continues.
    """
    from .report import draw
    from .testbed.runner import run

    folder, done = or_exit(
        lambda: run(names, size, out, fresh=fresh, tune=tune, jobs=jobs, several=several, console=console()),
        usage_error=FAILED,
    )
    for name in done:
        draw(name, folder)


def report(
    results: Annotated[
        Path | None,
        typer.Argument(help="Folder written by `decibel reproduce` (default: the newest in decibel-results)."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the pages.")] = Path("decibel-report"),
) -> None:
    """Write HTML pages from results: figures, claims with verdicts, settings."""
    from .report import write

    folder = or_exit(newest_results) if results is None else results
    pages = or_exit(write, folder, out, usage_error=FAILED)
    console().print(f"{len(pages)} pages; start with {out / 'index.html'}.", soft_wrap=True)


def league(
    out: Annotated[
        Path, typer.Option(help="Folder for the runs, which are continued, and for what is made from them.")
    ] = Path("decibel-league"),
    method: Annotated[
        list[str] | None,
        typer.Option(help="Only these methods, repeatable (default: all).", autocompletion=completing("methods")),
    ] = None,
    table_only: Annotated[
        bool, typer.Option("--table-only", help="Run nothing: write the table of what the folder holds.")
    ] = False,
) -> None:
    """Compare all methods on small tasks at equal iterations, bytes and seconds: a table, a figure, benchopt's data.

    About an hour on one core for all methods. An interrupted call continues where it was.
    """
    from .league.command import run

    shown = console()
    say = partial(shown.print, style="dim", soft_wrap=True, markup=False)
    written = or_exit(lambda: run(out, say=say, methods=method, table_only=table_only), usage_error=FAILED)
    rest = ", ".join(path.name for path in (written[0], *written[2:]))
    shown.print(f"The table is {written[1]}; beside it are {rest}.", soft_wrap=True)


def newest_results() -> Path:
    """The folder that `reproduce` wrote to last."""
    written = sorted(Path("decibel-results").glob("*/*/*/verdicts.json"), key=lambda path: path.stat().st_mtime)
    if not written:
        raise FileNotFoundError(
            "decibel-results holds no results: run `decibel reproduce NAME` first, or name the folder of --out."
        )
    return written[-1].parents[2]
