"""Unknown names, answered with the nearest known one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import wraps
from typing import NoReturn, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

MOST = 120  # characters; a sentence that lists more is not read
FEW = 4  # names to choose from


def hint(name: object, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown name."""
    known, given = list(known), str(name)
    lower = {item.lower(): item for item in reversed(known)}
    near = [lower[item] for item in get_close_matches(given.lower(), lower, n=1)] if isinstance(name, str) else []
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


def unknown_name(module: str, known: Sequence[str]) -> Callable[[str], NoReturn]:
    """A module's `__getattr__`, which answers an unknown name with the nearest one."""

    def missing(name: str) -> NoReturn:
        raise AttributeError(f"{module} has no {name!r}: {hint(name, known)}", name=name)

    return missing


def accepts(function: Callable[..., object], *arguments: object) -> bool:
    """Whether a function can be called with these arguments, as far as its signature tells."""
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError:
        return False
    except ValueError:  # has no signature to be read
        return True
    return True


def suggests_names(function: Callable[P, R]) -> Callable[P, R]:
    """A misspelt keyword argument is answered with the nearest one, also before Python 3.13."""
    if getattr(function, "suggests_names", False):
        return function
    signature = inspect.signature(function)
    known = list(signature.parameters)
    label = function.__qualname__.removesuffix(".__init__")

    @wraps(function)
    def call(*arguments: P.args, **options: P.kwargs) -> R:
        for name in options:
            if name not in known:
                raise TypeError(f"{label} has no argument {name!r}: {hint(name, [n for n in known if n != 'self'])}")
        try:
            signature.bind(*arguments, **options)
        except TypeError:
            raise TypeError(_misfit(label, signature, len(arguments), options)) from None
        return function(*arguments, **options)

    setattr(call, "suggests_names", True)  # noqa: B010 - which functions do not declare
    return call


def _misfit(label: str, signature: inspect.Signature, given: int, options: Mapping[str, object]) -> str:
    """Why arguments whose names are known do not fit: too many by position, one twice, or one missing."""
    parameters = [parameter for parameter in signature.parameters.values() if parameter.name != "self"]
    given -= len(signature.parameters) - len(parameters)
    placed = [
        parameter.name
        for parameter in parameters
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    by_name = [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
    if given > len(placed):
        first = f"only {', '.join(placed)} by position" if placed else "nothing by position"
        return f"{label} takes {first}: name the others, as in {label}({', '.join([*placed, f'{by_name[0]}=...'])})."
    twice = [name for name in placed[:given] if name in options]
    if twice:
        return f"{label} is given {twice[0]!r} twice, by position and by name: leave one out."
    there = {*placed[:given], *options}
    missing = [
        parameter.name
        for parameter in parameters
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        and parameter.name not in there
    ]
    return f"{label} lacks {' and '.join(missing)}: give {label}({', '.join(f'{name}=...' for name in missing)})."
