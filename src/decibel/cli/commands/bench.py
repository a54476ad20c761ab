"""`decibel bench`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from .._common import Json, console, emit


def bench(
    name: Annotated[str, typer.Argument(help="In a checkout: a benchmark in benchmarks/.")] = "step",
    nodes: Annotated[
        int, typer.Option(min=1, help="Elsewhere: the number of nodes of the ring on which it is measured.")
    ] = 16,
    json: Json = False,
) -> None:
    """Measure the time of a step on this machine: the repository's benchmarks in a checkout, a short one elsewhere."""
    if Path("benchmarks/__main__.py").is_file() and not json:
        raise typer.Exit(subprocess.call([sys.executable, "-m", "benchmarks", name]))
    from .._step_times import measure_steps

    times = measure_steps(nodes)
    if json:
        emit(times)
        return
    for method, microseconds in times["microseconds_per_step"].items():
        console().print(f"{method:16} {microseconds:10.1f} µs per step on a ring of {nodes} nodes")
