"""`decibel league`: runs what is missing, and writes the page, the figure, the data and benchopt's table."""

from __future__ import annotations

import dataclasses
import json
import platform
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import jax
import numpy as np

from decibel import CATALOG, __version__

from ..files import write_file
from .benchopt import table
from .page import page, standings, svg
from .run import Extremes, Setup, collect, keep, levels, place
from .run import league as run_missing
from .score import League, pack, read
from .tasks import DIVISIONS


def run(
    out: Path,
    *,
    say: Callable[[str], object],
    methods: list[str] | None = None,
    setup: Setup | None = None,
    table_only: bool = False,
) -> list[Path]:
    """The files written, from all records that `out` holds. Records are kept in `out/runs` one by one, so that an
    interrupted call continues; a `league.json` there is continued too. `table_only` runs nothing."""
    setup = setup or Setup()
    for name in methods or []:
        _ = CATALOG[name]
    path = out / "league.json"
    if path.exists():
        unpack(path, out, setup, other_machines=table_only)
    if not table_only:
        deque(run_missing(out, setup, say=say, methods=methods), maxlen=0)
    records = collect(out, setup)
    if not records:
        raise ValueError(f"--out {out} holds no records of this set-up: run `decibel league` without --table-only.")
    extremes: list[Extremes] = [
        levels(out, division, task, setup) for division in DIVISIONS.values() for task in division.tasks
    ]
    made = (
        read(path)["made"]
        if table_only and path.exists()
        else {
            "versions": f"Decibel {__version__}, JAX {jax.__version__}, Python {platform.python_version()}",
            "date": datetime.now(UTC).date().isoformat(),
            "machine": _machine(),
            "numpy": np.__version__,
        }
    )
    pack(path, made, dataclasses.asdict(setup), extremes, records)
    return [path, *write(path, out)]


def _machine() -> str:
    return f"{platform.machine()}, one process on a CPU"


def unpack(data: Path, out: Path, setup: Setup, *, other_machines: bool = False) -> None:
    """Puts the records of a packed file where a run looks for them, unless there are newer ones."""
    packed = read(data)
    if packed["setup"] != json.loads(json.dumps(dataclasses.asdict(setup))):
        return
    made_on = packed["made"]["machine"]
    if not other_machines and made_on != _machine():
        raise ValueError(
            f"--out {out} was made on another machine ({made_on}; here: {_machine()}), whose seconds cannot be "
            "compared with those here: give another folder."
        )
    for record in packed["records"]:
        path = place(out, record["division"], record["task"], record["method"])
        if not path.exists():
            keep(path, setup, record)


def write(data: Path, out: Path) -> list[Path]:
    """The page, its figure and benchopt's table, from the data."""
    league = League(read(data))
    return [
        write_file(out / "league.md", page(league)),
        write_file(out / "figures" / "league.svg", svg(league)),
        write_file(out / "standings.csv", standings(league)),
        write_file(out / "league.csv", table(league)),
    ]
