"""How one level corrects for heterogeneity and mixes with its neighbours: a table of strategies in flow form."""

from typing import TYPE_CHECKING

from ..core._names import unknown_name
from . import _gt_ada as _gt_ada  # importing it adds its strategy to the table
from . import _one_way as _one_way
from . import privacy
from ._adam import adam_ed
from ._adaptive import ada_ed
from ._limited import LimitedStrategy, edge_ed, takes_limit, wave, with_limit
from ._nids import nids
from ._table import STRATEGIES, Level, Strategy, ed, led, polynomial, strategy

__all__ = [
    "STRATEGIES",
    "Level",
    "LimitedStrategy",
    "Strategy",
    "ada_ed",
    "adam_ed",
    "ed",
    "edge_ed",
    "led",
    "nids",
    "polynomial",
    "privacy",
    "strategy",
    "takes_limit",
    "wave",
    "with_limit",
]

if not TYPE_CHECKING:  # which knows the names
    __getattr__ = unknown_name("db.strategies", __all__)
