"""Real problems on real data: each function returns a `Task`, a problem with its own evaluation."""

from . import data, partition
from .label_cleaning import label_cleaning
from .task import Task

__all__ = ["Task", "data", "label_cleaning", "partition"]
