"""`decibel data`: list, fetch and verify."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Table

from .._common import FAILED, Json, console, emit, or_exit

app = typer.Typer(help="Find, fetch and verify datasets.", no_args_is_help=True)


@app.command("list")
def list_(json: Json = False) -> None:
    """List all datasets, and where they are on this machine."""
    from ...tasks.data import available, cache_folder

    rows = or_exit(available)
    if json:
        emit([asdict(row) for row in rows])
        return
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("name", "what it is", "where", "size", "licence"):
        table.add_column(heading, justify="right" if heading == "size" else "left", overflow="fold")
    for row in rows:
        state = {"missing": "[dim]missing", "partly": "[yellow]partly"}.get(row.state, f"[green]{row.state}")
        fetchable = row.state == "missing" and not row.downloadable
        table.add_row(
            row.name,
            row.title,
            state + (" (manual download)" if fetchable else ""),
            f"{row.bytes / 1e6:.1f} MB" if row.bytes else "",
            row.licence,
        )
    console().print(table)
    console().print(f"\nLooked in $DECIBEL_DATA, then in {cache_folder()}.", soft_wrap=True, highlight=False)


@app.command("fetch")
def fetch(name: Annotated[str, typer.Argument(help="A name of `decibel data list`.")]) -> None:
    """Download a dataset to the cache and verify it."""
    from ...tasks.data import fetch

    paths = or_exit(fetch, name)
    for path in paths:
        typer.echo(path)
    if not paths:
        typer.echo(f"{name} comes with scikit-learn: nothing to fetch.")


@app.command("verify")
def verify(
    name: Annotated[str | None, typer.Argument(help="One dataset (default: all on this machine).")] = None,
) -> None:
    """Compare the files on this machine with their published checksums."""
    from ...tasks.data import verify

    checks = or_exit(verify, name)
    for check in checks:
        if check.state != "missing" or name is not None:
            typer.echo(f"{check.state:8} {check.name:24} {check.detail or check.path}")
    present = [check for check in checks if check.state != "missing"]
    damaged = [check for check in present if check.state == "damaged"]
    typer.echo(f"{len(present)} files found, {len(damaged)} damaged.")
    if damaged or (name is not None and len(present) < len(checks)):
        raise typer.Exit(FAILED)
