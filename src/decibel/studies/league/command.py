"""`decibel league`: runs what is missing, and writes the page, the figure, the data and benchopt's table."""

from __future__ import annotations

import dataclasses
import platform
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import jax
import numpy as np

from ... import __version__
from ...core._files import atomic_write
from ...core._optional import optional
from ...methods._catalog import CATALOG
from .benchopt import table
from .page import page, svg
from .run import Extremes, Record, Setup, league, levels
from .score import League, pack, read
from .tasks import DIVISIONS


def run(
    out: Path, *, say: Callable[[str], object], methods: list[str] | None = None, setup: Setup | None = None
) -> list[Path]:
    """The files written. Records are kept in `out/runs` one by one, so that an interrupted call continues."""
    setup = setup or Setup()
    with optional("matplotlib", caller="decibel league", extra="plot"):
        import matplotlib  # noqa: F401 - draws at the end
    for name in methods or []:
        _ = CATALOG[name]
    records: list[Record] = list(league(out, setup, say=say, methods=methods))
    found: list[Extremes] = [levels(out, one, task, setup) for one in DIVISIONS.values() for task in one.tasks]
    made = {
        "versions": f"Decibel {__version__}, JAX {jax.__version__}, Python {platform.python_version()}",
        "date": datetime.now(UTC).date().isoformat(),
        "machine": f"{platform.machine()}, one process on a CPU",
        "numpy": np.__version__,
    }
    path = out / "league.json"
    pack(path, made, dataclasses.asdict(setup), found, records)
    return [path, *write(path, out)]


def write(data: Path, out: Path) -> list[Path]:
    """The page, its figure and benchopt's table, from the data."""
    made = League(read(data))
    return [
        atomic_write(out / "league.md", page(made), durable=False),
        atomic_write(out / "figures" / "league.svg", svg(made), durable=False),
        atomic_write(out / "league.csv", table(made), durable=False),
    ]
