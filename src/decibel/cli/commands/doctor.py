"""`decibel doctor`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer
from rich.table import Table

from ...core._compilation import VARIABLE, cache_compilations
from .._common import FAILED, Json, complain, console, emit

if TYPE_CHECKING:
    from .._examination import Cache, Examined


def doctor(json: Json = False) -> None:
    """Show versions, devices, extras, data and caches, and solve a small problem as a self-test."""
    cache_compilations()
    from .._examination import examine

    report = examine()
    if json:
        emit(report)
    else:
        console().print(_table(report))
    if not report["well"]:
        complain(f"The self-test is off by {report['self_test']['error']:.2g}: compare the versions with those pinned.")
        raise typer.Exit(FAILED)


def _table(report: Examined) -> Table:
    available = [name for name, state in report["data"].items() if state not in ("missing", "partly")]
    test = report["self_test"]
    precision = "float64" if report["float64"] else "float32"
    rows = {
        "decibel": f"{report['decibel']}, Python {report['python']} on {report['platform']}, {report['cores']} cores",
        "packages": ", ".join(f"{name} {number}" for name, number in report["versions"].items()),
        "devices": ", ".join([*report["devices"], precision]),
        "extras": ", ".join(_extra(name, installed) for name, installed in report["extras"].items()),
        "data": f"{len(available)} of {len(report['data'])} here: {', '.join(available)}",
        "compiled steps": _cache(report["compilation_cache"]),
        "self-test": f"{'solved' if test['well'] else 'NOT solved'} to {test['error']:.1g} "
        f"in {test['seconds']:.1f} s, {test['seconds_running']:.2f} of them running",
    }
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, value in rows.items():
        table.add_row(f"[bold]{name}", value)
    return table


def _extra(name: str, installed: bool) -> str:
    return f"[green]{name}[/]" if installed else f"[dim]{name} missing[/]"


def _cache(cache: Cache) -> str:
    if cache["on"]:
        return f"cached in {cache['folder']}"
    return f"off ({VARIABLE}=off)" if cache["folder"] is None else "off"
