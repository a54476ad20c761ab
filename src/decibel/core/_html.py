"""Small pieces of HTML for notebooks; all text is escaped."""

from __future__ import annotations

import warnings
from base64 import b64encode
from collections.abc import Callable, Iterable, Sequence
from html import escape
from io import BytesIO
from typing import TYPE_CHECKING

from ._text import plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RESOLUTION = 72  # dots per inch: small, since a notebook keeps every output


def table(title: str, rows: Iterable[Sequence[object]], head: Sequence[str] = ()) -> str:
    """A table with a title; the first cell of every row names it, unless there is a head."""
    first = "td" if head else "th"
    lines = [_row(head, "th", "th")] if head else []
    lines += [_row(row, first, "td") for row in rows]
    return f"<table><caption>{_text(title)}</caption>{''.join(lines)}</table>"


def picture(draw: Callable[[], Figure], alt: str) -> str:
    """A figure as an image; empty where matplotlib is missing or cannot draw it, since the text is shown anyway."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of characters that its fonts lack
            drawn = png(draw(), RESOLUTION)
    except Exception:  # of matplotlib or of the user's own data; a display must not end a cell
        return ""
    return f'<img alt="{_text(alt)}" src="data:image/png;base64,{b64encode(drawn).decode()}">'


def png(figure: Figure, resolution: int) -> bytes:
    """A matplotlib figure as a PNG file; `resolution` is in dots per inch."""
    file = BytesIO()
    figure.savefig(file, format="png", dpi=resolution)
    return file.getvalue()


def number(value: float) -> str:
    """A number with four digits, an integer in full."""
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def _row(cells: Sequence[object], first: str, rest: str) -> str:
    kinds = [first] + [rest] * (len(cells) - 1)
    return f"<tr>{''.join(f'<{k}>{_text(cell)}</{k}>' for k, cell in zip(kinds, cells, strict=True))}</tr>"


def _text(value: object) -> str:
    return escape(plain(value))
