"""Partitions a dataset over nodes, evenly or unevenly, and corrupts labels; all seeded.

Every partitioner returns a `Partition`: disjoint indices per node, no node empty.
"""

from .assign import by_group, dirichlet, iid, shards
from .corrupt import Corruption, corrupt_labels
from .parts import Partition, Split
from .skew import label_skew

__all__ = [
    "Corruption",
    "Partition",
    "Split",
    "by_group",
    "corrupt_labels",
    "dirichlet",
    "iid",
    "label_skew",
    "shards",
]
