"""Figures that a notebook shows by itself."""

from __future__ import annotations

from ._html import png
from ._optional import optional

with optional("matplotlib", caller="a figure", extra="plot"):
    from matplotlib import figure

RESOLUTION = 100  # dots per inch in a notebook


class Figure(figure.Figure):
    """Matplotlib's figure, shown where it is the last expression of a cell.

    A notebook shows a plain one only after pyplot was imported, and then by a function of its own, which it prefers to
    the method below.
    """

    def _repr_png_(self) -> bytes:
        return png(self, RESOLUTION)
