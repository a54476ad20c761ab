"""Unknown names, answered with the nearest known one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

MOST = 120  # characters; a sentence that lists more is not read
FEW = 4  # names to choose from


def hint(name: object, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown name."""
    known, given = list(known), str(name)
    near = get_close_matches(given, known, n=1)
    if len(given) > 1:  # the beginning of a name, or a part of one
        near = [item for item in known if item.startswith(given)] or near or [item for item in known if given in item]
    if near:
        return f"did you mean {_alternatives(near)}?"
    shown = [item for number, item in enumerate(known) if len(", ".join(known[: number + 1])) <= MOST]
    return f"choose from {', '.join(shown)}{'' if len(shown) == len(known) else ', …'}."


def _alternatives(names: list[str]) -> str:
    shown = [repr(name) for name in names[:FEW]]
    if len(names) > FEW:
        return f"{', '.join(shown)} or another"
    return f"{', '.join(shown[:-1])} or {shown[-1]}" if len(shown) > 1 else shown[0]


def suggests_names(function: Callable[P, R]) -> Callable[P, R]:
    """A misspelt keyword argument is answered with the nearest one, also before Python 3.13."""
    if getattr(function, "suggests_names", False):
        return function
    known = list(inspect.signature(function).parameters)
    label = function.__qualname__.removesuffix(".__init__")

    @wraps(function)
    def call(*arguments: P.args, **options: P.kwargs) -> R:
        for name in options:
            if name not in known:
                raise TypeError(f"{label} has no argument {name!r}: {hint(name, [n for n in known if n != 'self'])}")
        return function(*arguments, **options)

    setattr(call, "suggests_names", True)  # noqa: B010 - which functions do not declare
    return call
