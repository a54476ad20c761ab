"""Unknown names, answered with the nearest known one."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def hint(name: object, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown name."""
    known = list(known)
    near = get_close_matches(str(name), known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(known)}."
