"""Figures that a notebook displays."""

from __future__ import annotations

from ._html import png
from ._optional import optional

with optional("matplotlib", caller="a figure", extra="plot"):
    from matplotlib import figure

RESOLUTION = 100  # dots per inch in a notebook


class Figure(figure.Figure):
    """A matplotlib figure that a notebook displays where it is the last expression of a cell.

    Without this class, a notebook displays figures only after pyplot was imported.
    """

    def _repr_png_(self) -> bytes:
        return png(self, RESOLUTION)
