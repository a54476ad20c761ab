"""Reading a compiled program."""

from __future__ import annotations

import math
import re


def permutes(text: str) -> list[tuple[int, int]]:
    """(pairs, bytes per pair) of every collective-permute in a compiled program."""
    found = []
    for line in text.splitlines():
        match = re.search(r"= f64\[([\d,]*)\]\S* collective-permute\(.*source_target_pairs=(\{.*?\}\})", line)
        if match:
            size = math.prod(int(n) for n in match[1].split(","))
            found.append((match[2].count("},{") + 1, 8 * size))
    return found
