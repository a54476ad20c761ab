"""The part of a problem that exact solutions and checks use."""

from __future__ import annotations

from typing import Protocol

from jax import Array
from jaxtyping import Float

from ..core._types import PyTree
from ._batch import Batch
from ._streams import Samples


class Losses(Protocol):
    """The losses of both levels with their data, and where the variables start."""

    @property
    def x0(self) -> PyTree: ...

    @property
    def y0(self) -> PyTree: ...

    @property
    def personal(self) -> bool: ...

    @property
    def single_level(self) -> bool: ...

    @property
    def upper_data(self) -> Samples: ...

    @property
    def lower_data(self) -> Samples: ...

    def upper_loss(self, x: PyTree, y: PyTree, batch: Batch) -> Float[Array, ""]: ...

    def lower_loss(self, x: PyTree, y: PyTree, batch: Batch) -> Float[Array, ""]: ...
