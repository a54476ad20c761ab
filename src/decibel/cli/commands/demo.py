"""`decibel demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .._common import console, or_exit


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the figure.")] = Path("decibel-demo"),
    seed: Annotated[int, typer.Option(help="Seed of the partition, the corruption and the batches.", min=0)] = 0,
    quick: Annotated[bool, typer.Option("--quick", help="A tenth of the iterations, as a quick check.")] = False,
) -> None:
    """Clean corrupted labels on a ring of ten nodes, with four methods side by side: a table and a figure."""
    from ...core._compilation import cache_compilations

    cache_compilations()
    from .._cleaning_demo import run

    or_exit(lambda: run(out, seed=seed, quick=quick, console=console()))
