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
        typer.Argument(help="Families of `decibel list` (default: eight).", autocompletion=completing("graphs")),
    ] = None,
    nodes: Annotated[int, typer.Option(min=1)] = 16,
    entries: Annotated[int, typer.Option(min=1, help="Entries (float32) that a node sends, to count bytes.")] = 1000,
    out: Annotated[Path | None, typer.Option(help="A file for the drawings and spectra, such as graphs.png.")] = None,
    json: Json = False,
) -> None:
    """Compare families of graphs: neighbours, spectral gap 1 − ρ, bytes; draw them with --out."""

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
    nodes: Annotated[int, typer.Argument(min=1, help="Number of nodes.")],
    degree: Annotated[int | None, typer.Option(min=1, help="Largest number of neighbours of a node.")] = None,
    bytes_per_step: Annotated[
        float | None, typer.Option(min=0, help="Bytes a node may send per step; needs --entries.")
    ] = None,
    entries: Annotated[
        tuple[int, int] | None, typer.Option(metavar="P Q", help="Numbers of entries of x and of y.")
    ] = None,
    personal: Annotated[
        bool, typer.Option("--personal", help="The lower level is personal: each node has its own y.")
    ] = False,
    single: Annotated[bool, typer.Option("--single", help="There is no lower level.")] = False,
    homogeneous: Annotated[bool, typer.Option("--homogeneous", help="All nodes draw from one distribution.")] = False,
    first_order: Annotated[bool, typer.Option("--first-order", help="Avoid second derivatives.")] = False,
    json: Json = False,
) -> None:
    """Recommend a method and graphs, from the papers' theory."""

    def ask() -> tuple[Advice, dict[str, object]]:
        from ..solver.theory import advise
        from ._surveying import advice

        found = advise(
            nodes, degree=degree, bytes_per_step=bytes_per_step, dimension=entries, personal=personal, single=single,
            heterogeneous=not homogeneous, second_derivatives=not first_order,
        )  # fmt: skip
        return found, advice(found)

    found, document = or_exit(ask)
    if json:
        emit(document)
    else:
        console().print(str(found), soft_wrap=True, markup=False)


def list_(json: Json = False) -> None:
    """List methods, strategies, graph families, metrics, tasks and studies."""
    from ..methods._catalog import CATALOG
    from ..results.metrics import METRICS
    from ..strategies._table import STRATEGIES
    from ..studies import NAMES
    from ._registry import GRAPHS, TASKS

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
