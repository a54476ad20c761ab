"""A progress bar with the newest metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from ..core._ledger import COSTS


class Progress:
    """Shows in a terminal (`shown=None`), always (True) or never (False); writes to standard error."""

    def __init__(self, title: str, steps: int, shown: bool | None) -> None:
        console = Console(stderr=True)
        hidden = not (console.is_terminal if shown is None else shown)
        columns = (
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[metrics]}"),
        )
        self._bar = Bar(*columns, console=console, disable=hidden)
        self._task = self._bar.add_task(title, total=steps, metrics="compiling")

    def show(self, step: int, row: Mapping[str, float]) -> None:
        metrics = "  ".join(f"{name} {value:.3g}" for name, value in row.items() if name not in COSTS)
        self._bar.update(self._task, completed=step, metrics=metrics)

    def __enter__(self) -> Progress:
        self._bar.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._bar.stop()
