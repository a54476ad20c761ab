"""`python -m benchmarks`: what an iteration costs, against a scan by hand and against its matrix products."""

from __future__ import annotations

import argparse
import json
import os
import platform
from pathlib import Path
from typing import Any

import jax
from rich.console import Console
from rich.table import Table

from .cases import label_cleaning, regression
from .contest import contest


def cases(full: bool) -> list[tuple[Any, bool, int]]:
    """(case, parallel, steps per turn)"""
    small, mlp = regression("small, 20 nodes", 20, 10, 10, 100), label_cleaning()
    listed = [(case, parallel, steps) for case, steps in ((small, 2000), (mlp, 5)) for parallel in (True, False)]
    for nodes, steps in ((10, 1000), (100, 200), (1000, 30), (10_000, 5)):
        case = regression(f"ring of {nodes:,}", nodes, 100, 10, 20)
        listed += [(case, parallel, steps) for parallel in ((True, False) if full else (True,))]
    return listed


HEADINGS = ("case", "order", "ours", "by hand", "products", "÷ hand", "÷ products", "state", "memory", "by hand")


def table(rows: list[dict[str, Any]]) -> Table:
    shown = Table(title="SPARKLE-ED on a ring, float32: µs per iteration; memory in sizes of the state")
    for name in HEADINGS:
        shown.add_column(name, justify="left" if name in ("case", "order") else "right")
    for row in rows:
        times = [f"{row['µs'][name]:,.0f}" for name in ("ours", "by_hand", "products")]
        ratios = [f"{row['against_hand']:.2f}", f"{row['against_products']:.2f}"]
        memory = [f"{row['state_bytes'] / 1e6:.2f} MB", f"{row['memory']:.2f}", f"{row['memory_by_hand']:.2f}"]
        shown.add_row(row["case"], row["order"], *times, *ratios, *memory)
    return shown


def main() -> None:
    options = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    options.add_argument("--full", action="store_true", help="both orders everywhere and more turns")
    options.add_argument("--json", type=Path, metavar="PATH", help="also write the rows there")
    given, console = options.parse_args(), Console()
    if not console.is_terminal:
        console.width = 120
    rows = []
    for case, parallel, steps in cases(given.full):
        with console.status(f"{case.name}, {'parallel' if parallel else 'sequential'}"):
            rows.append(contest(case, parallel, steps, repetitions=21 if given.full else 7))
    console.print(table(rows))
    if given.json:
        place = {"device": jax.devices()[0].device_kind, "cores": os.cpu_count(), "jax": jax.__version__}
        given.json.write_text(
            json.dumps({"place": place | {"python": platform.python_version()}, "rows": rows}, indent=1)
        )


if __name__ == "__main__":
    main()
