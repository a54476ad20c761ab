"""The part of a problem that exact solutions and checks use."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from jax import Array
from jaxtyping import Float

from ..core._types import Loss, PyTree
from ._batch import Batch
from ._streams import Samples
from .prox import Prox


class Losses(Protocol):
    """The losses of both levels with their data, and where the variables start."""

    @property
    def upper(self) -> Loss: ...

    @property
    def lower(self) -> Loss | None: ...

    @property
    def x0(self) -> PyTree: ...

    @property
    def y0(self) -> PyTree: ...

    @property
    def prox_y(self) -> Prox | None: ...

    @property
    def dtype(self) -> np.dtype: ...

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
