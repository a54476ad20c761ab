"""What methods that are defined by full second derivatives share: they hold and send matrices, so y has to be small."""

from __future__ import annotations

from abc import abstractmethod

import jax

from ..graphs._graph import Levels
from ..problem._problem import Problem
from ._method import Method

LARGEST = 2**30  # bytes of matrices a node may hold


class MatrixMethod(Method):
    """Flattened, x has p entries and y has q."""

    @abstractmethod
    def matrices(self, p: int, q: int) -> int:
        """Entries of the matrices one node holds."""

    def validate(self, problem: Problem, graphs: Levels, batch_size: int | None) -> None:
        super().validate(problem, graphs, batch_size)
        p, q = (sum(leaf.size for leaf in jax.tree.leaves(tree)) for tree in (problem.x0, problem.y0))
        size = self.matrices(p, q) * jax.tree.leaves(problem.x0)[0].dtype.itemsize
        if size > LARGEST:
            raise ValueError(
                f"{self.name} holds and sends matrices of {size / 2**30:.1f} GiB per node for x of {p} and y of {q} "
                f"entries, more than {LARGEST / 2**30:.0f} GiB: choose a method that sends vectors, such as db.sparkle."
            )
