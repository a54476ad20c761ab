"""How one level corrects for heterogeneity and mixes with its neighbours: a table of strategies in flow form."""

from . import privacy
from ._adam import adam_ed
from ._adaptive import ada_ed
from ._limited import edge_ed, wave
from ._table import STRATEGIES, Level, Strategy, led, polynomial, strategy

__all__ = [
    "STRATEGIES", "Level", "Strategy", "ada_ed", "adam_ed", "edge_ed", "led", "polynomial", "privacy", "strategy",
    "wave",
]  # fmt: skip
