"""A progress bar with the newest metrics, in a terminal or in a notebook."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from html import escape
from typing import TYPE_CHECKING, Protocol

from ..core._ledger import COSTS

if TYPE_CHECKING:
    import rich.progress


class Bar(Protocol):
    """What draws."""

    def start(self) -> None: ...

    def begin(self, step: int) -> None: ...

    def show(self, step: int, words: str) -> None: ...

    def stop(self) -> None: ...


class Progress:
    """Shows in a terminal or a notebook (`shown=None`), always (True) or never (False). In a terminal it writes to
    standard error, and without rich, which draws it there, there is no bar."""

    def __init__(self, title: str, steps: int, shown: bool | None) -> None:
        self._bar: Bar | None = None if shown is False else _notebook(title, steps) or _terminal(title, steps, shown)

    def begin(self, step: int) -> None:
        """A run that is resumed has done these steps already: they tell nothing about its speed."""
        if self._bar is not None:
            self._bar.begin(step)

    def show(self, step: int, row: Mapping[str, float]) -> None:
        if self._bar is not None:
            self._bar.show(step, "  ".join(f"{name} {value:.3g}" for name, value in row.items() if name not in COSTS))

    def __enter__(self) -> Progress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()


class _Terminal:
    """A bar that rich draws."""

    def __init__(self, bar: rich.progress.Progress, title: str, steps: int) -> None:
        self._bar, self._task = bar, bar.add_task(title, total=steps, metrics="compiling")

    def start(self) -> None:
        self._bar.start()

    def begin(self, step: int) -> None:
        self._bar.reset(self._task, completed=step)

    def show(self, step: int, words: str) -> None:
        self._bar.update(self._task, completed=step, metrics=words)

    def stop(self) -> None:
        self._bar.stop()


class Shows(Protocol):
    """A place in a notebook, of which `IPython.display.display` gives a handle."""

    def update(self, data: object, *, raw: bool) -> None: ...


class _Notebook:
    """A bar in HTML, which needs nothing but the notebook."""

    def __init__(self, display: Display, title: str, steps: int) -> None:
        self._display = display
        self._title = title
        self._steps = steps
        self._place: Shows | None = None

    def start(self) -> None:
        self._place = self._display(self._data(0, "compiling"), raw=True, display_id=True)

    def begin(self, step: int) -> None:
        self.show(step, "compiling")

    def show(self, step: int, words: str) -> None:
        if self._place is not None:
            self._place.update(self._data(step, words), raw=True)

    def stop(self) -> None:
        pass  # it stays, as the last row was

    def _data(self, step: int, words: str) -> dict[str, str]:
        text = f"{self._title} {step}/{self._steps} {words}"
        bar = f'<progress value="{step}" max="{self._steps}"></progress>'
        html = f"<div>{escape(self._title)} {bar} {step}/{self._steps} {escape(words)}</div>"
        return {"text/plain": text, "text/html": html}


class Display(Protocol):
    """`IPython.display.display`."""

    def __call__(self, data: object, *, raw: bool, display_id: bool) -> Shows | None: ...


def _notebook(title: str, steps: int) -> Bar | None:
    """A bar where the process is the kernel of a notebook, which has loaded IPython then."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    display: Display | None = getattr(sys.modules.get("IPython.display"), "display", None)
    if display is None or not hasattr(shell, "kernel"):
        return None
    return _Notebook(display, title, steps)


def _terminal(title: str, steps: int, shown: bool | None) -> Bar | None:
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
    bar = Progress(*columns, console=console, disable=not visible, expand=True)
    return _Terminal(bar, title, steps)
