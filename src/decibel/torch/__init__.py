"""PyTorch modules and losses: a problem of PyTorch code, converted once and run by JAX.

Needs the extra `[torch]`, whose versions of torch and torchax work together; nothing else in Decibel imports torch.
"""

from typing import TYPE_CHECKING

from ..core._names import unknown_name
from ._model import Model, from_torch
from ._problem import problem

__all__ = ["Model", "from_torch", "problem"]

if not TYPE_CHECKING:  # which knows the names
    __getattr__ = unknown_name("db.torch", __all__)
