"""`decibel list`."""

from __future__ import annotations

from rich.table import Table

from .._common import Json, console, emit


def list_(json: Json = False) -> None:
    """List methods, strategies, graph families, metrics and tasks, and the studies where they are installed."""
    from ...methods._catalog import CATALOG
    from ...results.metrics import METRICS
    from ...strategies._table import STRATEGIES
    from .._plugins import names
    from .._registry import GRAPHS, TASKS

    collections = {"strategies": STRATEGIES, "graphs": GRAPHS, "metrics": METRICS, "tasks": TASKS, **names()}
    if json:
        methods = {name: {"form": entry.form, "summary": entry.summary} for name, entry in CATALOG.items()}
        emit({"methods": methods, **{kind: list(members) for kind, members in collections.items()}})
        return
    mixtures = ["sparkle-LOWER", "sparkle-LOWER-UPPER", *(name for name in CATALOG if "sparkle" not in name)]
    table = Table(show_header=False, box=None, padding=(0, 2, 1, 0))
    for kind, members in {"methods": mixtures, **collections}.items():
        table.add_row(f"[bold]{kind}", ", ".join(members))
    console().print(table)
