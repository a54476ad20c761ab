"""Deprecated names that still work and warn which name to use."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def deprecated(name: str, *, instead: str, removed_in: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Makes each call of a function or method warn that `name` will go, with its replacement and the version.

    An old name of a function is `old = deprecated("old", instead="new", removed_in="0.3.0")(new)`.
    """
    sentence = f"{name} is deprecated and will be removed in Decibel {removed_in}: use {instead} instead."

    def mark(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def warned(*args: P.args, **kwargs: P.kwargs) -> R:
            warnings.warn(sentence, DeprecationWarning, stacklevel=2)  # 2: the line that calls, not this one
            return function(*args, **kwargs)

        return warned

    return mark
