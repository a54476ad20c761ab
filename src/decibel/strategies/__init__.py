"""How one level corrects for heterogeneity and mixes with its neighbours: a table of strategies in flow form."""

from . import privacy
from ._table import STRATEGIES, Level, Strategy, polynomial, strategy

__all__ = ["STRATEGIES", "Level", "Strategy", "polynomial", "privacy", "strategy"]
