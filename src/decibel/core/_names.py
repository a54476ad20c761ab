"""Unknown names, answered with the nearest known one."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

MOST = 120  # characters; a sentence that lists more is not read


def hint(name: object, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown name."""
    known = list(known)
    near = get_close_matches(str(name), known, n=1)
    if near:
        return f"did you mean {near[0]!r}?"
    shown = [item for number, item in enumerate(known) if len(", ".join(known[: number + 1])) <= MOST]
    return f"choose from {', '.join(shown)}{'' if len(shown) == len(known) else ', …'}."
