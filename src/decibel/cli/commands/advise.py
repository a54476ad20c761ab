"""`decibel advise`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from .._common import Json, console, emit, or_exit

if TYPE_CHECKING:
    from ...solver.theory import Advice


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

    def ask() -> Advice:
        from ...solver.theory import advise

        return advise(
            nodes,
            degree=degree,
            bytes_per_step=bytes_per_step,
            dimension=entries,
            personal=personal,
            single=single,
            heterogeneous=not homogeneous,
            second_derivatives=not first_order,
        )

    advice = or_exit(ask)
    if json:
        emit(_document(advice))
    else:
        console().print(str(advice), soft_wrap=True, markup=False)


def _document(advice: Advice) -> dict[str, object]:
    return {
        "method": advice.method,
        "settings": advice.settings,
        "graphs": {level: getattr(advice.graphs, level).name for level in ("x", "y", "z")},
        "nodes": advice.graphs.nodes,
        "transient": advice.transient,
        "bytes_per_step": advice.bytes_per_step,
        "reasons": list(advice.reasons),
    }
