"""How tests check arrays: beartype, for those parameters and results whose annotation names an array.

Plain types are pyright's affair; at run time many tests give wrong ones on purpose, to read the sentence that answers.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from types import FunctionType
from typing import Any

from beartype import BeartypeConf, beartype

CONF = BeartypeConf(is_pep484_tower=True)  # an int is a float
ARRAY = re.compile(r"\bArray\b|ndarray")


def check(function: Callable[..., Any]) -> Callable[..., Any]:
    """What jaxtyping's import hook puts around every function of a module."""
    arrays = {name: hint for name, hint in function.__annotations__.items() if ARRAY.search(str(hint))}
    if not arrays or not isinstance(function, FunctionType):
        return function
    same = FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    same.__kwdefaults__, same.__dict__, same.__annotations__ = function.__kwdefaults__, function.__dict__, arrays
    same.__module__, same.__qualname__, same.__doc__ = function.__module__, function.__qualname__, function.__doc__
    return beartype(conf=CONF)(same)
