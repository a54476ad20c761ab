"""Unknown names, answered with the nearest known one."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

MOST = 120  # characters; a sentence that lists more is not read


def hint(name: object, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown name."""
    known = list(known)
    near = get_close_matches(str(name), known, n=1) or _beginning(str(name), known)
    if near:
        return f"did you mean {_alternatives(near)}?"
    shown = [item for number, item in enumerate(known) if len(", ".join(known[: number + 1])) <= MOST]
    return f"choose from {', '.join(shown)}{'' if len(shown) == len(known) else ', …'}."


def _beginning(name: str, known: list[str]) -> list[str]:
    """Names that begin with what was given, or contain it; none if they are many."""
    if len(name) < 2:
        return []
    found = [item for item in known if item.startswith(name)] or [item for item in known if name in item]
    return found if len(found) <= 4 else []


def _alternatives(names: list[str]) -> str:
    *others, last = map(repr, names)
    return f"{', '.join(others)} or {last}" if others else last
