"""Types of arrays and pytrees."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from jax import Array

if TYPE_CHECKING:
    # Type checkers report the name of jaxtyping as unknown.
    PyTree: TypeAlias = Any
else:
    from jaxtyping import PyTree

Scalar: TypeAlias = float | Array
Loss: TypeAlias = Callable[..., Array]  # of x, y and a batch; of x and a batch where there is a single level
Schedule: TypeAlias = Callable[[Array], Scalar]  # of the step, as optax has it

__all__ = ["Loss", "PyTree", "Scalar", "Schedule"]
