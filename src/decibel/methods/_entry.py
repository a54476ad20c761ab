"""What the catalogue holds of a method, and the decorator that puts a method there."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar, cast

from ..core._names import hint, suggests_names
from ._method import Method, Variant

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
        known = [name for name in inspect.signature(self.make).parameters if name not in self.variant.settings]
        for name in settings:
            if name not in known:
                raise TypeError(f"method {self.name!r} has no setting {name!r}: {hint(name, known)}")
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
        return self.kind.defaults if self.variant.defaults is None else self.variant.defaults

    @cached_property
    def form(self) -> str:
        """The problems it solves: shared, personal or single."""
        return self().form

    @cached_property
    def sends(self) -> str:
        """What a node sends to each neighbour per iteration; p and q are the entries of x and y."""
        return self().sends


def register(kind: type[Method], **settings: Any) -> Callable[[Make], Make]:
    """Puts a method into `db.CATALOG`: `@register(Mine)` before its constructor, with the settings that make a `kind`
    of what it constructs where it constructs several."""

    def add(make: Make) -> Make:
        made = cast(Make, suggests_names(make))
        for variant in kind.variants():
            if variant.name in REGISTERED:
                raise ValueError(
                    f"method {variant.name!r} is in the catalogue already: give {kind.__name__} another name."
                )
            fixed = variant._replace(settings={**variant.settings, **settings})
            REGISTERED[variant.name] = Entry(kind, made, fixed)
        return made

    return add
