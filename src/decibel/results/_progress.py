"""A progress bar with the newest metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..core._ledger import COSTS

if TYPE_CHECKING:
    import rich.progress


class Progress:
    """Shows in a terminal (`shown=None`), always (True) or never (False); writes to standard error. Without rich, which
    draws it, there is no bar."""

    def __init__(self, title: str, steps: int, shown: bool | None) -> None:
        self._bar = None if shown is False else _bar(shown)
        if self._bar is not None:
            self._task = self._bar.add_task(title, total=steps, metrics="compiling")

    def begin(self, step: int) -> None:
        """A run that is resumed has done these steps already: they tell nothing about its speed."""
        if self._bar is not None:
            self._bar.reset(self._task, completed=step)

    def show(self, step: int, row: Mapping[str, float]) -> None:
        if self._bar is not None:
            metrics = "  ".join(f"{name} {value:.3g}" for name, value in row.items() if name not in COSTS)
            self._bar.update(self._task, completed=step, metrics=metrics)

    def __enter__(self) -> Progress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()


def _bar(shown: bool | None) -> rich.progress.Progress | None:
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
        from rich.table import Column
    except ImportError:
        return None
    console = Console(stderr=True)
    # The metrics are what a narrow terminal cuts off; bar, count and time stay.
    columns = (
        TextColumn("[bold]{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis", max_width=24)),
        BarColumn(bar_width=20 if console.width < 100 else 40),
        MofNCompleteColumn(table_column=Column(no_wrap=True)),
        TimeRemainingColumn(table_column=Column(no_wrap=True)),
        TextColumn("{task.fields[metrics]}", table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1)),
    )
    visible = (console.is_terminal or console.is_jupyter) if shown is None else shown
    return Progress(*columns, console=console, disable=not visible, expand=True)
