"""`demo`, `reproduce`, `report` and `league`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ._common import FAILED, console, or_exit
from ._completions import completing


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the figure.")] = Path("decibel-demo"),
    seed: Annotated[int, typer.Option(help="Seed of the partition, the corruption and the batches.", min=0)] = 0,
    quick: Annotated[bool, typer.Option("--quick", help="A tenth of the iterations, as a quick check.")] = False,
) -> None:
    """Clean corrupted labels over a ring of ten nodes, by four methods side by side: a table and a figure."""
    from ._compilation import keep_compiled

    keep_compiled()
    from ._demo import run

    or_exit(lambda: run(out, seed=seed, quick=quick, console=console()))


def reproduce(
    names: Annotated[list[str], typer.Argument(help="Studies such as sparkle/hyper-cleaning, or all.")],
    size: Annotated[
        str,
        typer.Option(
            help="smoke (seconds), small (minutes on two cores) or full (a GPU).",
            autocompletion=completing("sizes"),
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
    from ..studies.command import run
    from ..studies.report import draw

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
    from ..studies.report import write

    found = or_exit(_newest) if results is None else results
    pages = or_exit(write, found, out, usage_error=FAILED)
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
    from ..studies.league.command import run

    shown = console()
    say = lambda text: shown.print(text, style="dim", soft_wrap=True, markup=False)  # noqa: E731
    written = or_exit(lambda: run(out, say=say, methods=method, table_only=table_only), usage_error=FAILED)
    rest = ", ".join(path.name for path in (written[0], *written[2:]))
    shown.print(f"The table is {written[1]}; beside it are {rest}.", soft_wrap=True)


def _newest() -> Path:
    """The folder that `reproduce` wrote to last."""
    written = sorted(Path("decibel-results").glob("*/*/*/verdicts.json"), key=lambda path: path.stat().st_mtime)
    if not written:
        raise FileNotFoundError(
            "decibel-results holds no results: run `decibel reproduce NAME` first, or name the folder of --out."
        )
    return written[-1].parents[2]
