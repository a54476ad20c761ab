"""`decibel advise`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from .._common import Json, console, emit, or_exit

if TYPE_CHECKING:
    from ...solver._plans import Plan
    from ...solver.theory import Advice

SHOWN = 8  # graphs


def advise(
    nodes: Annotated[int, typer.Argument(min=1, help="Number of nodes.")],
    degree: Annotated[
        int | None, typer.Option(min=1, help="The largest number of neighbours that a node may have in a step.")
    ] = None,
    bytes_per_step: Annotated[
        float | None, typer.Option(min=0, help="Bytes that a node may send per step; needs --entries.")
    ] = None,
    entries: Annotated[
        tuple[int, int] | None, typer.Option(metavar="P Q", help="How many numbers x and y have.")
    ] = None,
    personal: Annotated[
        bool, typer.Option("--personal", help="The lower level is personal: each node has its own y.")
    ] = False,
    single: Annotated[bool, typer.Option("--single", help="There is no lower level.")] = False,
    homogeneous: Annotated[bool, typer.Option("--homogeneous", help="All nodes draw from one distribution.")] = False,
    first_order: Annotated[bool, typer.Option("--first-order", help="Avoid second derivatives.")] = False,
    bandwidth: Annotated[float, typer.Option(help="Bytes per second that a node sends.")] = math.inf,
    latency: Annotated[
        float, typer.Option(help="Seconds that a message takes in addition to sending its bytes.")
    ] = 0.0,
    loss: Annotated[float, typer.Option(help="The share of messages that are lost, in one direction.")] = 0.0,
    one_way: Annotated[bool, typer.Option("--one-way", help="Links carry messages one way only.")] = False,
    slowest: Annotated[float, typer.Option(help="How many times slower the slowest node is.")] = 1.0,
    compute: Annotated[float, typer.Option(help="Seconds that a node computes in each step.")] = 0.0,
    condition: Annotated[float, typer.Option(help="For the time: the largest curvature over the smallest.")] = 10.0,
    target: Annotated[
        float, typer.Option(help="For the time: the share of the initial distance that may remain.")
    ] = 1e-3,
    json: Json = False,
) -> None:
    """Recommend a method and graphs by the papers' theory.

    With any of --bandwidth, --latency, --loss, --one-way, --slowest and --compute, rank them by predicted time instead.
    """

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

    def predict() -> tuple[Plan, ...]:
        from ...solver.theory import Links, plans

        links = Links(bandwidth, latency, loss, one_way, slowest)
        if links == Links() and not compute:
            return ()
        if entries is None:
            raise ValueError("a predicted time needs entries: give --entries P Q, the numbers of entries of x and y.")
        given = {"--personal": personal, "--homogeneous": homogeneous, "--first-order": first_order}
        if ignored := [option for option, there in given.items() if there]:
            raise ValueError(f"a predicted time does not depend on {', '.join(ignored)}: leave it out.")
        wishes = {"degree": degree, "condition": condition, "target": target, "single": single}
        return plans(nodes, entries, links, compute=compute, bytes_per_step=bytes_per_step, **wishes)

    if predicted := or_exit(predict):
        if json:
            emit({"nodes": nodes, "plans": [_numbers(plan) for plan in predicted]})
        else:
            console().print(_table(predicted))
        return
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


def _numbers(plan: Plan) -> dict[str, object]:
    return {**plan._asdict(), "graph": plan.graph.name}


def _table(plans: tuple[Plan, ...]) -> Table:
    """The fastest combination on each of the best graphs."""
    best: dict[str, Plan] = {}
    for plan in plans:
        best.setdefault(plan.graph.name, plan)
    rows = Table(box=None, padding=(0, 2, 0, 0))
    rows.add_column("graph", no_wrap=True)
    rows.add_column("strategy")
    for name in ("bits", "steps", "rounds", "exchanges", "MB", "seconds"):
        rows.add_column(name, justify="right")
    for plan in list(best.values())[:SHOWN]:
        bits = "–" if plan.bits is None else str(plan.bits)
        predicted = (f"{plan.exchanges:.0f}", f"{plan.bytes / 1e6:.3g}", f"{plan.seconds:.3g}")
        rows.add_row(plan.graph.name, plan.strategy, bits, str(plan.local_steps), str(plan.rounds), *predicted)
    return rows
