"""The part of a problem that exact solutions and checks use."""

from __future__ import annotations

from typing import Any, Protocol

from jax import Array

from ._samples import Batch, NodeData


class Losses(Protocol):
    """The losses of both levels with their data, and where the variables start."""

    @property
    def x0(self) -> Any: ...

    @property
    def y0(self) -> Any: ...

    @property
    def personal(self) -> bool: ...

    @property
    def single_level(self) -> bool: ...

    @property
    def upper_data(self) -> NodeData: ...

    @property
    def lower_data(self) -> NodeData: ...

    def upper_loss(self, x: Any, y: Any, batch: Batch) -> Array: ...

    def lower_loss(self, x: Any, y: Any, batch: Batch) -> Array: ...
