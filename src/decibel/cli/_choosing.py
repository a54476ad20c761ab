"""`graphs`, `advise` and `list`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from ._common import Json, console, emit, or_exit
from ._completions import completing

if TYPE_CHECKING:
    from ..solver.theory import Advice
    from ._surveying import Surveyed


def graphs(
    families: Annotated[
        list[str] | None,
        typer.Argument(help="Families of `decibel list` [default: eight].", autocompletion=completing("graphs")),
    ] = None,
    nodes: Annotated[int, typer.Option(min=1)] = 16,
    entries: Annotated[int, typer.Option(min=1, help="Numbers (float32) a node shares, for the bytes.")] = 1000,
    out: Annotated[Path | None, typer.Option(help="A file for the drawings and spectra, such as graphs.png.")] = None,
    json: Json = False,
) -> None:
    """Compare families of graphs: neighbours, how fast news spreads (1 − ρ), bytes; draw them with --out."""

    def look() -> tuple[list[Surveyed], Table, Path | None]:
        from ._surveying import save, survey, table

        made, rows = survey(families or [], nodes, entries)
        return rows, table(rows, entries), None if out is None else save(made, out)

    rows, shown, figure = or_exit(look)
    if json:
        emit({"nodes": nodes, "entries": entries, "graphs": rows, "figure": figure})
        return
    console().print(shown)
    if figure is not None:
        console().print(f"\nThe drawings and spectra are in {figure}.", soft_wrap=True)


def advise(
    nodes: Annotated[int, typer.Argument(min=1, help="How many nodes there are.")],
    degree: Annotated[int | None, typer.Option(min=1, help="Neighbours a node may have.")] = None,
    bytes_per_step: Annotated[float | None, typer.Option(min=0, help="What a node may send; needs --entries.")] = None,
    entries: Annotated[tuple[int, int] | None, typer.Option(metavar="P Q", help="Of x and of y.")] = None,
    personal: Annotated[bool, typer.Option("--personal", help="Each node keeps its own lower level.")] = False,
    single: Annotated[bool, typer.Option("--single", help="There is no lower level.")] = False,
    alike: Annotated[bool, typer.Option("--alike", help="All nodes' samples come from one distribution.")] = False,
    first_order: Annotated[bool, typer.Option("--first-order", help="Second derivatives cost too much.")] = False,
    json: Json = False,
) -> None:
    """Choose a method and graphs by what the papers prove."""

    def ask() -> tuple[Advice, dict[str, object]]:
        from ..solver.theory import advise
        from ._surveying import advice

        found = advise(
            nodes, degree=degree, bytes_per_step=bytes_per_step, dimension=entries, personal=personal, single=single,
            heterogeneous=not alike, second_derivatives=not first_order,
        )  # fmt: skip
        return found, advice(found)

    found, document = or_exit(ask)
    if json:
        emit(document)
    else:
        console().print(str(found), soft_wrap=True, markup=False)


def list_(json: Json = False) -> None:
    """Show the methods, strategies, graph families, metrics, tasks and studies there are."""
    from ..methods._catalog import CATALOG
    from ..results.metrics import METRICS
    from ..strategies._table import STRATEGIES
    from ..studies import NAMES
    from ._named import GRAPHS, TASKS

    rest = {"graphs": GRAPHS, "metrics": METRICS, "tasks": TASKS, "studies": NAMES}
    if json:
        methods = {name: {"form": entry.form, "summary": entry.summary} for name, entry in CATALOG.items()}
        emit(
            {"methods": methods, "strategies": list(STRATEGIES), **{kind: list(names) for kind, names in rest.items()}}
        )
        return
    mixtures = ["sparkle-LOWER", "sparkle-LOWER-UPPER", *(name for name in CATALOG if "sparkle" not in name)]
    table = Table(show_header=False, box=None, padding=(0, 2, 1, 0))
    for kind, names in {"methods": mixtures, "strategies": STRATEGIES, **rest}.items():
        table.add_row(f"[bold]{kind}", ", ".join(names))
    console().print(table)
