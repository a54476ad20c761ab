"""`solve`, `tune`, and what theory says about both."""

from . import theory

__all__ = ["theory"]
