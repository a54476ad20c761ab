"""What the catalogue holds of a method, and the decorator that puts a method there."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar, cast

from ..core._names import hint, suggests_names
from ._method import Method, Variant

# What the arguments of constructors are where their docstrings leave them out.
ARGUMENTS = {
    "alpha": "the step size of x: a number, or a function of the step.",
    "beta": "the step size of y, likewise.",
    "gamma": "the step size of z, likewise.",
    "theta": "the weight of the newest sample in a running average of the gradient, from 0 to 1; 1 keeps no average.",
    "relax": "η, the part of a step that is taken, from 0 to 1.",
    "terms": "the number of terms of the Neumann series.",
    "scale": "L of the series, at least the largest eigenvalue of H; None estimates it in each step.",
}
USUAL_STEPS = {"alpha": 0.05, "beta": 0.1, "gamma": 0.1}
ENTRY = re.compile(r"^(?=    \S)", re.MULTILINE)  # where the text of an argument begins
Make = TypeVar("Make", bound=Callable[..., Method])
REGISTERED: dict[str, Entry] = {}


@dataclass(frozen=True)
class Entry:
    """A method of `db.CATALOG`; calling it makes the method, with its default step sizes where none are given.

    `kind` is the method's class and `make` its constructor, such as `db.interact`. `mixture` tells that it combines two
    strategies, which tables of methods leave out.
    """

    kind: type[Method]
    make: Callable[..., Method]
    variant: Variant

    def __call__(self, **settings: Any) -> Method:
        parameters = [name for name in inspect.signature(self.make).parameters if name not in self.variant.settings]
        for name in settings:
            if name not in parameters:
                raise TypeError(f"method {self.name!r} has no setting {name!r}: {hint(name, parameters)}")
        return self.make(**{**self.defaults, **self.variant.settings, **settings})

    @property
    def name(self) -> str:
        return self.variant.name

    @property
    def summary(self) -> str:
        """One line that says what it is."""
        return self.variant.summary

    @property
    def paper(self) -> str:
        return self.variant.paper

    @property
    def mixture(self) -> bool:
        return self.variant.mixture

    @property
    def loops(self) -> int:
        """1, or 2 where every iteration has inner loops."""
        return self.kind.loops

    @property
    def defaults(self) -> Mapping[str, Any]:
        """Step sizes and other settings that it is called with where none are given."""
        return {**self.usual_steps, **self.own_defaults}

    @property
    def own_defaults(self) -> Mapping[str, Any]:
        """The part of its defaults that is its own, whatever the problem."""
        return self.kind.defaults if self.variant.defaults is None else self.variant.defaults

    @property
    def usual_steps(self) -> dict[str, float]:
        """The step sizes of most methods, of those that it asks for and has no own default of."""
        if self.variant.defaults is not None:
            return {}
        parameters = inspect.signature(self.make).parameters
        required = [name for name in parameters if parameters[name].default in (inspect.Parameter.empty, None)]
        return {name: size for name, size in USUAL_STEPS.items() if name in required and name not in self.kind.defaults}

    @cached_property
    def form(self) -> str:
        """The problems it solves: shared, personal or single."""
        return self().form

    @cached_property
    def sends(self) -> str:
        """What a node sends to each neighbour per iteration; p and q are the entries of x and y."""
        return self().sends


def register(kind: type[Method], *variants: Variant, **settings: Any) -> Callable[[Make], Make]:
    """Puts a method into `db.CATALOG`: `@register(Mine)` before its constructor.

    Args:
        kind: the class of the method.
        variants: the names it has there; those of its class where none are given.
        settings: those that make a `kind` of what the constructor makes, where it makes several.
    """

    def add(make: Make) -> Make:
        constructor = cast(Make, suggests_names(make))
        constructor.__doc__ = documented(make.__doc__ or "", inspect.signature(make).parameters)
        for variant in variants or kind.variants():
            if variant.name in REGISTERED:
                raise ValueError(
                    f"method {variant.name!r} is in the catalogue already: give {kind.__name__} another name."
                )
            fixed = variant._replace(settings={**variant.settings, **settings})
            REGISTERED[variant.name] = Entry(kind, constructor, fixed)
        return constructor

    return add


def documented(docstring: str, parameters: Iterable[str]) -> str:
    """A docstring with a line for every argument that it leaves out, all in the order of the parameters."""
    text = inspect.cleandoc(docstring)
    missing = [name for name in parameters if name in ARGUMENTS and f"\n    {name}: " not in text]
    if not missing:
        return text
    before, _, sections = text.partition("\n\nArgs:\n")
    given, _, after = sections.partition("\n\n")
    lines = {name: f"    {name}: {ARGUMENTS[name]}" for name in missing}
    lines |= {entry.split(":")[0].strip(" *"): entry.rstrip("\n") for entry in ENTRY.split(given) if entry}
    order = {name: place for place, name in enumerate(parameters)}
    arguments = "\n".join(lines[name] for name in sorted(lines, key=order.__getitem__))
    return f"{before}\n\nArgs:\n{arguments}\n\n{after}".rstrip()
