"""`decibel graphs`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from .._common import Json, console, emit, or_exit
from .._completions import completing

if TYPE_CHECKING:
    from .._graph_survey import Surveyed


def graphs(
    families: Annotated[
        list[str] | None,
        typer.Argument(help="Families of `decibel list` (default: eight).", autocompletion=completing("graphs")),
    ] = None,
    nodes: Annotated[int, typer.Option(min=1, help="Number of nodes.")] = 16,
    entries: Annotated[int, typer.Option(min=1, help="Numbers (float32) in a message, to count bytes.")] = 1000,
    out: Annotated[Path | None, typer.Option(help="A file for drawings and eigenvalues, such as graphs.png.")] = None,
    json: Json = False,
) -> None:
    """Compare families of graphs: neighbours, spectral gap 1 − ρ, bytes; draw them with --out."""

    def compare() -> tuple[list[Surveyed], Table, Path | None]:
        from .._graph_survey import save, survey, table

        topologies, rows = survey(families or [], nodes, entries)
        return rows, table(rows, entries), None if out is None else save(topologies, out)

    rows, overview, figure = or_exit(compare)
    if json:
        emit({"nodes": nodes, "entries": entries, "graphs": rows, "figure": figure})
        return
    console().print(overview)
    if figure is not None:
        console().print(f"\nThe drawings and spectra are in {figure}.", soft_wrap=True)
