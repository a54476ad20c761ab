"""`solve`, `tune`, and what theory says about both."""

from typing import TYPE_CHECKING

import lazy_loader

if TYPE_CHECKING:
    from . import theory

__all__ = ["theory"]
__getattr__, __dir__, _ = lazy_loader.attach(__name__, submodules=["theory"])  # it imports every method
