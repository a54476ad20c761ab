"""The types of graphs from outside, and of what stands for them."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, TypeAlias, cast

import networkx as nx
import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse

if TYPE_CHECKING:
    Networkx: TypeAlias = nx.Graph[Hashable]
else:
    Networkx = nx.Graph

Matrix: TypeAlias = ArrayLike | sparse.sparray | sparse.spmatrix


def shape_of(matrix: Matrix) -> tuple[int, ...]:
    """Of a dense matrix, of scipy's, or of lists; ValueError where rows have unequal lengths."""
    return np.shape(cast("np.ndarray", matrix))  # scipy's have the attribute that NumPy asks for
