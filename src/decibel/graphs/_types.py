"""The types of graphs from outside, and of what stands for them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, TypeAlias

import networkx as nx
import numpy as np
from scipy import sparse

if TYPE_CHECKING:
    Networkx: TypeAlias = nx.Graph[Hashable]
else:
    Networkx = nx.Graph

Matrix: TypeAlias = np.ndarray | sparse.sparray | sparse.spmatrix | Sequence[Sequence[float]]
